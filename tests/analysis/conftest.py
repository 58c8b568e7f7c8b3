"""statsmodels collects garbage at every call, which takes long with all the imported libraries' objects."""

import gc

import pytest


@pytest.fixture(scope="session", autouse=True)
def _imports_are_no_garbage():
    gc.collect()
    gc.freeze()
