"""Scores of predictions: RULER's two string matches, and what tells when they mislead.

Formulas (NVIDIA/RULER, scripts/eval/synthetic/constants.py), r in references, p the prediction, both in lower
case, [r in p] = 1 if r is a substring of p:

    all(p)  = mean over r of [r in p]        part(p) = max over r of [r in p]
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from seqarch.evaluation.proportions import wilson
from seqarch.evaluation.ruler.errors import RulerError
from seqarch.evaluation.ruler.spec import QA_TASKS, TASKS

LLAMA_2_AT_4K = 85.6  # the mean score that an effective length has to reach (RULER, section 4)
_CONTROL = re.compile("[\x00-\x1f]")


def post_process(prediction: str) -> str:
    """RULER's clean-up: control characters become line ends, white space at both ends goes."""
    return _CONTROL.sub("\n", prediction.strip()).strip()


def found(reference: str, prediction: str) -> bool:
    """Whether the reference is a substring, case ignored."""
    return reference.lower() in prediction.lower()


def found_as_word(reference: str, prediction: str) -> bool:
    """The same, not inside a longer word: `act` is not in `action`."""
    return re.search(rf"(?<!\w){re.escape(reference.lower())}(?!\w)", prediction.lower()) is not None


def is_binary(task: str, n_references: int) -> bool:
    """Whether a sample's score is 0 or 1."""
    return task in QA_TASKS or n_references == 1


def score_sample(task: str, references: Sequence[str], prediction: str) -> dict[str, Any]:
    """One sample: `score`, `score_word` (0–1), `null` (nothing was said), `yesno` (a reference is one)."""
    prediction = post_process(prediction)
    merge = max if task in QA_TASKS else _mean
    return {
        "score": merge([float(found(each, prediction)) for each in references]),
        "score_word": merge([float(found_as_word(each, prediction)) for each in references]),
        "null": prediction == "",
        "yesno": any(each.strip().lower() in ("yes", "no") for each in references),
    }


def score_file(
    records: Sequence[Mapping[str, Any]], predictions: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Rows of all samples, in the records' order.

    Args:
        records: samples with `index`, `task`, `outputs`.
        predictions: with `index`, `pred`, `n_new_tokens`, `hit_max_tokens`, in any order.

    Raises RulerError unless there is one prediction for each sample.
    """
    by_index = {each["index"]: each for each in predictions}
    wanted = {each["index"] for each in records}
    if len(by_index) != len(predictions) or set(by_index) != wanted:
        missing, extra = sorted(wanted - set(by_index))[:5], sorted(set(by_index) - wanted)[:5]
        raise RulerError(
            f"{len(predictions)} predictions for {len(records)} samples (missing {missing}, unknown "
            f"{extra}); "
            "expected one each, by index: predict again from these samples"
        )
    rows = []
    for record in records:
        prediction = by_index[record["index"]]
        scores = score_sample(record["task"], record["outputs"], prediction["pred"])
        kept = {name: prediction[name] for name in ("n_new_tokens", "hit_max_tokens")}
        rows.append({"index": record["index"], **scores, **kept, "ambiguous": record["ambiguous"]})
    return rows


def summarise(
    task: str, records: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """One file's row of the result table: mean scores 0–1, an interval, counts of what to look at.

    Wilson's interval where samples are 0 or 1; elsewhere none (graded scores are bootstrapped over samples
    where they are compared).
    """
    n = len(rows)
    binary = all(is_binary(task, len(record["outputs"])) for record in records)
    k = sum(row["score"] == 1.0 for row in rows)
    low, high = wilson(k, n) if binary else (None, None)
    return {
        "task": task,
        "n": n,
        "k_correct": k,
        "score": _mean([row["score"] for row in rows]),
        "ci_lo": low,
        "ci_hi": high,
        "score_word": _mean([row["score_word"] for row in rows]),
        "n_null": sum(row["null"] for row in rows),
        "n_hit_max_tokens": sum(bool(row["hit_max_tokens"]) for row in rows),
        "n_yesno_refs": sum(row["yesno"] for row in rows),
        "n_ambiguous": sum(row["ambiguous"] for row in rows),
        "fill": _mean([record["fill"] for record in records]),
        "used_tokens": round(_mean([record["used_tokens"] for record in records])),
    }


def percent(score: float) -> float:
    """As RULER prints it: per cent, two decimals."""
    return round(100 * score, 2)


def length_mean(scores: Mapping[str, float]) -> tuple[str, float, tuple[str, ...]]:
    """The mean over tasks at one length: its column's name, the mean, the tasks in it.

    Only the mean over all 13 is `mean`; else it is `partial_mean`, which is no RULER score.

    Raises RulerError without any task.
    """
    tasks = tuple(task for task in TASKS if task in scores)
    if not tasks or len(tasks) != len(scores):
        raise RulerError(f"tasks {sorted(scores)}: expected some of {', '.join(TASKS)}")
    name = "mean" if len(tasks) == len(TASKS) else "partial_mean"
    return name, _mean([scores[task] for task in tasks]), tasks


def averages(means: Mapping[int, float]) -> dict[str, float]:
    """Over lengths: `avg`; `wavg_inc`, weights 1 … m from the shortest on; `wavg_dec`, weights m … 1."""
    values = [means[length] for length in sorted(means)]
    weights = range(1, len(values) + 1)
    total = sum(weights)
    return {
        "avg": _mean(values),
        "wavg_inc": sum(w * v for w, v in zip(weights, values, strict=True)) / total,
        "wavg_dec": sum(w * v for w, v in zip(reversed(weights), values, strict=True)) / total,
    }


def effective_length(means: Mapping[int, float], threshold: float = LLAMA_2_AT_4K) -> int | None:
    """The longest length whose mean (per cent) reaches the threshold; None if none does (`< shortest`)."""
    return max((length for length, mean in means.items() if mean >= threshold), default=None)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
