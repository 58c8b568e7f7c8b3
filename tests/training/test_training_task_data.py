"""A task that makes its own sequences goes through the same loop, and resumes like any run."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from seqarch.architecture import resolve
from seqarch.files import sha256_file
from seqarch.provenance import record
from seqarch.tasks.batch import Batch
from seqarch.tasks.recall.streams import TrainingStream, ValidationStream
from seqarch.training.data import DataError
from seqarch.training.job import Job
from seqarch.training.loop import train
from seqarch.training.spec import RunSpec
from seqarch.training.task_data import open_task_data

TASK = {"kind": "mqar", "vocab": 16, "length": 16, "pairs": [2, 4], "steps": 12, "batch_size": 8}
TASK |= {"test_lengths": [16], "test_pairs": [2]}


def recall_job(folder: Path, name: str, **data: Any) -> Job:
    spec = {
        "architecture": "deltanet",
        "setting": "recall",
        "seed": 0,
        "model": resolve("m", {"m": {"mixer": "deltanet"}}, {"d_model": 16, "n_layers": 1}, 16, 16),
        "data": data or {"kind": "recall", "task": TASK},
        "train": {
            "sequence_length": 16,
            "batch_tokens": 8 * 16,
            "budgets": [12 * 8 * 16],
            "schedule": {"kind": "cosine"},
            "learning_rate": 1e-2,
            "validation": {"tokens": 2 * 8 * 16, "every_tokens": 12 * 8 * 16},
        },
    }
    return Job(
        spec=RunSpec.model_validate(spec),
        manifests={},
        work=folder / "work" / name,
        run=folder / name,
        record=record("recall", spec, "0" * 64),
        device="cpu",
        save_seconds=0,
        open_data=open_task_data,
    )


def digests(run: Path) -> dict[str, str]:
    return {path.name: sha256_file(path) for path in [run / "metrics.parquet", *run.glob("checkpoints/*")]}


class PowerCut(Exception):
    pass


class Stops(TrainingStream):
    def batch(self, step: int, rank: int = 0, world_size: int = 1) -> Batch:
        if step == 5:
            raise PowerCut
        return super().batch(step, rank, world_size)


def stopping(spec: RunSpec, manifests: Mapping[str, Path]) -> tuple[TrainingStream, ValidationStream]:
    stream, validation = open_task_data(spec, manifests)
    stream.__class__ = Stops
    return stream, validation


def test_it_learns_and_a_resumed_run_is_bitwise_the_uninterrupted_one(tmp_path: Path) -> None:
    train(recall_job(tmp_path, "whole"))
    table = pq.read_table(tmp_path / "whole" / "metrics.parquet").to_pydict()
    assert table["loss"][-1] < table["loss"][0]
    assert table["validation_loss"][-1] == pytest.approx(table["loss"][-1], abs=0.3)
    parts = recall_job(tmp_path, "parts")
    with pytest.raises(PowerCut):
        train(replace(parts, open_data=stopping))
    assert not parts.run.exists()
    train(parts)
    assert digests(parts.run) == digests(tmp_path / "whole")


def test_text_and_tasks_are_not_mistaken_for_each_other(tmp_path: Path, make_job: Callable[..., Job]) -> None:
    text = make_job()
    with pytest.raises(DataError, match="data of kind 'tokens': expected a task's"):
        train(replace(text, open_data=open_task_data))
    with pytest.raises(DataError, match=r"data of kind 'recall': seqarch.cli.train trains on tokens"):
        train(replace(recall_job(tmp_path, "run"), open_data=text.open_data))
    other = recall_job(tmp_path, "run", kind="recall", task=TASK | {"batch_size": 4})
    with pytest.raises(DataError, match="4 a batch, vocabulary 16; the run has 16, 8, 16"):
        train(other)
