"""Whole runs of the real loop on a tiny decoder."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from seqarch.files import sha256_file
from seqarch.model import Decoder
from seqarch.provenance import read_record
from seqarch.tasks.language_modelling import LanguageModelling
from seqarch.training import loop
from seqarch.training.checkpoint import load_model
from seqarch.training.data import DataError
from seqarch.training.errors import NonFiniteError, WorkDirectoryError
from seqarch.training.job import Job
from seqarch.training.loop import train
from seqarch.training.numerics import numerics
from seqarch.training.spec import checkpoint_names

MakeJob = Callable[..., Job]


def rows(run: Path) -> list[dict]:
    return pq.read_table(run / "metrics.parquet").to_pylist()


def test_a_run_leaves_the_promised_files_and_nothing_else(make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job()
    train(job)
    names = checkpoint_names(job.spec.train)
    assert names == ["stable-00000007", "annealed-00000010", "stable-00000014", "annealed-00000020"]
    found = sorted(str(path.relative_to(job.run)) for path in job.run.rglob("*") if path.is_file())
    assert found == sorted(
        [f"checkpoints/{name}.safetensors" for name in names]
        + ["metrics.parquet", "run.json", "timing.parquet"]
    )
    assert list(job.work.iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"run", "work"}  # no leftover of the move


def test_the_metrics_are_those_of_the_plan(make_job: MakeJob) -> None:
    job = make_job()
    train(job)
    table = rows(job.run)
    trunk = [row for row in table if row["branch"] == "trunk"]
    assert [row["step"] for row in trunk] == list(range(1, 15))
    assert [row["phase"] for row in trunk] == ["warmup"] * 2 + ["stable"] * 12
    for name, steps in (("annealed-00000010", [8, 9, 10]), ("annealed-00000020", list(range(15, 21)))):
        branch = [row for row in table if row["branch"] == name]
        assert [row["step"] for row in branch] == steps
        assert [row["phase"] for row in branch] == ["decay"] * (len(steps) - 1) + ["annealed"]
    assert all(row["tokens"] == row["step"] * 64 for row in table)
    due = [row["step"] % 5 == 0 or row["step"] in (7, 14) for row in table]
    assert [row["validation_loss"] is not None for row in table] == due
    assert all(row["grad_norm"] > 0 for row in table)
    assert {(row["arch"], row["setting"], row["seed"]) for row in table} == {("all-attention", "limited", 0)}
    timing = pq.read_table(job.run / "timing.parquet").to_pylist()
    assert [row["step"] for row in timing] == [row["step"] for row in table]
    assert all(row["flops_per_second"] > 0 and row["mfu"] is None for row in timing)


def test_the_loss_starts_at_log_vocabulary_and_falls(make_job: MakeJob) -> None:
    job = make_job(budgets=[120 * 64], learning_rate=1e-2)
    train(job)
    table = rows(job.run)
    assert table[0]["loss"] == pytest.approx(math.log(257), rel=0.02)
    counts = torch.bincount(torch.tensor(list((Path(__file__).parents[2] / "LICENSE").read_bytes()))).double()
    shares = counts[counts > 0] / counts.sum()
    unigram = -(shares * shares.log()).sum().item()
    assert table[-1]["validation_loss"] < unigram


def test_equal_runs_are_byte_identical(make_job: MakeJob) -> None:
    first, second = make_job("first"), make_job("second")
    train(first)
    train(second)
    for path in sorted(first.run.rglob("*")):
        if path.suffix == ".safetensors" or path.name == "metrics.parquet":
            assert sha256_file(path) == sha256_file(second.run / path.relative_to(first.run)), path.name


def test_each_branch_is_a_run_that_only_decays_earlier(make_job: MakeJob) -> None:
    """Bitwise against a loop written down plainly: no segments, no states, each budget on its own."""
    job = make_job()
    train(job)
    spec, domains = job.spec, job.record["spec"]["data"]["weights"]
    for total, decay in ((10, 3), (20, 6)):
        with numerics(1, torch.device("cpu")):
            model = Decoder(spec.model)
            model.init_weights(spec.seed)
            optimizer = torch.optim.AdamW(model.decay_groups(0.1), betas=(0.9, 0.95), eps=1e-8, fused=True)
            data = LanguageModelling(
                {name: job.manifests[f"train/{name}"] for name in domains}, None, 16, 4, spec.seed
            )
            for step in range(1, total + 1):
                left = total - step + 1
                lr = 1e-2 * (step / 2 if step < 2 else 1.0 if left > decay else left / (decay + 1))
                for group in optimizer.param_groups:
                    group["lr"] = lr
                batch = data.batch(step - 1)
                logits, _ = model(batch.inputs)
                loss = torch.nn.functional.cross_entropy(
                    logits.flatten(0, 1), batch.targets.flatten(), reduction="sum"
                )
                optimizer.zero_grad()
                (loss / batch.targets.numel()).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
        trained, metadata = load_model(job.run / "checkpoints" / f"annealed-{total:08d}.safetensors")
        assert (metadata.step, metadata.tokens, metadata.phase) == (total, total * 64, "annealed")
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, trained.state_dict()[name]), (total, name)


def test_cosine_runs_straight_through(make_job: MakeJob) -> None:
    job = make_job(schedule={"kind": "cosine", "warmup_fraction": 0.1})
    train(job)
    table = rows(job.run)
    assert [row["step"] for row in table] == list(range(1, 21))
    assert [row["phase"] for row in table] == ["warmup"] * 2 + ["mid_cosine"] * 17 + ["annealed"]
    _, metadata = load_model(job.run / "checkpoints" / "mid-00000010.safetensors")
    assert metadata.phase == "mid_cosine"


def test_every_output_says_where_it_is_from(make_job: MakeJob) -> None:
    job = make_job()
    train(job)
    summary = json.loads((job.run / "run.json").read_text())
    assert summary["provenance"] == job.record
    assert summary["tokens"] == 23 * 64
    assert {"host", "device", "threads", "git_commit"} <= summary["environment"].keys()
    for name in ("metrics", "timing"):
        assert read_record(job.run / f"{name}.parquet") == job.record
    for name, digest in summary["checkpoints"].items():
        assert sha256_file(job.run / name) == digest
        found = read_record(job.run / name)
        assert found is not None
        assert found.pop("checkpoint").keys() == {"step", "tokens", "phase"}
        assert found == job.record


def test_nothing_that_differs_between_runs_is_in_the_comparable_files(
    make_job: MakeJob, tmp_path: Path
) -> None:
    job = make_job()
    train(job)
    for path in (job.run / "metrics.parquet", *(job.run / "checkpoints").iterdir()):
        assert str(tmp_path).encode() not in path.read_bytes()


def test_a_loss_that_is_not_finite_is_refused_before_the_step(make_job: MakeJob) -> None:
    job = make_job(
        learning_rate=1e30, schedule={"kind": "wsd", "warmup_fraction": 0.0, "decay_fraction": 0.3}
    )
    with pytest.raises(NonFiniteError, match=r"step \d+: loss .* learning rate .*1e\+30.*Lower") as caught:
        train(job)
    state = Path(str(caught.value).split("state before it is ")[1].split(". Lower")[0])
    assert state.is_file()  # of the last step made
    with pytest.raises(NonFiniteError) as again:  # resumed, and refused at the same step
        train(job)
    assert str(again.value).split(";")[0] == str(caught.value).split(";")[0]
    assert not job.run.exists()


def test_a_validation_loss_that_is_not_finite_is_refused(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "mean_loss", lambda *given: math.inf)
    job = make_job()
    for _ in range(2):  # also when it is taken up again
        with pytest.raises(NonFiniteError, match=r"step 5: validation loss inf .* kept in .*Lower"):
            train(job)
    assert not job.run.exists()
    trial = replace(make_job("trial"), trial=True)
    train(trial)
    assert json.loads((trial.run / "run.json").read_text())["diverged"]
    assert [row["step"] for row in rows(trial.run)] == [1, 2, 3, 4]


def test_a_run_replaces_the_one_before_it(make_job: MakeJob) -> None:
    job = make_job()
    (job.run / "checkpoints").mkdir(parents=True)
    (job.run / "checkpoints" / "annealed-00000099.safetensors").write_bytes(b"of other budgets")
    train(job)
    assert len(list((job.run / "checkpoints").iterdir())) == 4


def test_manifests_must_be_those_of_the_spec(make_job: MakeJob) -> None:
    job = make_job()
    few = {name: path for name, path in job.manifests.items() if name != "validation/terms"}
    with pytest.raises(DataError, match="missing validation/terms; not needed none"):
        train(Job(job.spec, few, job.work, job.run, job.record, "cpu"))


def test_a_work_directory_that_cannot_be_made(make_job: MakeJob, tmp_path: Path) -> None:
    (tmp_path / "work").write_text("a file")
    with pytest.raises(WorkDirectoryError, match=r"cannot write in .*another --work"):
        train(make_job())
