"""Prompts fill their length exactly as far as they can, or the error names the least length (3.9)."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqarch.evaluation.ruler import fitting
from seqarch.evaluation.ruler.encoder import PromptEncoder
from seqarch.evaluation.ruler.errors import InfeasibleLength
from seqarch.evaluation.ruler.fitting import Fitted, fit_all, largest, prompt_cost
from seqarch.evaluation.ruler.fwe import Fwe
from seqarch.evaluation.ruler.prompt import Prompt, Sample, Setup, Task
from seqarch.evaluation.ruler.spec import TASKS
from seqarch.evaluation.ruler.tasks import set_up

MakeSetup = Callable[..., Setup]
N = 3
MAX_CALLS = 64


def fit(setup: Setup, n: int = N) -> list[Fitted]:
    return fit_all(setup, set_up, range(n))


def check_fit(setup: Setup, fitted: Fitted, task: Task) -> None:
    """Within the length, and one unit more is not; nearly full where a unit is small."""
    whole = len(setup.encoder.encode("".join(fitted.prompt.all_pieces())))
    assert whole == fitted.prompt_tokens
    used = (whole if setup.fixed else whole - setup.encoder.n_special) + task.tokens_to_generate  # D9
    assert used <= setup.length
    sample = next(each for each in task.variants(fitted.index) if made_by(each, fitted.prompt))
    if fitted.capped:
        assert step_of(task, sample, fitted.prompt) == sample.n_max
        return
    longer = prompt_cost(setup, task, sample.build(step_of(task, sample, fitted.prompt) + 1))
    assert longer > setup.length
    if longer - used < 0.05 * setup.length:
        assert used >= 0.95 * setup.length


def made_by(sample: Sample, prompt: Prompt) -> bool:
    return sample.build(0).notes == prompt.notes  # vt's variants say how long their example is


def step_of(task: Task, sample: Sample, prompt: Prompt) -> int:
    if isinstance(task, Fwe):
        return next(step for step in range(100_000) if task.n_of(step) == prompt.n_units)
    return prompt.n_units - sample.build(0).n_units


@pytest.mark.parametrize("length", [64, 128, 256, 512, 1024])
@pytest.mark.parametrize("profile", ["fixed", "faithful"])
@pytest.mark.parametrize("task", TASKS)
def test_every_task_ends_with_samples_or_the_least_length(
    make_setup: MakeSetup, encoders: dict[str, PromptEncoder], task: str, profile: str, length: int
) -> None:
    """Faults 1, 2, 3, 6, 7, 18, 19, 20, 21, 45, 47, 48, 50."""
    for kind in ("byte", "bpe-1k"):
        setup = make_setup(task, length, profile=profile, encoder=encoders[kind])
        minimum = least(setup)
        if minimum is None:
            samples = fit(setup)
            assert [each.index for each in samples] == list(range(N))
            check_fit(setup, samples[0], set_up(setup))
        else:
            assert minimum > length


def least(setup: Setup) -> int | None:
    """None: it fits."""
    try:
        fit(setup)
    except InfeasibleLength as error:
        return error.minimum
    return None


@pytest.mark.parametrize("profile", ["fixed", "faithful"])
@pytest.mark.parametrize("task", TASKS)
def test_the_least_length_fits_and_one_token_less_does_not(
    make_setup: MakeSetup, task: str, profile: str
) -> None:
    """Fault 3: for qa_2 the least length has all ten gold documents."""
    setup = make_setup(task, 64, profile=profile)
    with pytest.raises(InfeasibleLength) as caught:
        fit(setup)
    minimum = caught.value.minimum
    assert len(fit(replace(setup, length=minimum))) == N
    with pytest.raises(InfeasibleLength):
        fit(replace(setup, length=minimum - 1))


@pytest.mark.parametrize("task", TASKS)
def test_long_prompts_are_full(make_setup: MakeSetup, encoders: dict[str, PromptEncoder], task: str) -> None:
    """Fault 40: the essays are repeated; cwe and qa say when they have no more."""
    for length, kind in [(4096, "bpe-20k"), (4096, "metaspace"), (16_384, "bpe-20k")]:
        setup = make_setup(task, length, encoder=encoders[kind])
        (sample,) = fit(setup, 1)
        used = sample.prompt_tokens + set_up(setup).tokens_to_generate
        assert used <= length
        assert sample.capped or used >= 0.95 * length, (length, kind, used)
        assert not sample.capped or task in ("qa_1", "qa_2")


@pytest.mark.parametrize("task", TASKS)
def test_a_sample_costs_few_counts(make_setup: MakeSetup, monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    calls = 0
    real = fitting.prompt_cost

    def counted(setup: Setup, task: Task, prompt: Prompt) -> int:
        nonlocal calls
        calls += 1
        return real(setup, task, prompt)

    monkeypatch.setattr(fitting, "prompt_cost", counted)
    for length in (1024, 4096):
        setup = make_setup(task, length)
        for index in range(3):
            calls = 0
            fitting.fit_sample(setup, set_up(setup), index)
            assert 0 < calls <= MAX_CALLS


@settings(max_examples=300, deadline=None)
@given(
    units=st.lists(st.integers(1, 60), min_size=1, max_size=60),
    jitter=st.lists(st.integers(-40, 40), min_size=1, max_size=7),
    base=st.integers(0, 500),
    limit=st.integers(0, 30_000),
    n_max=st.one_of(st.none(), st.integers(0, 2000)),
    per_unit=st.floats(0.0, 1000.0),
)
def test_the_search_always_ends_at_a_size_whose_successor_does_not_fit(
    units: list[int], jitter: list[int], base: int, limit: int, n_max: int | None, per_unit: float
) -> None:
    """Fault 1 and 50, also for costs that are not monotone and for any first guess."""
    calls = 0

    def cost(n: int) -> int:
        nonlocal calls
        calls += 1
        rounds, rest = divmod(n, len(units))
        return base + rounds * sum(units) + sum(units[:rest]) + jitter[n % len(jitter)]

    n = largest(cost, limit, n_max, per_unit)
    assert calls <= MAX_CALLS
    if n is None:
        assert cost(0) > limit
        return
    assert cost(n) <= limit
    assert n == n_max or cost(n + 1) > limit


def test_chunks_equal_the_whole(make_setup: MakeSetup) -> None:
    """Fault 26: samples don't depend on those before them, nor on the file they are made for."""
    for task in TASKS:
        setup = make_setup(task, 1400)
        whole = fit_all(setup, set_up, range(6))
        parts = [fit_all(setup, set_up, part) for part in (range(3), range(3, 6))]
        assert [*parts[0], *parts[1]] == whole
