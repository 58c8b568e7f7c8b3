"""A paper's printed figures beside ours: the difference, and how sure it is.

The paper doesn't say how many samples it used; all but two of its figures lie on the grid of 250. Its own
uncertainty is Wilson's at that number (for graded scores an upper bound: no score in [0, 1] with that mean
varies more). Both intervals are combined as in Newcombe (1998, method 10): with d = a - b,

    lo = d - sqrt((a - a_lo)^2 + (b_hi - b)^2),   hi = d + sqrt((a_hi - a)^2 + (b - b_lo)^2)
"""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from seqarch.evaluation.proportions import wilson

SAMPLES = 250  # behind a printed figure, by its grid
FORMATS = 3  # behind a figure of tables 2 and 3, which are means over formats
FILES = ("huang2025_ruler_tasks", "huang2025_ruler_average", "huang2025_niah_depth", "huang2025_niah_format")
Key = tuple[Any, ...]


class Published:
    """The tables of Huang (COLING 2025, arXiv 2407.08112) by what they are about; scores 0–1."""

    def __init__(self, files: Sequence[Path]) -> None:
        found = {path.stem: list(_rows(path)) for path in files}
        self._figures: dict[Key, float] = {}
        for row in found.get("huang2025_ruler_tasks", []):
            self._add(row, row["task"], row["model"], int(row["length"]))
        for row in found.get("huang2025_ruler_average", []):
            self._add(row, "mean", row["model"], int(row["length"]))
        for row in found.get("huang2025_niah_format", []):
            self._add(row, row["format"], row["model"], int(row["length"]), float(row["depth"]))
        for row in found.get("huang2025_niah_depth", []):
            self._add(row, row["context"], row["model"], float(row["depth"]))

    def _add(self, row: Mapping[str, str], *key: Any) -> None:
        if row["score"]:  # an empty one could not be read
            self._figures[key] = float(row["score"]) / 100

    def task(self, model: str | None, task: str, length: int) -> float | None:
        """Tables 7 to 19, and table 1 for the task `mean`."""
        return self._figures.get((task, model, length))

    def cell(self, model: str | None, form: str, length: int, depth: float) -> float | None:
        """Table 4."""
        return self._figures.get((form, model, length, depth))

    def depth(self, model: str | None, length: int, training_length: int, depth: float) -> float | None:
        """Tables 2 and 3, at the training length and at twice that."""
        context = {training_length: "train", 2 * training_length: "twice"}.get(length)
        return self._figures.get((context, model, depth))


def beside(
    score: float, interval: tuple[float, float], printed: float | None, n: int = SAMPLES
) -> dict[str, float]:
    """The columns published, published_n, difference, difference_lo, difference_hi; none without a figure."""
    if printed is None:
        return {}
    low, high = wilson(round(printed * n), n)
    low, high = min(low, printed), max(high, printed)
    d, (ours_low, ours_high) = score - printed, interval
    return {
        "published": printed,
        "published_n": n,
        "difference": d,
        "difference_lo": d - math.hypot(score - ours_low, high - printed),
        "difference_hi": d + math.hypot(ours_high - score, printed - low),
    }


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
