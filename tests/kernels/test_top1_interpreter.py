"""The Top-1 kernels in Triton's interpreter, each file in a process of its own.

The interpreter is chosen when a kernel is decorated, so it can't be switched on in this process.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


FILES = ["interpret_top1_element.py", "interpret_top1_chunk.py"]


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_kernels_in_the_interpreter(file: str) -> None:
    run_in_interpreter(file, "not torture")


@pytest.mark.torture
@pytest.mark.parametrize("file", FILES)
def test_every_shape_in_the_interpreter(file: str) -> None:
    run_in_interpreter(file, "torture")


def run_in_interpreter(file: str, markers: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", markers, str(HERE / file)],
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
