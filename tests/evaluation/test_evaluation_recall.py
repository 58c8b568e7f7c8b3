"""Recall from scratch: training through to tables, the choice of the learning rate, controls, state sizes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from pydantic import ValidationError

from seqarch.architecture import describe, resolve
from seqarch.cli import recall as cli
from seqarch.cli import recall_table
from seqarch.evaluation import recall
from seqarch.evaluation.columns import COMMON
from seqarch.evaluation.recall import Trained, choose
from seqarch.evaluation.recall_score import (
    Exam,
    check_positions,
    outcome,
    position_scheme,
    state_floats,
)
from seqarch.evaluation.recall_score import (
    signal as joint_signal,
)
from seqarch.evaluation.recall_spec import RecallJob, RecallSpec
from seqarch.mixers import registry
from seqarch.model import Decoder, PositionOutOfRange
from seqarch.tasks.batch import IGNORE
from seqarch.tasks.recall.examples import Examples
from seqarch.tasks.recall.streams import TrainingStream
from seqarch.training.errors import Interrupted, NonFiniteError

MQAR = {"kind": "mqar", "vocab": 64, "length": 32, "pairs": [2, 4], "test_lengths": [32, 64]}
MQAR |= {"test_pairs": [2, 4, 16], "steps": 6, "batch_size": 16}
NEEDLE = {"kind": "needle_lines", "length": 66, "test_lengths": [66, 134], "depths": [0, 50, 100]}
NEEDLE |= {"value_digits": 2, "steps": 6, "batch_size": 16}
COPY = {"kind": "copying", "letters": [5, 8], "test_letters": [8, 12], "steps": 6, "batch_size": 16}
ATTENTION = {"mixer": "attention", "conv": True, "position": "none"}


def make_job(task: dict[str, Any], entry: dict[str, Any], width: int = 32, **options: Any) -> dict[str, Any]:
    """The slice of a job, as the workflow hands it over."""
    section = {"d_model": width, "n_layers": 2, "seeds": [0, 1], "learning_rates": [1e-3, 1e-2]}
    section |= {"tasks": {"task": task}, "n": 40, "n_validation": 32} | options
    spec = RecallSpec.model_validate(section)
    chosen = spec.tasks["task"]
    sizes = {"d_model": width, "n_layers": spec.n_layers}
    model = resolve("a", {"a": entry}, sizes, chosen.vocab_size, chosen.train_length)
    job = {"experiment": "test", "name": "task", "architecture": "a", "model": model}
    return job | {"task": chosen.model_dump(mode="json"), **spec.options()}


def run(job: dict[str, Any], folder: Path) -> tuple[Any, Any]:
    """The two tables of the step."""
    arguments = ["--spec", json.dumps(job), "--work", str(folder / "work"), "--out", str(folder / "out")]
    assert cli.main([*arguments, "--device", "cpu"]) == 0
    return tuple(
        pq.read_table(folder / "out" / f"{name}.parquet").to_pandas() for name in ("scores", "sweep")
    )


# --- the whole step ---------------------------------------------------------------------------------------


def test_attention_learns_the_smoke_tier(tmp_path: Path) -> None:
    """Section 6.4: vocabulary 64, sequences of 32, 2 and 4 pairs, width 32, two layers, 300 steps of 64."""
    task = MQAR | {"steps": 300, "batch_size": 64}
    job = make_job(task, ATTENTION, seeds=[1], learning_rates=[1.5e-2], n=128, n_validation=64)
    scores, sweep = run(job, tmp_path)
    trained = scores[(scores["length"] == 32) & (scores["n_pairs"] <= 4)]
    assert len(trained) == 2
    assert (trained["score"] >= 0.95).all(), trained[["n_pairs", "score"]]
    assert (scores["signal"] == "ok").all()
    assert (scores["adjacent"] > 0.9).all()
    assert (scores["shuffled"] < 0.1).all()
    assert sweep["score"].item() > 0.95


def test_tables_hold_every_cell_of_the_best_rate_and_every_rate_of_the_sweep(tmp_path: Path) -> None:
    job = make_job(MQAR, {"mixer": "gla"}, sweep_seeds=[1], learning_rates=[1e-4, 1e-3, 1e-2])
    scores, sweep = run(job, tmp_path)
    assert set(COMMON.names) <= set(scores)
    cells = {(32, 2), (32, 4), (64, 2), (64, 4), (64, 16)}  # 16 pairs need 64 tokens
    assert {(row.length, row.n_pairs) for row in scores.itertuples()} == cells
    assert len(scores) == 2 * len(cells)
    assert set(scores["seed"]) == {0, 1}
    assert ((scores["ci_lo"] <= scores["score"]) & (scores["score"] <= scores["ci_hi"])).all()
    assert scores["chance"].unique() == [1 / 32]
    assert (scores["oracle"] == 1).all()
    best = scores["learning_rate"].unique().item()
    assert sorted(zip(sweep["learning_rate"], sweep["seed"], strict=True)) == sorted(
        [(rate, 1) for rate in (1e-4, 1e-3, 1e-2)] + [(best, 0)]
    )
    assert set(sweep.loc[sweep["chosen"], "learning_rate"]) == {best}
    assert sweep["at_edge"].tolist() == [each == best and best != 1e-3 for each in sweep["learning_rate"]]
    assert sweep["swept"].tolist() == [each == 1 for each in sweep["seed"]]
    assert set(sweep["split"]) == {"validation"}
    assert set(scores["split"]) == {"test"}
    assert not list((tmp_path / "work").iterdir()), "nothing is left behind"


@pytest.mark.parametrize("task", [NEEDLE, COPY], ids=["needle", "copy"])
def test_other_tasks_and_equal_jobs_give_equal_bytes(task: dict[str, Any], tmp_path: Path) -> None:
    job = make_job(task, {"mixer": "deltanet"}, seeds=[0], learning_rates=[3e-3])
    scores, _ = run(job, tmp_path / "a")
    run(job, tmp_path / "b")
    for name in ("scores", "sweep"):
        a, b = (tmp_path / each / "out" / f"{name}.parquet" for each in "ab")
        assert a.read_bytes() == b.read_bytes()
    if task is NEEDLE:
        assert {(row.length, row.depth) for row in scores.itertuples()} == {
            (length, depth) for length in (66, 134) for depth in (0, 50, 100)
        }
        assert (scores["k_correct"] / scores["n"] == scores["score"]).all()
        assert scores["no_needle"].notna().all()
        assert (scores["signal"] == "no signal").all(), "six steps teach no reading"
    else:
        assert scores["n_pairs"].tolist() == [8, 12]
        assert scores["signal"].isna().all(), "there are no controls"


def test_an_interrupted_job_goes_on_and_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(MQAR, {"mixer": "retnet"}, seeds=[0], learning_rates=[1e-3, 2e-3, 4e-3])
    run(job, tmp_path / "whole")
    whole, started = recall.train, list[float]()

    def train(each: Any) -> None:
        started.append(each.spec.train.learning_rate)
        if started == [1e-3, 2e-3]:
            raise Interrupted("stopped by SIGTERM")
        whole(each)

    monkeypatch.setattr(recall, "train", train)
    arguments = ["--spec", json.dumps(job), "--device", "cpu", "--work", str(tmp_path / "parts" / "work")]
    assert cli.main([*arguments, "--out", str(tmp_path / "parts" / "out")]) == 75
    assert not (tmp_path / "parts" / "out").exists()
    run(job, tmp_path / "parts")
    assert started == [1e-3, 2e-3, 2e-3, 4e-3], "the finished run is not made again"
    for name in ("scores", "sweep"):
        a, b = (tmp_path / each / "out" / f"{name}.parquet" for each in ("whole", "parts"))
        assert a.read_bytes() == b.read_bytes()


def test_a_rate_at_which_training_breaks_down_is_reported_and_not_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = recall.train

    def train(job: Any) -> None:
        if job.spec.train.learning_rate > 5e-3:
            raise NonFiniteError("loss nan")
        whole(job)

    monkeypatch.setattr(recall, "train", train)
    scores, sweep = run(make_job(MQAR, {"mixer": "attention"}, learning_rates=[1e-3, 1e-2]), tmp_path)
    assert scores["learning_rate"].unique() == [1e-3]
    broken = sweep[sweep["learning_rate"] == 1e-2]
    assert len(broken) == 2
    assert broken["score"].isna().all()
    assert not broken["chosen"].any()


def test_tables_are_gathered_in_order(tmp_path: Path) -> None:
    for name, mixer in (("b", "gla"), ("a", "attention")):
        job = make_job(MQAR, {"mixer": mixer}, seeds=[0], learning_rates=[1e-3]) | {"architecture": name}
        run(job, tmp_path / name)
    paths = {
        kind: [str(tmp_path / name / "out" / f"{kind}.parquet") for name in "ba"]
        for kind in ("scores", "sweep")
    }
    arguments = ["--spec", '{"experiment": "test"}', "--out", str(tmp_path / "recall")]
    assert recall_table.main([*arguments, "--scores", *paths["scores"], "--sweeps", *paths["sweep"]]) == 0
    table = pq.read_table(tmp_path / "recall.parquet").to_pandas()
    assert table["arch"].tolist() == ["a"] * 5 + ["b"] * 5
    assert table["n_pairs"].tolist() == [2, 4, 2, 4, 16] * 2
    assert len(pq.read_table(tmp_path / "recall_sweep.parquet")) == 2
    assert (tmp_path / "recall_sweep.csv").is_file()


# --- parts ------------------------------------------------------------------------------------------------


def trained(rate: float, *outcomes: tuple[float | None, float | None]) -> list[Trained]:
    return [Trained(rate, seed, None, *each) for seed, each in enumerate(outcomes)]


def test_the_best_rate_is_that_of_the_best_mean_and_of_the_lower_loss_among_equals() -> None:
    runs = trained(1.0, (0.2, 1.0), (0.9, 1.0)) + trained(2.0, (0.6, 3.0), (0.6, 3.0))
    assert choose(runs, (1.0, 2.0)) == 2.0
    runs = trained(1.0, (1.0, 0.2), (1.0, 0.2)) + trained(2.0, (1.0, 0.1), (1.0, 0.2))
    assert choose(runs, (1.0, 2.0)) == 2.0
    runs = trained(1.0, (0.1, 9.0), (0.1, 9.0)) + trained(2.0, (1.0, 0.1), (None, None))
    assert choose(runs, (1.0, 2.0)) == 1.0


def test_controls_say_whether_a_cell_has_signal() -> None:
    assert joint_signal({}, 0.0, 200) is None
    assert joint_signal({"adjacent": 0.95, "no_needle": 0.0}, 1e-4, 200) == "ok"
    assert joint_signal({"adjacent": 0.9, "no_needle": 0.0}, 1e-4, 200) == "no signal"
    assert joint_signal({"adjacent": 1.0, "no_needle": 0.2}, 1e-4, 200) == "leak"
    assert joint_signal({"adjacent": 0.2, "no_needle": 0.2}, 1e-4, 200) == "leak"
    assert joint_signal({"adjacent": 1.0, "no_needle": 1 / 200}, 1e-4, 200) == "ok", "a lucky guess"
    assert joint_signal({"adjacent": 1.0, "shuffled": 0.04}, 1 / 32, 200) == "ok", "about a guess"
    assert joint_signal({"adjacent": 1.0, "shuffled": 0.3}, 1 / 32, 200) == "leak"


class Parrot(torch.nn.Module):
    """Says at every place what stands there."""

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(vocab, 2)
        self.vocab = vocab

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.nn.functional.one_hot(ids, self.vocab).float(), None


def test_a_sequence_counts_by_the_share_and_by_whether_all_is_right() -> None:
    inputs = np.array([[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]])
    targets = np.array([[IGNORE, 2, 3, IGNORE], [IGNORE, 2, 4, IGNORE], [2, 3, 4, 4]])
    found = outcome(Parrot(8), [Examples(inputs, targets)], batch_tokens=4)  # type: ignore[arg-type]
    assert found.accuracy.tolist() == [1.0, 0.5, 0.25]
    assert found.exact.tolist() == [1.0, 0.0, 0.0]
    whole = outcome(Parrot(8), [Examples(inputs, targets)], batch_tokens=1000)  # type: ignore[arg-type]
    assert np.array_equal(found.accuracy, whole.accuracy)


def test_greedy_decoding_says_what_teacher_forcing_calls_exact() -> None:
    """Fed its own digits, a model answers exactly the sequences whose forced digits are all right."""
    spec = RecallJob.model_validate(make_job(NEEDLE | {"steps": 150}, ATTENTION)).task
    resolved = resolve("a", {"a": ATTENTION}, {"d_model": 32, "n_layers": 2}, spec.vocab_size, 66)
    torch.manual_seed(0)
    model = Decoder(resolved)
    model.init_weights(0)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    stream = TrainingStream(spec, 32, 0)
    for step in range(150):
        batch = stream.batch(step)
        loss = torch.nn.functional.cross_entropy(
            model(batch.inputs)[0].flatten(0, 1), batch.targets.flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    tests = Exam(spec, 100, 0)
    case, examples = next(iter(tests._cells.items()))
    exact = outcome(model, [examples], 10_000).exact
    prompt = torch.from_numpy(examples.inputs[:, : case.length - spec.value_digits + 1])
    for _ in range(spec.value_digits):
        with torch.no_grad():
            prompt = torch.cat([prompt, model(prompt)[0][:, -1:].argmax(-1)], dim=1)
    said = prompt[:, -spec.value_digits :].numpy()
    wanted = examples.targets[:, -spec.value_digits :]
    assert (said == wanted).all(axis=1).astype(float).tolist() == exact.tolist()
    assert 0 < exact.sum() < 100, "a comparison of nothing"


@pytest.mark.parametrize("mixer", registry.names())
def test_every_mixer_learns_and_its_state_is_counted(mixer: str) -> None:
    job = RecallJob.model_validate(make_job(MQAR, {"mixer": mixer}, width=16))
    model = Decoder(job.model)
    model.eval()
    rows = Exam(job.task, 4, 0).rows(model, job.model, 4096)
    assert [row["n_params"] for row in rows] == [model.num_params()] * 5
    assert rows[0]["n_params_no_embed"] == model.num_params(non_embedding=True)
    for row in rows:
        assert row["state_bytes"] == describe(job.model, row["length"])["state_bytes"]
        assert 2 * row["state_floats"] <= row["state_bytes"] * 1.6
        assert row["state_bytes"] <= 4 * row["state_floats"] * 1.6
    grows = rows[-1]["state_floats"] > rows[0]["state_floats"]
    assert grows == mixer.startswith(("attention", "top1"))


def test_state_floats_of_attention_are_its_keys_and_values() -> None:
    entry = {"mixer": "attention", "n_heads": 2, "head_dim": 8}
    model = Decoder(resolve("a", {"a": entry}, {"d_model": 16, "n_layers": 3}, 64, 32))
    assert state_floats(model, 32) == 3 * 2 * 32 * 16


def test_learned_positions_beyond_training_are_refused_before_training() -> None:
    job = RecallJob.model_validate(make_job(MQAR, {"mixer": "attention", "position": "learned"}))
    with pytest.raises(PositionOutOfRange, match="the test has 64 tokens, the model 32 learned positions"):
        check_positions(job.model, job.task)
    inside = MQAR | {"test_lengths": [32], "test_pairs": [2]}
    job = RecallJob.model_validate(make_job(inside, {"mixer": "attention", "position": "learned"}))
    check_positions(job.model, job.task)
    assert position_scheme(job.model) == "learned"


def test_learned_positions_fail_the_step_with_a_typed_error(tmp_path: Path, capsys: Any) -> None:
    job = make_job(MQAR, {"mixer": "attention", "position": "learned"})
    arguments = ["--spec", json.dumps(job), "--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]
    assert cli.main(arguments) != 0
    assert "learned positions" in capsys.readouterr().err
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rates": [1e-2, 1e-3]}, "learning_rates must increase"),
        ({"sweep_seeds": [2]}, "are not among seeds"),
        ({"seeds": [0, 0]}, "a seed is there twice"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        make_job(MQAR, ATTENTION, **options)
