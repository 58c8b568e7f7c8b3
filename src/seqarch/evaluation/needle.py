"""One needle at fixed depths in three formats (Huang, COLING 2025, arXiv 2407.08112), with its controls.

Depth: with b_0 … b_n the token offsets of the sentence or line boundaries of the haystack without the needle,
depth d is the boundary that minimises |b_i - d/100 b_n|, ties to the lower; 0 is b_0 and 100 is b_n exactly.
Sample j has the same key, value and haystack at all depths, and at a shorter length a prefix of the haystack.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from seqarch.evaluation.bootstrap import draws
from seqarch.evaluation.proportions import wilson
from seqarch.evaluation.ruler import oracle, records
from seqarch.evaluation.ruler.errors import InfeasibleLength, RulerError
from seqarch.evaluation.ruler.fitting import Fitted, largest, prompt_cost
from seqarch.evaluation.ruler.niah import NOISE, Niah, NiahSample
from seqarch.evaluation.ruler.prompt import Prompt, Setup
from seqarch.evaluation.ruler.streams import sample_seed

FORMATS = {
    "Essay-Word-Num": "niah_single_2",
    "Essay-Word-UUID": "niah_single_3",
    "Repeat-Word-Num": "niah_single_1",
}
NEEDLE, NO_NEEDLE, ADJACENT = "needle", "no_needle", "adjacent"
CAN_READ = 0.9  # adjacent-needle accuracy up to here: the model cannot read at all
LEAK = 0.05  # upper bound of the accuracy without a needle from here on: the data or the metric leak


@dataclass(frozen=True)
class _Placed:
    """A prompt of the grid."""

    kind: str
    depth: float | None
    actual: float | None
    prompt: Prompt


class NeedleGrid:
    """Prompts of one format at one length.

    Args:
        setup: its task is that of the format, its profile `fixed`.
        depths: per cent.
    """

    def __init__(self, setup: Setup, depths: Sequence[float]) -> None:
        self.setup, self.depths = setup, tuple(depths)
        self.niah = Niah(setup)
        self._offsets: dict[int, list[int]] = {}

    def units(self, n: int) -> list[str]:
        """The haystack's first n sentences or lines."""
        if self.niah.task.haystack == "noise":
            return [NOISE] * n
        assert self.setup.haystack is not None
        return self.setup.haystack.first_sentences(n)

    def offsets(self, n: int) -> list[int]:
        """b_0 … b_n: tokens before each boundary of the haystack without the needle."""
        if n not in self._offsets:
            pieces = self._joined(self.units(n))
            characters = [0]
            for piece in pieces:
                characters.append(characters[-1] + len(piece))
            ends = self.setup.encoder.token_ends("".join(pieces))
            self._offsets[n] = [bisect_right(ends, each) for each in characters]
        return self._offsets[n]

    def boundary(self, n: int, depth: float) -> tuple[int, float]:
        """The unit before which the needle stands, and that depth in per cent."""
        offsets = self.offsets(n)
        total = offsets[-1]
        if depth in (0, 100):
            place = 0 if depth == 0 else n
        else:
            place = min(range(n + 1), key=lambda i: abs(offsets[i] - depth / 100 * total))
        return place, 100 * offsets[place] / total

    def place(self, sample: NiahSample, n: int, depth: float) -> _Placed:
        """The needle at a depth."""
        place, actual = self.boundary(n, depth)
        units = self.units(n)
        context = self._joined([*units[:place], sample.needles[0], *units[place:]])
        return _Placed(NEEDLE, depth, actual, sample.prompt(context, [place], n))

    def controls(self, sample: NiahSample, n: int) -> list[_Placed]:
        """The haystack without the needle; the needle without a haystack."""
        empty = sample.prompt(self._joined(self.units(n)), [], n)
        alone = sample.prompt([sample.needles[0]], [0], 0)
        return [_Placed(NO_NEEDLE, None, None, empty), _Placed(ADJACENT, None, None, alone)]

    def fit(self, sample: NiahSample) -> int | None:
        """The largest haystack with which every depth fits; None if one unit does not."""

        def cost(step: int) -> int:
            prompts = (self.place(sample, 1 + step, depth).prompt for depth in self.depths)
            return max(prompt_cost(self.setup, self.niah, prompt) for prompt in prompts)

        step = largest(cost, self.setup.length, None, self.niah.unit_tokens)
        return None if step is None else 1 + step

    def least(self, sample: NiahSample) -> int:
        """The length that the sample needs."""
        prompts = (self.place(sample, 1, depth).prompt for depth in self.depths)
        return max(prompt_cost(self.setup, self.niah, prompt) for prompt in prompts)

    def _joined(self, units: Sequence[str]) -> list[str]:
        gap = "\n" if self.niah.task.haystack == "noise" else " "
        return [gap + unit if number else unit for number, unit in enumerate(units)]


def make(
    setup: Setup, format_name: str, depths: Sequence[float], n: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The records of n samples at each depth and in each control, and what the side file says of them.

    Args:
        setup: task and profile are set here.

    Raises:
        InfeasibleLength: a sample does not fit.
        ResourceError: a text is missing, or spells a special token.
        RulerError: a regular expression reads another value from a prompt: the data would be wrong.
    """
    setup = replace(setup, task=FORMATS[format_name], profile="fixed")
    records.check_resources(setup)
    grid = NeedleGrid(setup, depths)
    samples = [NiahSample(grid.niah, sample_seed(setup.seed, setup.task, j)) for j in range(n)]
    sizes = [grid.fit(sample) for sample in samples]
    if None in sizes:
        raise InfeasibleLength(format_name, setup.length, max(grid.least(sample) for sample in samples))
    header = records.describe(
        setup, grid.niah, n * (len(depths) + 2), 0, format=format_name, depths=list(depths), samples=n
    )
    lines: list[dict[str, Any]] = []
    for j, (sample, size) in enumerate(zip(samples, sizes, strict=True)):
        assert size is not None
        placed = [grid.place(sample, size, depth) for depth in depths] + grid.controls(sample, size)
        lines += [_record(grid, header, j, len(lines) + i, each) for i, each in enumerate(placed)]
    return lines, header


def _record(
    grid: NeedleGrid, header: Mapping[str, Any], j: int, index: int, placed: _Placed
) -> dict[str, Any]:
    setup, prompt = grid.setup, placed.prompt
    pieces = prompt.all_pieces()
    tokens = setup.encoder.count(pieces) + setup.encoder.n_special
    record = records.record_of(setup, grid.niah, Fitted(index, prompt, tokens, capped=False), header)
    read = oracle.read_answer(record)
    wanted = ", ".join(prompt.outputs) if placed.kind != NO_NEEDLE else ""
    if read != wanted:
        raise RulerError(f"sample {j}, {placed.kind}, depth {placed.depth}: {read!r} is read, not {wanted!r}")
    question = len(prompt.input) - len(prompt.input[prompt.input.rindex("\nWhat is") + 1 :])
    asked = setup.encoder.locate(pieces, [(question, question + 1)])[0][0]
    start, end = record["needle_spans"][0] if record["needle_spans"] else (None, None)
    return {
        **record,
        "format": header["format"],
        "control": placed.kind,
        "sample": j,
        "sample_seed": sample_seed(setup.seed, setup.task, j),
        "requested_depth": placed.depth,
        "actual_depth": placed.actual,
        "needle_token_start": start,
        "needle_token_end": end,
        "question_token_start": asked,
        "distance_to_question": None if end is None else asked - end,
    }


def cells(lines: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The table of one file: a row a depth, with Wilson's interval and what its controls say.

    Args:
        lines: its records.
        rows: their scores, from `metrics.score_file`.

    `signal` is `ok`; `no signal` if the model cannot even copy a needle from right before the question (the
    cell then carries no conclusion); `leak` if it finds the value without a needle.
    """
    correct = {row["index"]: row["score"] == 1.0 for row in rows}
    without, adjacent = (
        [correct[line["index"]] for line in lines if line["control"] == kind]
        for kind in (NO_NEEDLE, ADJACENT)
    )
    upper = wilson(sum(without), len(without))[1]
    can_read = sum(adjacent) / len(adjacent)
    # With few samples the bound is wide even at zero: then only a hit is a leak.
    leak = any(without) and upper >= LEAK
    signal = "leak" if leak else "ok" if can_read > CAN_READ else "no signal"
    table = []
    for depth in dict.fromkeys(line["requested_depth"] for line in lines if line["control"] == NEEDLE):
        here = [line for line in lines if line["requested_depth"] == depth]
        k, n = sum(correct[line["index"]] for line in here), len(here)
        low, high = wilson(k, n)
        table.append(
            {
                "format": here[0]["format"],
                "length": here[0]["length"],
                "depth": depth,
                "actual_depth": sum(line["actual_depth"] for line in here) / n,
                "n": n,
                "k_correct": k,
                "score": k / n,
                "ci_lo": low,
                "ci_hi": high,
                "fill": sum(line["fill"] for line in here) / n,
                "signal": signal,
                "no_needle": sum(without) / len(without),
                "no_needle_hi": upper,
                "adjacent": can_read,
            }
        )
    return table


def paired_difference(
    a: Mapping[int, float],
    b: Mapping[int, float],
    seed: int,
    replicates: int = 2000,
    confidence: float = 0.95,
) -> tuple[float, float, float]:
    """Mean of a - b over the same samples, with the percentile interval of a bootstrap over samples.

    Args:
        a, b: sample -> score, of two depths, or of two models.

    Raises RulerError unless both have the same samples.
    """
    if set(a) != set(b) or not a:
        raise RulerError(f"{len(a)} and {len(b)} samples: expected the same ones, scored twice")
    names = sorted(a)
    difference = np.array([a[name] - b[name] for name in names])
    weights = draws("needle", len(names), seed, replicates)
    means = weights @ difference / len(names)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(difference.mean()), float(low), float(high)


def mean_score(table: Iterable[Mapping[str, Any]]) -> float | None:
    """The mean over cells with signal; None if there is none."""
    scores = [cell["score"] for cell in table if cell["signal"] == "ok"]
    return sum(scores) / len(scores) if scores else None
