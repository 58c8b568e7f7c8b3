"""Recall from scratch: one architecture learns one task, at each learning rate and with each seed.

The learning rate is chosen on validation sequences, by the mean over the sweep's seeds of the task's measure
(equal ones by the loss); the table of scores is of the test, at that rate alone. The table of the sweep keeps
every rate. A best rate at an edge of the grid is flagged: a better one may lie beyond.
"""

import logging
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from seqarch.evaluation.columns import result_table
from seqarch.evaluation.recall_score import SCORES, Exam, check_positions, outcome, position_scheme
from seqarch.evaluation.recall_spec import RecallJob
from seqarch.files import canonical_json, read_json, sha256_text
from seqarch.provenance import record
from seqarch.tasks.recall.streams import ValidationStream
from seqarch.training.checkpoint import load_model
from seqarch.training.errors import NonFiniteError
from seqarch.training.job import Job
from seqarch.training.loop import train
from seqarch.training.spec import RunSpec, checkpoint_names
from seqarch.training.task_data import open_task_data
from seqarch.training.workdir import fingerprint

log = logging.getLogger(__name__)

SETTING = "recall"
SWEEP = pa.schema(
    [
        ("kind", pa.string()),
        ("learning_rate", pa.float64()),
        ("validation_loss", pa.float64()),  # nats per asked token; empty where training broke down
        ("chosen", pa.bool_()),
        ("at_edge", pa.bool_()),  # chosen, with no rate tried beyond it on one side
        ("swept", pa.bool_()),  # this seed tried all rates
        ("steps", pa.int64()),
        ("train_length", pa.int64()),
        ("position", pa.string()),
    ]
)


@dataclass(frozen=True)
class Trained:
    """A run: its rate and seed, its model's file (None: training broke down), and how it validates."""

    rate: float
    seed: int
    checkpoint: Path | None
    score: float | None = None
    loss: float | None = None


@dataclass(frozen=True)
class Tables:
    scores: pa.Table
    sweep: pa.Table


class Recall:
    """The runs of one job.

    Args:
        work: where unfinished runs, and finished ones of an unfinished job, are kept.
        code: fingerprint of the code, for the runs' records.
        device: cpu, cuda or auto.
    """

    def __init__(self, job: RecallJob, work: Path, code: str, device: str = "auto") -> None:
        check_positions(job.model, job.task)
        self.job, self.work, self.code, self.device = job, work, code, device
        self._finished: list[Path] = []
        batches = -(-job.n_validation // job.task.batch_size)
        if job.task.kind == "mqar":  # as many of each number of pairs
            batches = len(job.task.pairs) * -(-batches // len(job.task.pairs))
        self.validation = ValidationStream(job.task, job.task.batch_size, batches, job.seed)

    def evaluate(self) -> Tables:
        """Train and score everything.

        Raises:
            PositionOutOfRange: learned positions, and a test beyond them; nothing has been trained.
            RecallError: the oracle cannot read an answer.
            Interrupted: a signal; the runs that are finished are kept, and so is the state of this one.
        """
        job = self.job
        tests = Exam(job.task, job.n, job.seed)
        swept = [self.run(rate, seed) for rate in job.learning_rates for seed in job.sweep]
        best = choose(swept, job.learning_rates)
        others = [self.run(best, seed) for seed in job.seeds if seed not in job.sweep]
        chosen = [run for run in [*swept, *others] if run.rate == best]
        rows: list[dict[str, Any]] = []
        for run in sorted(chosen, key=lambda run: run.seed):
            if run.checkpoint is None:
                log.warning("seed %d: training broke down at %g", run.seed, run.rate)
                continue
            model, _ = load_model(run.checkpoint, self._score_device())
            rows += [
                {"seed": run.seed, "learning_rate": run.rate, **row}
                for row in tests.rows(model, job.model, job.batch_tokens)
            ]
        return Tables(self._scores(rows), self._sweep(swept, others, best))

    def run(self, rate: float, seed: int) -> Trained:
        """Train a model, or take the one that an interrupted job left."""
        spec = run_spec(self.job, rate, seed, self.validation.batches)
        made = record("recall", spec.model_dump(mode="json"), self.code, packages=("torch",))
        folder = self.work / f"recall-{fingerprint(made)}"
        self._finished.append(folder)
        if not (folder / "run.json").is_file():
            job = Job(spec, {}, self.work, folder, made, self.device, open_data=open_task_data)
            try:
                train(job)
            except NonFiniteError as error:
                log.warning("%s", error)
                shutil.rmtree(self.work / fingerprint(made), ignore_errors=True)
                return Trained(rate, seed, None)
        (name,) = checkpoint_names(spec.train)
        checkpoint = folder / "checkpoints" / f"{name}.safetensors"
        assert name in {Path(each).stem for each in read_json(folder / "run.json")["checkpoints"]}
        losses = pq.read_table(folder / "metrics.parquet", columns=["validation_loss"])
        model, _ = load_model(checkpoint, self._score_device())
        score = outcome(model, self.validation.examples(), self.job.batch_tokens).score(self.job.task)
        return Trained(rate, seed, checkpoint, float(score.mean()), losses.column(0).to_pylist()[-1])

    def _score_device(self) -> torch.device:
        cuda = self.device != "cpu" and torch.cuda.is_available()
        return torch.device("cuda" if cuda else "cpu")

    def clear(self) -> None:
        """Delete the runs: their results stand in the tables."""
        for folder in self._finished:
            shutil.rmtree(folder, ignore_errors=True)

    # --- tables -------------------------------------------------------------------------------------------

    def _constant(self) -> dict[str, Any]:
        job = self.job
        text = canonical_json(job.model_dump(mode="json"))
        return {
            "experiment": job.experiment,
            "setting": SETTING,
            "model": job.architecture,
            "arch": job.architecture,
            "task": job.name,
            "kind": job.task.kind,
            "train_length": job.task.train_length,
            "position": position_scheme(job.model),
            "spec_sha256": sha256_text(text),
        }

    def _scores(self, rows: Sequence[dict[str, Any]]) -> pa.Table:
        constant = self._constant() | {"split": "test", "chance": self.job.task.chance}
        constant["dataset_key"] = sha256_text(
            canonical_json([self.job.task.model_dump(mode="json"), self.job.n, self.job.seed])
        )[:16]
        for row in rows:
            row["run_id"] = self._run_id(row["learning_rate"], row["seed"])
        return result_table(rows, SCORES, **constant)

    def _sweep(self, swept: Sequence[Trained], others: Sequence[Trained], best: float) -> pa.Table:
        rates = self.job.learning_rates
        rows = [
            {
                "seed": run.seed,
                "run_id": self._run_id(run.rate, run.seed),
                "learning_rate": run.rate,
                "n": self.validation.batches * self.validation.batch_sequences,
                "score": run.score,
                "validation_loss": run.loss,
                "chosen": run.rate == best,
                "at_edge": run.rate == best and best in (rates[0], rates[-1]),
                "swept": run in swept,
            }
            for run in [*swept, *others]
        ]
        return result_table(rows, SWEEP, **self._constant(), split="validation", steps=self.job.task.steps)

    def _run_id(self, rate: float, seed: int) -> str:
        return f"{SETTING}/{self.job.name}/{self.job.architecture}/lr{rate:g}/seed{seed}"


def run_spec(job: RecallJob, rate: float, seed: int, validation_batches: int) -> RunSpec:
    """The run as the training loop knows it: half a cosine, one checkpoint, validation at the end."""
    task = job.task
    batch = task.batch_size * task.train_length
    return RunSpec.model_validate(
        {
            "architecture": job.architecture,
            "setting": SETTING,
            "seed": seed,
            "model": job.model,
            "data": {"kind": "recall", "task": task.model_dump(mode="json"), "seed": job.seed},
            "train": {
                "sequence_length": task.train_length,
                "batch_tokens": batch,
                "budgets": [task.steps * batch],
                "schedule": {
                    "kind": "cosine",
                    "warmup_fraction": job.warmup_fraction,
                    "final_fraction": 0.0,
                },
                "learning_rate": rate,
                "optimizer": job.optimizer.model_dump(mode="json"),
                "precision": job.precision,
                "validation": {
                    "tokens": validation_batches * batch,
                    "every_tokens": task.steps * batch,
                },
                "torch_threads": job.torch_threads,
            },
        }
    )


def choose(runs: Sequence[Trained], rates: Sequence[float]) -> float:
    """The learning rate whose runs validate best: by the mean score, equal ones by the mean loss."""

    def quality(rate: float) -> tuple[float, float]:
        mine = [run for run in runs if run.rate == rate]
        if any(run.score is None or run.loss is None for run in mine):
            return -1.0, -math.inf
        scores, losses = [run.score or 0.0 for run in mine], [run.loss or 0.0 for run in mine]
        return math.fsum(scores) / len(mine), -math.fsum(losses) / len(mine)

    return max(rates, key=quality)
