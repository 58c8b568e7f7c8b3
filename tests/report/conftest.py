"""The finished experiment of tests/workflow, its report, and a browser."""

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_place = Path(__file__).parents[1] / "workflow" / "conftest.py"
_spec = importlib.util.spec_from_file_location("seqarch_tests_workflow", _place)
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _module
_spec.loader.exec_module(_module)
finished = _module.finished  # run once, whichever folder asks first

QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    "--host-resolver-rules=MAP * ~NOTFOUND",  # the page has to do without a network
)


@pytest.fixture(scope="session")
def report(finished: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report as `make report` builds it."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    finished.snakemake("--report", str(path))
    return path


@pytest.fixture
def chromium(tmp_path: Path) -> Callable[..., str]:
    """Open a page in a real headless Chromium; its document after the scripts have run."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no chromium: apt-get install chromium")

    def dump(page: Path, *options: str) -> str:
        arguments = [program, *QUIET, f"--user-data-dir={tmp_path / 'profile'}", *options]
        command = [*arguments, "--virtual-time-budget=30000", "--dump-dom", page.as_uri()]
        run = subprocess.run(command, text=True, capture_output=True, timeout=240, stdin=subprocess.DEVNULL)
        assert run.returncode == 0, run.stderr
        return run.stdout

    return dump
