"""Snakemake and its jobs are killed again and again; what comes out is what an undisturbed run makes."""

import hashlib
import os
import random
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torture

DIFFERS = ("run.json", "timing.parquet")  # times, hosts


def test_a_workflow_that_is_killed_at_random_ends_in_the_same_bytes(project: Any, finished: Any) -> None:
    shutil.rmtree(project.results)
    shutil.rmtree(project.workdir / ".snakemake")
    draw = random.Random(0)
    for _ in range(40):
        project.snakemake("--unlock")
        process = subprocess.Popen(
            project.command("--cores", "2", "--rerun-incomplete"),
            env=project.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.wait(draw.uniform(5, 30))
            break
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 0
    assert project.pending() == set()
    assert digests(project.results) == digests(finished.results)


def digests(results: Path) -> dict[str, str]:
    """Every output's sha256, but for what tells of the run and not of its result."""
    left_out = {"logs", "benchmarks"}
    return {
        str(path.relative_to(results)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in results.rglob("*")
        if path.is_file()
        and not left_out & set(path.parts)
        and path.name not in DIFFERS
        and path.name[0] != "."
    }
