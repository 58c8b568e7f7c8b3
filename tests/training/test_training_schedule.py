"""Options, the plan of a run and the learning rate of each step: golden values and bad input."""

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from seqarch.errors import ConfigError
from seqarch.schema import parse
from seqarch.training.schedule import PHASES, learning_rate, phase, plan
from seqarch.training.spec import RunSpec, TrainSection, TrainSpec, checkpoint_names

CONFIG = Path(__file__).parents[2] / "config" / "config.yaml"


def spec(**changes: Any) -> TrainSpec:
    options: dict[str, Any] = {
        "sequence_length": 10,
        "batch_tokens": 100,
        "budgets": [1000, 2000],
        "schedule": {"kind": "wsd", "warmup_fraction": 0.2, "decay_fraction": 0.3},
        "learning_rate": 1.0,
        "validation": {"tokens": 100, "every_tokens": 500},
    }
    return parse(TrainSpec, options | changes, "train")


def demo() -> dict[str, Any]:
    return yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["train"]


def test_wsd_plan() -> None:
    found = [(s.branch, s.start, s.stop, s.parent, s.checkpoint) for s in plan(spec())]
    assert found == [
        ("trunk", 0, 7, None, "stable-00000007"),
        ("annealed-00000010", 7, 10, 0, "annealed-00000010"),
        ("trunk", 7, 14, 0, "stable-00000014"),
        ("annealed-00000020", 14, 20, 2, "annealed-00000020"),
    ]


def test_wsd_learning_rates_and_phases() -> None:
    options = spec()
    trunk, branch, more, last = plan(options)
    assert [learning_rate(options, trunk, step) for step in range(1, 8)] == [0.25, 0.5, 0.75, 1, 1, 1, 1]
    assert [learning_rate(options, branch, step) for step in (8, 9, 10)] == [0.75, 0.5, 0.25]
    assert {learning_rate(options, more, step) for step in range(8, 15)} == {1.0}
    assert learning_rate(options, last, 20) == pytest.approx(1 / 7)
    assert [phase(options, trunk, step) for step in (1, 4, 5, 7)] == ["warmup", "warmup", "stable", "stable"]
    assert [phase(options, branch, step) for step in (8, 9, 10)] == ["decay", "decay", "annealed"]


def test_wsd_decays_towards_its_final_fraction() -> None:
    options = spec(schedule={"kind": "wsd", "decay_fraction": 0.3, "final_fraction": 0.2})
    branch = plan(options)[1]
    assert [learning_rate(options, branch, step) for step in (8, 9, 10)] == pytest.approx([0.8, 0.6, 0.4])


def test_cosine_learning_rates_and_phases() -> None:
    options = spec(schedule={"kind": "cosine", "warmup_fraction": 0.2, "final_fraction": 0.1})
    first, second = plan(options)
    assert (first.checkpoint, second.checkpoint) == ("mid-00000010", "annealed-00000020")
    assert (second.start, second.parent, second.branch) == (10, 0, "trunk")
    rates = [learning_rate(options, first if step <= 10 else second, step) for step in range(1, 21)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[12] == pytest.approx(0.55)  # half way through 16 steps: the middle of 1 and 0.1
    assert rates[19] == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi * 15 / 16)) / 2)
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert [phase(options, second, step) for step in (11, 20)] == ["mid_cosine", "annealed"]


def test_without_warmup_the_first_step_is_at_the_peak() -> None:
    options = spec(schedule={"kind": "wsd", "warmup_fraction": 0.0})
    assert learning_rate(options, plan(options)[0], 1) == 1.0
    assert phase(options, plan(options)[0], 1) == "stable"


def test_two_budgets_that_decay_from_one_step_share_the_trunk() -> None:
    options = spec(budgets=[1000, 1100], schedule={"kind": "wsd", "decay_fraction": 0.5})  # 10, 11 steps
    assert [s.parent for s in plan(options)] == [None, 0, 0]
    assert checkpoint_names(options) == ["stable-00000005", "annealed-00000010", "annealed-00000011"]


@pytest.mark.parametrize("kind", ["wsd", "cosine"])
@pytest.mark.parametrize("budgets", [[500], [1000, 2000], [300, 400, 500, 9900]])
def test_the_names_declared_are_those_of_the_plan(kind: str, budgets: list[int]) -> None:
    options = spec(budgets=budgets, schedule={"kind": kind, "warmup_fraction": 0.01})
    assert checkpoint_names(options) == [segment.checkpoint for segment in plan(options)]
    assert {name.split("-")[0] for name in checkpoint_names(options)} <= set(PHASES)


def test_names_of_three_budgets() -> None:
    schedule = {"kind": "wsd", "warmup_fraction": 0.05, "decay_fraction": 0.2}
    sizes = {"sequence_length": 128, "batch_tokens": 1024, "budgets": [100_000, 200_000, 300_000]}
    section = parse(TrainSection, demo() | sizes | {"schedule": schedule}, "train")
    names = checkpoint_names(section.for_run("transformer"))
    assert names == [
        *("stable-00000078", "annealed-00000098"),
        *("stable-00000156", "annealed-00000195"),
        *("stable-00000234", "annealed-00000293"),
    ]


def test_overrides_apply_to_their_architecture_alone() -> None:
    section = parse(TrainSection, demo() | {"overrides": {"gla": {"learning_rate": 1e-4}}}, "train")
    assert section.for_run("gla").learning_rate == 1e-4
    assert section.for_run("mamba2") == section.for_run("transformer")
    assert section.for_run("mamba2").learning_rate == demo()["learning_rate"]
    rest = section.for_run("gla").model_dump(exclude={"learning_rate"})
    assert rest == section.for_run("mamba2").model_dump(exclude={"learning_rate"})


def test_a_dumped_spec_is_the_same_spec() -> None:
    options = parse(TrainSection, demo(), "train").for_run("gla")
    assert TrainSpec.model_validate(options.model_dump(mode="json")) == options


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_tokens": 105}, "batch_tokens 105 is not a multiple of sequence_length 10"),
        ({"micro_batch_tokens": 25}, "micro_batch_tokens 25 is not a multiple"),
        ({"budgets": [2000, 1000]}, r"must increase by at least one step each; they are \[20, 10\] steps"),
        ({"budgets": [1000, 1010]}, "must increase"),
        ({"budgets": []}, "at least one entry"),
        ({"schedule": {"kind": "wsd", "warmup_fraction": 0.45}}, "takes 9 steps .* starts after step 8"),
        ({"budgets": [100], "schedule": {"kind": "wsd"}}, "first decay starts after step 0"),
        ({"schedule": {"kind": "wsd", "decay_fraction": 0}}, "greater than 0"),
        ({"schedule": {"kind": "linear"}}, "'cosine', 'wsd'"),
        ({"learning_rate": 0}, "greater than 0"),
        ({"learning_rates": 1.0}, "did you mean 'learning_rate'"),
        ({"optimizer": {"beta": [0.9, 0.9]}}, "did you mean 'betas'"),
        ({"launcher": {"kind": "slurm"}}, "'inprocess'"),
    ],
)
def test_bad_options(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spec(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": [0, 1, 0]}, "a seed is there twice"),
        ({"seeds": []}, "at least one entry"),
        ({"settings": {"limited": "out"}}, "settings"),
        ({"settings": {"own": {}}}, "settings.own names no domain"),
        ({"settings": {"../limited": "in"}}, "should match pattern"),
        ({"overrides": {"gla": {"batch_tokens": 1}}}, "unknown key 'batch_tokens'"),
        ({"overrides": {"gla": {"budgets": [1024]}}}, "overrides.gla: .*first decay starts after step 0"),
    ],
)
def test_bad_sections(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(TrainSection, demo() | changes, "train")


def test_weights_are_all_given_or_none(make_spec: Callable[..., dict[str, Any]]) -> None:
    with pytest.raises(ConfigError, match="give every domain a weight, or none"):
        parse(
            RunSpec,
            make_spec()
            | {"data": {"kind": "tokens", "id_domains": ["terms"], "weights": {"terms": 1.0, "x": None}}},
        )


def test_the_workflow_reads_the_options_without_torch() -> None:
    code = "import seqarch.training.spec, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
