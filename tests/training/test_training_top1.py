"""Top-1 selection trains as stably as attention: at the smoke run's scale no run of three seeds and three
learning rates diverges, and each learns.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from seqarch.architecture import resolve
from seqarch.training.job import Job
from seqarch.training.loop import train
from seqarch.training.spec import RunSpec

T, STEPS, VOCAB = 64, 40, 257
SEEDS, LEARNING_RATES = (0, 1, 2), (1.5e-3, 5e-3, 1.5e-2)  # around config/smoke.yaml's
MIXERS: list[dict[str, Any]] = [
    {"mixer": "top1_element"},
    {"mixer": "top1_chunk", "chunk_size": 16},
    {"mixer": "attention"},
]


@pytest.mark.parametrize("mixer", MIXERS, ids=lambda mixer: mixer["mixer"])
def test_no_seed_and_no_learning_rate_diverges(make_job: Callable[..., Job], mixer: dict[str, Any]) -> None:
    """The trainer stops at the first loss or gradient that is not finite."""
    for seed, rate in itertools.product(SEEDS, LEARNING_RATES):
        job = make_job(
            f"{seed}-{rate}",
            seed=seed,
            sequence_length=T,
            batch_tokens=8 * T,
            budgets=[STEPS * 8 * T],
            learning_rate=rate,
            validation={"tokens": 8 * T, "every_tokens": STEPS * 8 * T},
        )
        spec = job.spec.model_dump(mode="json")
        spec["model"] = resolve("m", {"m": mixer}, {"d_model": 32, "n_layers": 2}, VOCAB, T)
        job = dataclasses.replace(job, spec=RunSpec.model_validate(spec))
        train(job)
        losses = _losses(job.run)
        assert len(losses) == STEPS
        assert all(math.isfinite(loss) for loss in losses)
        assert sum(losses[-5:]) / 5 < losses[0] - 0.5, (seed, rate)  # nats: the byte frequencies and more


def _losses(run: Path) -> list[float]:
    return pq.read_table(run / "metrics.parquet")["loss"].to_pylist()
