"""Learning rates: the grid's options, trials that really train, the choice."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqarch.cli import choice as choice_command
from seqarch.cli import sweep as sweep_command
from seqarch.errors import ConfigError
from seqarch.files import read_json, write_json
from seqarch.schema import parse
from seqarch.training.choice import ChoiceError, ChoiceJob, choose, read_choice, trial
from seqarch.training.job import Job
from seqarch.training.loop import train
from seqarch.training.spec import TrainSection
from seqarch.training.workdir import WorkDirectory

JOB = ChoiceJob(setting="limited", architecture="gla", rates=(1e-3, 3e-3, 1e-2))
SECTION: dict[str, Any] = {
    "settings": {"limited": "in"},
    "seeds": [0, 1, 2],
    "sequence_length": 16,
    "batch_tokens": 64,
    "budgets": [640, 1280],
    "schedule": {"kind": "wsd", "warmup_fraction": 0.1},
    "validation": {"tokens": 64, "every_tokens": 640},
}


def trials(*losses: float | None) -> list[dict[str, Any]]:
    return [
        {"learning_rate": rate, "validation_loss": loss, "diverged": loss is None}
        for rate, loss in zip(JOB.rates, losses, strict=True)
    ]


def section(**changes: Any) -> TrainSection:
    return parse(TrainSection, SECTION | changes, "train")


def test_the_lowest_validation_loss_is_chosen_whatever_the_order_of_the_trials() -> None:
    given = trials(2.0, 1.5, 1.9)
    assert choose(JOB, given) == choose(JOB, given[::-1])
    assert choose(JOB, given)["learning_rate"] == 3e-3
    assert not choose(JOB, given)["at_edge"]


def test_an_edge_of_the_grid_is_flagged_and_a_tie_goes_to_the_lower_rate() -> None:
    assert choose(JOB, trials(1.5, 1.5, 1.9)) | {"trials": 0} == {
        "learning_rate": 1e-3,
        "at_edge": True,
        "trials": 0,
    }
    assert choose(JOB, trials(2.0, 1.9, 1.0))["at_edge"]


def test_a_trial_that_diverged_is_not_chosen_and_next_to_it_is_no_edge() -> None:
    choice = choose(JOB, trials(2.0, 1.9, None))
    assert (choice["learning_rate"], choice["at_edge"]) == (3e-3, False)


def test_no_choice_from_nothing() -> None:
    with pytest.raises(ChoiceError, match=r"diverged at every learning rate tried: \[0.001, 0.003, 0.01\]"):
        choose(JOB, trials(None, None, None))
    with pytest.raises(ChoiceError, match=r"trials of \[0.001, 0.003\], expected"):
        choose(JOB, trials(1.0, 2.0, 3.0)[:2])


def test_trials_train_on_the_first_budget_and_a_run_on_all() -> None:
    given = section(learning_rate={"grid": [1e-3, 1e-2]})
    assert given.for_trial("gla", 1e-2).budgets == (640,)
    assert given.for_trial("gla", 1e-2).learning_rate == 1e-2
    assert given.for_run("gla").budgets == (640, 1280)


def test_an_override_replaces_the_grid_by_a_number_and_the_other_way_round() -> None:
    given = section(learning_rate={"grid": [1e-3, 1e-2]}, overrides={"gla": {"learning_rate": 2e-3}})
    assert given.grid_of("gla") is None
    assert given.for_run("gla").learning_rate == 2e-3
    other = section(learning_rate=2e-3, overrides={"gla": {"learning_rate": {"grid": [1e-3, 1e-2]}}})
    grid = other.grid_of("gla")
    assert grid is not None
    assert grid.grid == (1e-3, 1e-2)
    assert other.grid_of("transformer") is None


@pytest.mark.parametrize(
    ("rate", "message"),
    [
        ({"grid": [1e-2, 1e-3]}, "learning rates must increase"),
        ({"grid": [1e-3, 1e-3]}, "learning rates must increase"),
        ({"grid": [1e-3]}, "at least 2 entries"),
        ({"grid": [0.0, 1e-3]}, "greater than 0"),
        ({"grid": [1e-3, 1e-2], "budgets": 3}, "did you mean 'budget'"),
        ({"grid": [1e-3, 1e-2], "budget": 1}, "the warm-up takes|first decay"),
        (-1.0, "greater than 0"),
        (None, "valid"),
    ],
)
def test_bad_rates_are_refused(rate: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        section(learning_rate=rate)


def test_a_trial_keeps_no_checkpoint_and_tells_its_loss(make_job: Callable[..., Job]) -> None:
    job = replace(make_job(), trial=True)
    train(job)
    assert sorted(path.name for path in job.run.iterdir()) == [
        "metrics.parquet",
        "run.json",
        "timing.parquet",
    ]
    told = trial(job.run / "run.json")
    assert not told["diverged"]
    assert 0 < told["validation_loss"] < 6
    assert told["learning_rate"] == 1e-2


def test_a_trial_killed_before_it_is_published_goes_on_from_its_state(
    make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = replace(make_job(), trial=True)

    def kill(*given: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(WorkDirectory, "publish", kill)
        with pytest.raises(KeyboardInterrupt):
            train(job)
    train(job)
    assert read_json(job.run / "run.json")["resumed"] == 1
    assert not (job.run / "checkpoints").exists()


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_last_validation_loss_that_is_not_finite_is_divergence(tmp_path: Path, loss: float) -> None:
    spec = {"setting": "limited", "architecture": "gla", "seed": 0}
    spec["train"] = {"learning_rate": 1e-2, "budgets": [64]}
    write_json(tmp_path / "run.json", {"provenance": {"spec": spec}, "diverged": False})
    pq.write_table(pa.table({"validation_loss": [2.0, loss]}), tmp_path / "metrics.parquet")
    told = trial(tmp_path / "run.json")
    assert (told["diverged"], told["validation_loss"]) == (True, None)
    assert choose(JOB, [*trials(2.0, 1.9, 1.0)[:2], told])["learning_rate"] == 3e-3


def test_equal_trials_give_equal_choices(make_job: Callable[..., Job], tmp_path: Path) -> None:
    texts = []
    spec = {"setting": "limited", "architecture": "all-attention", "rates": [1e-2]}
    for folder in ("one", "two"):
        job = replace(make_job(f"{folder}/lr0.01"), trial=True)
        train(job)
        summary = read_json(job.run / "run.json")
        write_json(job.run / "run.json", {**summary, "finished": folder})  # another time, another host
        out = tmp_path / folder / "choice.json"
        arguments = ["--spec", json.dumps(spec), "--trials", str(job.run / "run.json"), "--out", str(out)]
        assert choice_command.main(arguments) == 0
        texts.append(out.read_bytes())
    assert texts[0] == texts[1]
    assert read_json(out)["provenance"]["inputs"].keys() == {"trial lr0.01"}


def test_a_sweep_keeps_its_own_finished_trials_and_no_others(
    make_job: Callable[..., Job],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    submitted: list[Job] = []

    def submit(jobs: list[Job], *given: Any) -> None:
        submitted.extend(jobs)
        for each in jobs:
            train(each)

    monkeypatch.setattr(sweep_command, "submit", submit)
    job = make_job()

    def sweep(spec: Any) -> int:
        arguments = ["--spec", json.dumps(spec), "--grid", "1e-3", "1e-2", "--out", str(tmp_path / "sweep")]
        return sweep_command.main(
            [*arguments, "--gpus", "0", "--manifests", *map(str, job.manifests.values())]
        )

    assert sweep(job.record["spec"]) == 0
    assert len(submitted) == 2
    assert sweep(job.record["spec"]) == 0
    assert sweep({**job.record["spec"], "seed": 1}) == 1
    assert len(submitted) == 2
    said = capsys.readouterr().err
    assert (
        f"{tmp_path}/sweep/lr0.001 holds a trial of another sweep: it differs from this one in spec." in said
    )
    assert "Choose another --out" in said


def test_a_trial_that_diverges_says_so_and_ends_well(make_job: Callable[..., Job], tmp_path: Path) -> None:
    job = replace(make_job(name="wild", learning_rate=1e30), trial=True)
    train(job)
    assert trial(job.run / "run.json") | {"seed": 0, "tokens": 0} == {
        "setting": "limited",
        "architecture": "all-attention",
        "seed": 0,
        "learning_rate": 1e30,
        "validation_loss": None,
        "diverged": True,
        "tokens": 0,
    }
    assert not list(job.work.glob("*")), "nothing is left to go on from"
    (tmp_path / "choice.json").write_text(json.dumps({"learning_rate": 0.25}))
    assert read_choice(tmp_path / "choice.json") == 0.25
    assert read_json(job.run / "run.json")["checkpoints"] == {}
