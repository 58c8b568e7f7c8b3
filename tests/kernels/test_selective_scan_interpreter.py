"""The selective scan's kernels in Triton's interpreter, which has to be switched on before they are
defined.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from seqarch.ops.backend import BackendUnavailable
from seqarch.ops.selective_scan.op import selective_scan

pytest.importorskip("triton")


def test_kernels_equal_the_reference_in_the_interpreter() -> None:
    script = Path(__file__).with_name("selective_scan_in_interpreter.py")
    done = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == "4"


def test_on_a_cpu_the_kernels_are_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    u, A, B = torch.rand(1, 2, 3), -torch.rand(3, 4), torch.rand(1, 2, 4)
    with pytest.raises(BackendUnavailable, match="need a GPU"):
        selective_scan(u, u, A, B, B, backend="triton")
