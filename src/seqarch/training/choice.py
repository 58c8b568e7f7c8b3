"""The learning rate of an architecture: the one of its grid with the lowest in-domain validation loss.

Test documents have no part in it: they are for reporting.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from seqarch.files import read_json
from seqarch.schema import Spec
from seqarch.training.errors import TrainingError


class ChoiceJob(Spec):
    """`cli.choice`: whose learning rate is chosen, from which."""

    setting: str
    architecture: str
    rates: tuple[float, ...]


class ChoiceError(TrainingError):
    """No learning rate can be chosen from these trials."""


def trial(run: Path) -> dict[str, Any]:
    """What one trial came to: its learning rate, last validation loss, and whether it diverged. A last
    validation loss that is not finite is divergence too.

    Args:
        run: `run.json` of the trial; `metrics.parquet` lies beside it.
    """
    summary = read_json(run)
    spec = summary["provenance"]["spec"]
    losses = pq.read_table(run.with_name("metrics.parquet"), columns=["validation_loss"])[0]
    last = None if summary["diverged"] else losses[-1].as_py()
    diverged = last is None or not math.isfinite(last)
    return {
        "setting": spec["setting"],
        "architecture": spec["architecture"],
        "seed": spec["seed"],
        "learning_rate": spec["train"]["learning_rate"],
        "validation_loss": None if diverged else last,
        "diverged": diverged,
        "tokens": spec["train"]["budgets"][-1],
    }


def choose(job: ChoiceJob, trials: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The choice and what it was chosen from.

    Raises ChoiceError if a trial is missing, or none came to an end.
    """
    trials = sorted(trials, key=lambda each: each["learning_rate"])
    found = tuple(each["learning_rate"] for each in trials)
    if found != tuple(sorted(job.rates)):
        raise ChoiceError(f"{job.architecture}: trials of {list(found)}, expected {sorted(job.rates)}")
    whole = [each for each in trials if not each["diverged"]]
    if not whole:
        raise ChoiceError(
            f"{job.architecture} ({job.setting}) diverged at every learning rate tried: {list(found)}; add "
            "lower ones to its grid"
        )
    # Ties go to the lower rate.
    best = min(whole, key=lambda each: (each["validation_loss"], each["learning_rate"]))
    return {
        "learning_rate": best["learning_rate"],
        "at_edge": best["learning_rate"] in (found[0], found[-1]),
        "trials": [dict(each) for each in trials],
    }


def read_choice(path: Path) -> float:
    """The learning rate that was chosen."""
    return float(read_json(path)["learning_rate"])
