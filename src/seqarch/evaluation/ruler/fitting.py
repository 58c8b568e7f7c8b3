"""Fitting prompts to a length: the largest number of units with prompt + generation <= L, for each sample.

The search starts where the cost of the smallest prompt and a unit's usual cost say, goes on by secants and
falls back to bisection. Its start depends on the sample alone, not on its neighbours, so that samples made in
chunks equal those made at once.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from seqarch.evaluation.ruler.errors import InfeasibleLength, RulerError
from seqarch.evaluation.ruler.prompt import Counted, Prompt, Sample, Setup, Spot, Task

SECANTS = 8  # steps before plain bisection


@dataclass(frozen=True)
class Fitted:
    """The prompt that fits, and its size."""

    index: int
    prompt: Prompt
    prompt_tokens: int  # ids given to the model, special tokens and answer prefix included
    capped: bool  # it could not be longer: the task has no more units
    spans: list[tuple[tuple[int, int], int]] | None = None  # `needle_spans`, while the counts are at hand


SetUp = Callable[[Setup], Task]


def fit_all(setup: Setup, set_up: SetUp, indices: Iterable[int]) -> list[Fitted]:
    """Every sample, fitted; the order is that of `indices`.

    Raises InfeasibleLength if one of them does not fit: then its `minimum` is what all of them need.
    """
    indices = list(indices)
    task = set_up(setup)
    fitted = []
    for index in indices:
        found = fit_sample(setup, task, index)
        if found is None or setup.length < task.least_length:
            raise InfeasibleLength(setup.task, setup.length, _minimum(setup, set_up, indices))
        fitted.append(found)
    return fitted


def fit_sample(setup: Setup, task: Task, index: int) -> Fitted | None:
    """One sample in the first of its variants that fits, or None."""
    for sample in task.variants(index):
        fitted = _fit_variant(setup, task, index, sample)
        if fitted is not None:
            return fitted
    return None


def _fit_variant(setup: Setup, task: Task, index: int, sample: Sample) -> Fitted | None:
    best: list[tuple[int, Prompt, int]] = []
    around = _uncounted(setup, task)

    def build(step: int) -> int:
        prompt = sample.build(step)
        tokens = prompt_cost(setup, task, prompt)
        if tokens <= setup.length:  # of the sizes that fit, the search ends at the one it saw last
            best[:] = [(step, prompt, tokens)]
        return tokens

    def cost(step: int) -> int:
        known = sample.tokens(step) if isinstance(sample, Counted) else None
        return build(step) if known is None else known + around

    step = largest(cost, setup.length, sample.n_max, task.unit_tokens)
    if step is None:
        return None
    if not best or best[0][0] != step:
        expected, found = cost(step), build(step)
        if found != expected:
            raise RulerError(
                f"{setup.task}, sample {index}: {found} tokens, its parts make {expected}: this tokenizer's "
                "words do not end at spaces; please report it"
            )
    _, prompt, tokens = best[0]
    uncounted = 0 if setup.fixed else setup.encoder.n_special
    size, capped = tokens - task.tokens_to_generate + uncounted, step == sample.n_max
    return Fitted(index, prompt, size, capped, needle_spans(setup, prompt))


def _uncounted(setup: Setup, task: Task) -> int:
    """What is added to a prompt's tokens. Upstream does not count special tokens, `fixed` does (D9)."""
    return (setup.encoder.n_special if setup.fixed else 0) + task.tokens_to_generate


def prompt_cost(setup: Setup, task: Task, prompt: Prompt) -> int:
    """Prompt + generation in tokens."""
    return setup.encoder.count(prompt.all_pieces()) + _uncounted(setup, task)


def needle_spans(setup: Setup, prompt: Prompt) -> list[tuple[tuple[int, int], int]]:
    """For each needle its tokens [start, end) among the final ids, and the first token of its answer."""
    if not prompt.spots:
        return []
    pieces = prompt.all_pieces()
    starts = [0]
    for piece in pieces:
        starts.append(starts[-1] + len(piece))
    spans = [span for spot in prompt.spots for span in _characters(spot, starts[spot.piece])]
    found = setup.encoder.locate(pieces, spans)
    return [(needle, answer[0]) for needle, answer in zip(found[::2], found[1::2], strict=True)]


def _characters(spot: Spot, start: int) -> list[tuple[int, int]]:
    return [(start + a, start + b) for a, b in (spot.needle, spot.answer)]


def largest(cost: Callable[[int], int], limit: int, n_max: int | None, per_unit: float) -> int | None:
    """The n with cost(n) <= limit < cost(n + 1), or n_max if that fits; None if 0 does not.

    Invariant: cost(low) <= limit, and cost(high) > limit once there is a high. The interval shrinks with each
    step, so it ends, also where cost is not monotone.
    """
    low, low_cost = 0, cost(0)
    if low_cost > limit:
        return None
    base, slope = low_cost, max(per_unit, 0.1)
    high: int | None = None
    tries = 0
    while (low != n_max) and (high is None or high - low > 1):
        tries += 1
        guess = low + max(1, int((limit - low_cost) / slope))
        if high is None:
            step = max(guess - low, 1 << max(0, tries - 3))
            guess = low + step if n_max is None else min(low + step, n_max)
        elif tries > SECANTS:
            guess = (low + high) // 2
        else:
            guess = min(guess, high - 1)
        found = cost(guess)
        slope = max((found - base) / guess, 0.1)
        if found <= limit:
            low, low_cost = guess, found
        else:
            high = guess
    return low


def _minimum(setup: Setup, set_up: SetUp, indices: Sequence[int]) -> int:
    """The least length at which all samples fit.

    Tasks change with the length (cwe at 4096, the words of fwe), so what they need is asked again there.
    """

    def need(length: int) -> int:
        there = replace(setup, length=length)
        task = set_up(there)
        least = task.least_length
        for index in indices:
            *_, smallest = task.variants(index)
            least = max(least, prompt_cost(there, task, smallest.build(0)))
        return least

    length = setup.length
    while (needed := need(length)) > length:
        length = needed
    while need(length - 1) < length:
        length -= 1
    return length
