"""What Snakemake costs: dry runs at paper scale and of the demo, and its own share of each job."""

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
JOBS, OVERHEAD = 40, 0.5  # of the local executor; seconds allowed for each, the planning of all included
NOTHING = """
rule all:
    input: expand("{n}.txt", n=range(JOBS))
rule one:
    output: "{n}.txt"
    shell: "touch {output}"
""".replace("JOBS", str(JOBS))


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
            "goal": 1,
        }
    yield _overhead()


def _overhead() -> dict[str, Any]:
    """Jobs that do nothing, one after another, and the same shell commands."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "Snakefile").write_text(NOTHING)
        command = [sys.executable, "-m", "snakemake", "--quiet", "--cores", "1", "-d", folder]
        start = time.perf_counter()
        subprocess.run(
            [*command, "-s", f"{folder}/Snakefile"], check=True, capture_output=True, stdin=subprocess.DEVNULL
        )
        ours = (time.perf_counter() - start) / JOBS
        start = time.perf_counter()
        for number in range(JOBS):
            subprocess.run(["bash", "-c", f"touch {folder}/again{number}.txt"], check=True)
        peer = (time.perf_counter() - start) / JOBS
    return {
        "benchmark": "a job on the local executor",
        "shape": f"{JOBS} jobs, planning included",
        "threads": 1,
        "ours": "snakemake",
        "peer": f"{OVERHEAD} s are allowed (bash -c alone: {peer:.2g} s)",
        "ours_seconds": ours,
        "peer_seconds": OVERHEAD,
        "goal": 1,
    }


def _seconds(arguments: tuple[str, ...]) -> float:
    resolved = [str(ROOT / part) if part.startswith("config/") else part for part in arguments]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile"), "-d", folder, *resolved]
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)
        return time.perf_counter() - start
