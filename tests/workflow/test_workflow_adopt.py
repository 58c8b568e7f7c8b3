"""Results that are accepted under changed code stand; what was made from them is made again and says so."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from seqarch.provenance import read_record

pytestmark = pytest.mark.slow

REASON = "only a log line changed"


def adopt(project: Any, *places: str, reason: str = REASON) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "seqarch.cli.adopt", *places, "--reason", reason]
    command += ["--configfile", str(project.folder / "tiny.yaml")]
    return subprocess.run(
        command, env=project.environment, cwd=project.workdir, capture_output=True, text=True
    )


def test_adopted_runs_stand_and_tables_made_from_them_say_so(project: Any) -> None:
    project.edit("mixers/gla/module.py", lambda text: f"{text}\nEDITED = 1\n")
    runs = {"train limited gla 0", "train mixed gla 0"}
    before = project.pending()
    assert runs <= before
    run = project.results / "tiny/runs/limited/gla/seed0/run.json"
    checkpoints = {path: path.read_bytes() for path in (run.parent / "checkpoints").iterdir()}

    done = adopt(project, "results/tiny/runs/limited/gla", "results/tiny/runs/mixed/gla/seed0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("adopted ") == 4  # run.json and metrics.parquet of two runs
    after = project.pending()
    assert before - after == runs
    assert after - before == set()
    assert {path: path.read_bytes() for path in (run.parent / "checkpoints").iterdir()} == checkpoints
    assert "nothing to adopt" in adopt(project, "results/tiny/runs/limited/gla").stdout

    table = "results/tiny/tables/losses.parquet"
    project.snakemake("--cores", "2", "--show-failed-logs", table)
    record = read_record(project.workdir / table)
    assert record is not None
    assert {(each["path"], each["reason"]) for each in record["adopted"]} == {
        (f"results/tiny/runs/{setting}/gla/seed0/run.json", REASON) for setting in ("limited", "mixed")
    }
    assert not runs & project.pending()
    trace = [sys.executable, "-m", "seqarch.cli.trace", table]
    told = subprocess.run(
        trace, env=project.environment, cwd=project.workdir, capture_output=True, text=True, check=True
    )
    assert "adopted: results/tiny/runs/limited/gla/seed0/run.json, made by code " in told.stdout
    assert REASON in told.stdout


def test_only_the_code_may_differ(project: Any) -> None:
    project.configure(lambda config: config["train"].update(learning_rate=0.004))
    done = adopt(project, "results/tiny/runs/limited/gla")
    assert done.returncode != 0
    assert "run.json: was made with another specification" in done.stderr
    wrong = adopt(project, "results/tiny/none", str(Path("elsewhere")))
    assert "results/tiny/none: no output of this configuration is there" in wrong.stderr
    assert "--reason is empty" in adopt(project, "results/tiny/runs", reason=" ").stderr
