"""Where and with what a run was made: what run.json says beside the result."""

import platform
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from seqarch.training.errors import TrainingError


def pick_device(name: str) -> torch.device:
    """`cpu`, `cuda`, or `auto`: the GPU where there is one. Raises TrainingError if it is not there."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise TrainingError(f"device cuda: torch {torch.__version__} sees no GPU; use --device cpu or auto")
    return torch.device("cuda" if name in ("auto", "cuda") and available else "cpu")


def environment(device: torch.device) -> dict[str, Any]:
    """Host, device, versions, commit."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "device": gpu or platform.processor() or "cpu",
        "threads": torch.get_num_threads(),
        "python": sys.version.split()[0],
        "versions": {name: version(name) for name in ("seqarch", "torch", "numpy", "pyarrow", "safetensors")},
        "git_commit": _git_commit(),
    }


def _git_commit() -> str | None:
    """The commit of the code if it lies in a git checkout."""
    try:
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
