"""Monotone x, and no value outside the data."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from seqarch.analysis.interpolate import decreasing, interpolate

losses = st.lists(st.floats(1, 5), min_size=1, max_size=8)


@settings(max_examples=80, deadline=None)
@given(losses)
def test_isotonic_equals_scipys(values):
    x = np.array([values])
    found, _, pooled = decreasing(x, x)
    expected = isotonic_regression(x[0], increasing=False).x[::-1]
    assert found[0] == pytest.approx(expected)
    assert pooled[0] == (np.diff(x[0]) >= 0).any()


def test_pooled_points_share_their_mean():
    x = np.array([[4.0, 3.0, 3.5, 2.0], [4.0, 3.0, 2.5, 2.0]])
    y = np.array([[10.0, 6.0, 8.0, 1.0], [1.0, 2.0, 3.0, 4.0]])
    new_x, new_y, pooled = decreasing(x, y)
    assert pooled.tolist() == [True, False]
    assert new_x.tolist() == [[2, 3.25, 3.25, 4], [2, 2.5, 3, 4]]
    assert new_y.tolist() == [[1, 7, 7, 10], [4, 3, 2, 1]]


@settings(max_examples=80, deadline=None)
@given(losses, st.floats(0, 6), st.sampled_from(["linear", "pchip"]))
def test_never_outside_the_data(values, at, kind):
    x, y, _ = decreasing(np.array([values]), np.array([values[::-1]]))
    found = interpolate(x, y, np.array([[at]]), kind)[0, 0]
    if x.min() <= at <= x.max():
        assert y.min() - 1e-9 <= found <= y.max() + 1e-9
    else:
        assert np.isnan(found)


def test_linear_is_numpys():
    x = np.array([[1.0, 2.0, 4.0]])
    y = np.array([[3.0, 0.0, 8.0]])
    at = np.array([[1.0, 1.5, 2.0, 3.9, 4.0]])
    assert interpolate(x, y, at, "linear")[0] == pytest.approx(np.interp(at[0], x[0], y[0]))
