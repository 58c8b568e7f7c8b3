"""What planning costs: a dry run of the paper-scale configuration, and reading the demo's Snakefile."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TURNS = 3
CASES = {
    # name: (arguments, seconds allowed)
    "dry run, slimpajama_110m": (
        ("-n", "--quiet", "rules", "--configfile", "config/slimpajama_110m.yaml"),
        10,
    ),
    "dry run, demo": (("-n", "--quiet", "rules"), 5),
}


def rows() -> Iterator[dict[str, Any]]:
    """One row a case on an empty folder: the best of several turns against the time allowed."""
    for name, (arguments, allowed) in CASES.items():
        best = min(_seconds(arguments) for _ in range(TURNS))
        yield {
            "benchmark": name,
            "shape": "empty results folder",
            "threads": 1,
            "ours": "snakemake -n",
            "peer": f"{allowed} s are allowed",
            "ours_seconds": best,
            "peer_seconds": allowed,
            "ratio": allowed / best,
            "goal": 1,
            "pass": best <= allowed,
        }


def _seconds(arguments: tuple[str, ...]) -> float:
    resolved = [str(ROOT / part) if part.startswith("config/") else part for part in arguments]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile"), "-d", folder, *resolved]
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)
        return time.perf_counter() - start
