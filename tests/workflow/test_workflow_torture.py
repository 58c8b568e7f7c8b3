"""Snakemake and its jobs are killed again and again; what comes out is what an undisturbed run makes."""

import contextlib
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

DIFFERS = ("run.json", "timing.parquet")  # times, hosts
EXIT_RESUMABLE = 75

STAGES = {
    "train": "results/tiny/runs/limited/gla/seed0/run.json",
    "tokenize": "results/corpora/words/tokens/parts/prose-0.json",
    "loss": "results/tiny/evaluation/loss/limited/gla/seed0/domains.parquet",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "points"),
    [pytest.param(stage, n, marks=[pytest.mark.torture] * (n > 3)) for n in (3, 20) for stage in STAGES],
)
def test_a_step_that_is_killed_at_random_points_ends_in_the_same_bytes(
    project: Any, finished: Any, stage: str, points: int
) -> None:
    """Each time from nothing: stopped, then begun again as Snakemake would, until it is through. In turn by
    SIGKILL, by SIGTERM, and, in training, by the time limit that it was told of."""
    printed = project.snakemake("-n", "-p", "--force", STAGES[stage])
    (command,) = (line for line in printed.splitlines() if f"python -m seqarch.cli.{stage} " in line)
    command = command.removeprefix("Shell command: ").strip().partition(" > ")[0]
    outputs = (project.workdir / STAGES[stage]).parent
    draw = random.Random(stage)
    started = time.monotonic()
    run_to_the_end(project, command)
    seconds = time.monotonic() - started
    killed = 0
    for point in range(points):
        if stage != "tokenize":  # other shards' parts lie beside it
            shutil.rmtree(outputs)
        # Nothing happens before: torch is being loaded.
        left = seconds * draw.uniform(0.3, 0.9)
        if stage == "train" and point % 3 == 2:
            killed += begin(project, f"{command} --ends {time.time() + left}").wait(120) == EXIT_RESUMABLE
        else:
            process = begin(project, command)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(left)
            if process.poll() is None:
                process.send_signal((signal.SIGKILL, signal.SIGTERM)[point % 2])
                killed += 1
            process.wait()
        run_to_the_end(project, command)
        assert digests(outputs) == digests(finished.workdir / outputs.relative_to(project.workdir)), point
    assert killed >= points // 2
    assert not list((project.results / "tiny" / "work").glob("*"))


def begin(project: Any, command: str) -> subprocess.Popen[bytes]:
    # `python` of a rule is the one that runs Snakemake.
    environment = project.environment
    environment["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), environment["PATH"]])
    return subprocess.Popen(
        ["bash", "-c", f"exec {command}"],
        cwd=project.workdir,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def run_to_the_end(project: Any, command: str) -> None:
    for _ in range(3):
        if begin(project, command).wait(120) == 0:
            return
    raise AssertionError(f"failed three times: {command}")


@pytest.mark.torture
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
