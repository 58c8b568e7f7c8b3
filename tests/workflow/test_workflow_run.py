"""The whole chain on a very small configuration: what it makes, that it makes it once, interruptions."""

import csv
import hashlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seqarch.cli import tokens_group
from seqarch.provenance import read_record
from seqarch.tokens.packing import merge_shards

pytestmark = pytest.mark.slow

RUN = "results/tiny/runs/limited/gla/seed0"


def test_the_chain_ends_in_figures_and_tables(finished: Any) -> None:
    """In a path with a space, from another directory, with a checkout that is not written to."""
    root = finished.results / "tiny"
    for figure in ("corpus", "training", "ood_vs_id", "loss_by_position", "equal_loss"):
        assert "<svg" in (root / "figures" / f"{figure}.svg").read_text()
        assert (root / "figures" / f"{figure}.csv").stat().st_size
    with open(root / "tables" / "losses.csv") as file:
        runs = {(row["setting"], row["arch"], row["seed"]) for row in csv.DictReader(file)}
    assert runs == {(s, a, "0") for s in ("limited", "mixed") for a in ("transformer", "retnet", "gla")}
    assert not list((root / "work").glob("*")), "finished runs leave no state behind"


def test_every_declared_output_carries_its_record(finished: Any) -> None:
    lines = finished.snakemake("--summary").splitlines()
    paths = [line.split("\t")[0] for line in lines if line.startswith("results/")]
    assert len(paths) > 50
    recorded = [
        path for path in paths if path.endswith((".json", ".parquet")) and "tokenizer.json" not in path
    ]
    for path in recorded:
        assert read_record(finished.workdir / path) is not None, path


def test_shards_gathered_by_group_give_the_same_manifests(finished: Any, tmp_path: Path) -> None:
    """What a group of several domains goes through; here each domain is a group of its own."""
    parts = sorted((finished.results / "corpora" / "words" / "tokens" / "parts").glob("prose-*.json"))
    assert len(parts) == 2
    gathered = tmp_path / "group.json"
    arguments = ["--spec", '{"group":"prose"}', "--parts", *map(str, parts), "--out", str(gathered)]
    assert tokens_group.main(arguments) == 0
    assert merge_shards([gathered], "prose", "train") == merge_shards(parts, "prose", "train")
    assert read_record(gathered) is not None


def test_repeating_it_does_nothing_at_once(finished: Any, cpu_seconds: Callable[[], float]) -> None:
    assert "Nothing to be done" in finished.snakemake("--cores", "2")
    assert cpu_seconds() < 5


def test_code_that_is_edited_while_jobs_are_queued_is_refused(project: Any) -> None:
    log = project.results / "tiny" / "logs" / "equal_loss.log"
    figure = project.results / "tiny" / "figures" / "equal_loss.svg"
    for file in (log, figure, project.results / "tiny" / "tables" / "equal_loss.parquet"):
        file.unlink()
    with subprocess.Popen(
        project.command("--cores", "1", "--show-failed-logs", "results/tiny/figures/equal_loss.svg"),
        env=project.environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        wait_until(log.exists)
        project.edit("figures/equal_loss.py", lambda text: text + "\nEDITED = 1\n")
        output, _ = process.communicate()
    assert process.returncode != 0
    assert "the code of seqarch.cli.figure changed after this job was queued" in output
    assert not figure.exists(), "a refused job leaves nothing that could pass for its result"
    project.snakemake("--cores", "1", "results/tiny/figures/equal_loss.svg")
    assert figure.exists()


def test_a_terminated_training_job_is_retried_and_goes_on_where_it_was(project: Any) -> None:
    expected = weights(project)
    shutil.rmtree(project.workdir / RUN)
    with start_training(project) as (process, trainer):
        os.kill(trainer, signal.SIGTERM)
        output, _ = process.communicate()
    assert process.returncode == 0, output
    assert "Trying to restart job" in output
    assert weights(project) == expected


def test_ctrl_c_ends_it_and_the_next_run_goes_on(project: Any) -> None:
    expected = weights(project)
    shutil.rmtree(project.workdir / RUN)
    with start_training(project) as (process, _):
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
        output, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "Trying to restart job" not in output
    assert "stopped by SIGINT" in (project.results / "tiny/logs/train/limited/gla/seed0.log").read_text()
    (state,) = (project.results / "tiny" / "work").glob("*")
    assert [file for file in state.iterdir() if file.name != "lock"]
    project.snakemake("--cores", "1", "--rerun-incomplete", f"{RUN}/run.json")
    assert weights(project) == expected


def test_after_a_killed_snakemake_the_run_is_finished_and_equal(project: Any) -> None:
    expected = weights(project)
    shutil.rmtree(project.workdir / RUN)
    with start_training(project) as (process, trainer):
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    wait_until(lambda: not Path(f"/proc/{trainer}").exists() or state_of(trainer) == "Z")
    assert not (project.workdir / RUN / "run.json").exists()
    project.snakemake("--unlock")
    project.snakemake("--cores", "1", "--rerun-incomplete", f"{RUN}/run.json")
    assert weights(project) == expected
    assert not list((project.results / "tiny" / "work").glob("*"))
    pending = project.pending()  # a run that was made again is scored again, and no other
    assert {job for job in pending if " " in job} == {"loss limited gla 0"}


class start_training:
    """Run Snakemake for one training run; yields its process and the id of the trainer once that trains."""

    def __init__(self, project: Any) -> None:
        self.project = project

    def __enter__(self) -> tuple[subprocess.Popen[str], int]:
        work = self.project.results / "tiny" / "work"
        self.process = subprocess.Popen(
            self.project.command("--cores", "1", f"{RUN}/run.json"),
            env=self.project.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        wait_until(lambda: any(file.read_text() for file in work.glob("*/lock")))
        holder = next(work.glob("*/lock")).read_text()
        found = re.match(r"process (\d+) ", holder)
        assert found
        return self.process, int(found[1])

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def wait_until(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


def state_of(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rsplit(")")[1].split()[0]


def weights(project: Any) -> dict[str, str]:
    """sha256 of each checkpoint of the run."""
    files = sorted((project.workdir / RUN / "checkpoints").glob("*.safetensors"))
    assert files
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
