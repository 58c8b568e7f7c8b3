"""Slurm jobs cancelled at random points, twenty times for each step, end in an undisturbed run's bytes.

A time limit, which is whole minutes, is too coarse for steps of seconds: test_slurm_interruptions runs into a
real one.
"""

import hashlib
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

RUN = "limited/transformer/seed0"
STAGES = {
    "train": f"results/smoke/runs/{RUN}/run.json",
    "tokenize": "results/corpora/smoke/tokens/parts/words-0.json",
    "loss": f"results/smoke/evaluation/loss/{RUN}/domains.parquet",
}
POINTS = 20


@pytest.mark.torture
@pytest.mark.parametrize("stage", STAGES)
def test_cancelled_at_random_points(site: Any, tmp_path: Path, stage: str) -> None:
    own = site.copy(tmp_path / "own")
    outputs = (own.folder / STAGES[stage]).parent
    expected = digests(outputs)
    script = write_script(own, stage, tmp_path / "step.sh")
    draw = random.Random(stage)
    started = time.monotonic()
    assert submit(own, script, "--wait")[0] == 0
    seconds = time.monotonic() - started
    for point in range(POINTS):
        if stage != "tokenize":
            shutil.rmtree(outputs)
        _, job = submit(own, script)
        time.sleep(seconds * draw.uniform(0.3, 0.9))
        own.cluster.ask("scancel", *(["--signal=KILL", "--full"] if point % 2 else []), job)
        while own.cluster.output("squeue", "-h", "-j", job, "-o", "%T").strip():
            time.sleep(0.2)
        for _ in range(3):
            if submit(own, script, "--wait")[0] == 0:
                break
        assert digests(outputs) == expected, point


def write_script(site: Any, stage: str, path: Path) -> Path:
    """The step's command as the workflow would give it, as a job step."""
    config = yaml.safe_load((site.folder / "smoke.yaml").read_text())
    printed = site.finish(site.start(config, "-n", "-p", "--force", STAGES[stage]), config)
    (command,) = (line for line in printed.splitlines() if f"python -m seqarch.cli.{stage} " in line)
    command = command.removeprefix("Shell command: ").strip().partition(" > ")[0]
    path.with_name("command.sh").write_text(f"exec {command}\n")
    path.write_text(
        f'#!/bin/bash\nexport PATH="{os.path.dirname(sys.executable)}:$PATH"\n'
        f"exec srun -n1 bash {path.with_name('command.sh')}\n"
    )
    return path


def submit(site: Any, script: Path, *options: str) -> tuple[int, str]:
    """sbatch's exit code, which with --wait is the job's, and the job."""
    log = str(script.with_suffix(".log"))
    command = ["sbatch", "--parsable", f"--chdir={site.folder}", f"--output={log}", "--mem=2000", *options]
    run = subprocess.run([*command, str(script)], env=site.environment, capture_output=True, text=True)
    return run.returncode, run.stdout.strip()


def digests(folder: Path) -> dict[str, str]:
    """What must not differ between equal runs."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*")
        if file.is_file() and file.name not in ("run.json", "timing.parquet") and file.name[0] != "."
    }
