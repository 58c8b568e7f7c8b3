"""An interrupted run ends bitwise as an uninterrupted one, and says what is wrong where it cannot."""

import errno
import json
import logging
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from seqarch.cli import clean, common
from seqarch.cli import train as train_command
from seqarch.files import sha256_file
from seqarch.mixers import registry
from seqarch.provenance import ProvenanceError
from seqarch.training.errors import Interrupted, WorkDirectoryError
from seqarch.training.job import Job
from seqarch.training.loop import Trainer, train
from seqarch.training.numerics import numerics
from seqarch.training.signals import Stop
from seqarch.training.workdir import WorkDirectory, fingerprint
from seqarch.training.world import World

MakeJob = Callable[..., Job]
TORCH_CPU = torch.device("cpu")


def digests(run: Path) -> dict[str, str]:
    """Of everything that must not differ between equal runs."""
    files = [run / "metrics.parquet", *sorted((run / "checkpoints").iterdir())]
    return {path.name: sha256_file(path) for path in files}


def states(job: Job) -> list[Path]:
    return sorted(job.work.glob("*/state-*.safetensors"))


def one_step(job: Job) -> bool:
    """Take the run up, make one step, stop as on a signal. False at the end of the plan."""
    stop = Stop()
    stop.signal = signal.SIGTERM
    with numerics(1, TORCH_CPU), WorkDirectory(job.work, fingerprint(job.record)) as work:
        trainer = Trainer(job, World(TORCH_CPU), work, stop)
        trainer.resume()
        try:
            trainer.fit()
        except Interrupted:
            return True
    return False


def steps(job: Job, n: int) -> None:
    for _ in range(n):
        assert one_step(job)


@pytest.fixture
def reference(make_job: MakeJob) -> dict[str, str]:
    """Digests of the run that nothing interrupts."""
    job = make_job("reference")
    train(job)
    return digests(job.run)


def test_stopping_after_every_single_step_changes_nothing(make_job: MakeJob, reference: dict) -> None:
    job = make_job()
    made = 0
    while one_step(job):
        made += 1
        # Two states, and the trunk's where a branch will return to it.
        assert len(states(job)) <= 3
    assert made == 22  # 14 of the trunk, 3 and 6 of the branches, and the last one needs no stop
    train(job)
    assert digests(job.run) == reference
    assert json.loads((job.run / "run.json").read_text())["resumed"] == 23


@pytest.mark.parametrize("mixer", registry.names())
def test_every_mixer_trains_and_resumes_bitwise(make_job: MakeJob, mixer: str) -> None:
    """On deterministic algorithms; a mixer without one for an operation it uses fails here."""
    options = {"mixer": mixer, "budgets": [3 * 64, 6 * 64], "learning_rate": 3e-3}
    whole, parts = make_job("whole", **options), make_job("parts", **options)
    train(whole)
    losses = pq.read_table(whole.run / "metrics.parquet").column("loss").to_pylist()
    assert losses[-1] < losses[0]
    steps(parts, 4)
    train(parts)
    assert digests(parts.run) == digests(whole.run)


def test_killed_at_random_points(make_job: MakeJob, reference: dict) -> None:
    job = make_job(save_seconds=0)
    points = random.Random(0)
    kills = 0
    while True:
        process = start(job)
        wait_for_states(process, job, more=points.randint(1, 4))
        time.sleep(points.uniform(0, 0.01))  # also in the middle of a step, or of writing a state
        process.kill()
        process.join()
        if process.exitcode == 0:  # it was faster
            break
        assert process.exitcode == -signal.SIGKILL
        kills += 1
    assert kills >= 3
    train(job)  # also if it was killed while moving the outputs into place
    assert digests(job.run) == reference


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_after_the_step(make_job: MakeJob, reference: dict, number: signal.Signals) -> None:
    job = make_job(save_seconds=0)
    process = start(job)
    wait_for_states(process, job, more=1)
    assert process.pid is not None
    os.kill(process.pid, number)
    process.join(60)
    assert process.exitcode == 75
    assert not job.run.exists()
    train(job)
    assert digests(job.run) == reference


def start(job: Job) -> ForkProcess:
    """Training in a process of its own; a fork, because importing torch takes longer than the whole run."""
    process = get_context("fork").Process(target=train_and_exit, args=(job,))
    process.start()
    return process


def train_and_exit(job: Job) -> None:
    try:
        train(job)
    except Interrupted as error:
        sys.exit(error.exit_code)


def wait_for_states(process: ForkProcess, job: Job, more: int) -> None:
    """Until the run has saved `more` states beyond those that are there, or has ended."""

    def newest() -> int:
        return max((int(path.name.split("-")[1]) for path in states(job)), default=0)

    goal = newest() + more
    while newest() < goal and process.is_alive():
        time.sleep(0.001)


def test_the_command_stops_on_sigterm_and_goes_on(make_job: MakeJob, reference: dict) -> None:
    job = make_job(save_seconds=0)
    command = [
        *(sys.executable, "-m", "seqarch.cli.train", "--spec", json.dumps(job.record["spec"])),
        *("--code", job.record["code"], "--device", "cpu", "--save-seconds", "0"),
        *("--manifests", *map(str, job.manifests.values())),
        *("--work", str(job.work), "--run", str(job.run)),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not states(job):
            assert process.poll() is None, process.communicate()
            time.sleep(0.001)
        process.terminate()
        _, err = process.communicate(timeout=120)
    assert process.returncode == 75, err
    assert "error: stopped by SIGTERM after step" in err
    assert "the same command goes on" in err
    assert not job.run.exists()
    again = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    assert "resumed after step" in again.stderr
    assert digests(job.run) == reference


# --- what is wrong with the states ------------------------------------------------------------------------


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [truncate, flip_a_bit])
def test_a_damaged_newest_state_gives_way_to_the_one_before(
    make_job: MakeJob, reference: dict, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    job = make_job()
    steps(job, 9)  # in the first branch
    newest = states(job)[-1]
    damage(newest)
    with caplog.at_level(logging.INFO):
        train(job)
    assert f"{newest} is damaged" in caplog.text
    assert "using the state before it" in caplog.text
    assert "resumed after step 8 of annealed-00000010" in caplog.text
    assert digests(job.run) == reference


def test_with_every_state_damaged_training_starts_again(
    make_job: MakeJob, reference: dict, caplog: pytest.LogCaptureFixture
) -> None:
    job = make_job()
    steps(job, 9)
    for path in states(job):
        truncate(path)
    with caplog.at_level(logging.INFO):
        train(job)
    assert "training starts from the beginning" in caplog.text
    assert "resumed" not in caplog.text
    assert digests(job.run) == reference


def test_a_branch_without_its_fork_is_of_no_use(
    make_job: MakeJob, reference: dict, caplog: pytest.LogCaptureFixture
) -> None:
    job = make_job()
    steps(job, 9)
    assert len(states(job)) == 3
    flip_a_bit(states(job)[0])  # the trunk's end, which both newest states return to
    train(job)
    assert "training starts from the beginning" in caplog.text
    assert digests(job.run) == reference


def test_a_damaged_checkpoint_is_made_again(
    make_job: MakeJob, reference: dict, caplog: pytest.LogCaptureFixture
) -> None:
    job = make_job()
    steps(job, 7)
    (made,) = job.work.glob("*/run/checkpoints/*")
    truncate(made)
    with caplog.at_level(logging.INFO):
        train(job)
    assert f"{made} is missing or damaged" in caplog.text
    assert "resumed after step 6 of trunk" in caplog.text
    assert digests(job.run) == reference


def test_leftovers_of_a_killed_process_are_cleared(make_job: MakeJob, reference: dict) -> None:
    job = make_job()
    steps(job, 7)
    folder = states(job)[0].parent
    for name in (
        ".draft.safetensors.x.tmp.safetensors",
        "draft.safetensors",
        "run/.metrics.parquet.y.tmp.parquet",
    ):
        (folder / name).write_bytes(b"half")
    train(job)
    assert digests(job.run) == reference
    assert len(list(job.run.glob(".*"))) == 0


def test_a_state_is_resumed_by_its_own_spec_code_and_inputs_only(make_job: MakeJob) -> None:
    record = dict(make_job().record)
    name = fingerprint(record)
    assert name == fingerprint(record | {"packages": {}})
    assert name != fingerprint(record | {"inputs": record["inputs"] | {"train/terms": "0" * 64}})
    assert name != fingerprint(make_job(learning_rate=2e-2).record)
    assert name != fingerprint(record | {"code": "0" * 64})


# --- other processes, full disks --------------------------------------------------------------------------


def test_a_second_writer_is_refused(make_job: MakeJob, reference: dict) -> None:
    job = make_job()
    with WorkDirectory(job.work, fingerprint(job.record)):
        with pytest.raises(WorkDirectoryError, match=rf"process {os.getpid()} on .* is training this run in"):
            train(job)
        assert not job.run.exists()
    train(job)
    assert digests(job.run) == reference


def test_the_lock_of_a_removed_directory_is_no_lock(tmp_path: Path) -> None:
    with WorkDirectory(tmp_path, "run") as first:
        first.remove()
        with WorkDirectory(tmp_path, "run") as second:
            assert second.path.is_dir()


def test_a_directory_that_cannot_be_deleted_does_not_fail_the_run(
    make_job: MakeJob, reference: dict, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path) -> None:
        raise OSError(errno.ENOTEMPTY, "Directory not empty", str(path))

    monkeypatch.setattr(Path, "rmdir", refuse)
    job = make_job()
    train(job)
    assert digests(job.run) == reference
    (left,) = job.work.iterdir()
    assert f"{left} is of no more use, but could not be deleted" in caplog.text
    assert list(left.iterdir()) == []


def test_the_lock_goes_last_and_is_closed_before_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS keeps a file that is deleted while it is open in its directory, which then cannot be deleted."""
    gone: list[str] = []

    def unlink(path: Path) -> None:
        gone.append(path.name)
        os.unlink(path)

    def rmdir(path: Path) -> None:
        held = {os.readlink(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd") if exists(each)}
        assert not {each for each in held if each.startswith(f"{path}/")}
        os.rmdir(path)

    def exists(descriptor: str) -> bool:
        return os.path.lexists(f"/proc/self/fd/{descriptor}")

    monkeypatch.setattr(Path, "unlink", unlink)
    monkeypatch.setattr(Path, "rmdir", rmdir)
    with WorkDirectory(tmp_path, "run") as work:
        (work.path / "job.json").write_text("{}")
        work.delete()
    assert gone == ["job.json", "lock"]
    assert not work.path.exists()


def test_a_directory_in_use_is_not_deleted_and_an_unused_one_is(tmp_path: Path) -> None:
    with WorkDirectory(tmp_path, "run") as work:
        assert not clean.delete(work.path)
        assert (work.path / "lock").is_file()
    assert clean.delete(work.path)
    assert not work.path.exists()


def test_clean_reports_what_it_could_not_delete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path) -> None:
        raise OSError(errno.ENOTEMPTY, "Directory not empty", str(path))

    (tmp_path / "work" / "0123").mkdir(parents=True)
    found = clean.Left(tmp_path / "work" / "0123", "limited/gla/0", "stale", 0)
    monkeypatch.setattr(clean, "open_experiment", lambda *given: None)
    monkeypatch.setattr(clean, "left", lambda plan: [found])
    monkeypatch.setattr(Path, "rmdir", refuse)
    assert clean.main(["--stale"]) == 1
    said = capsys.readouterr()
    assert f"error: {found.path} could not be deleted: [Errno 39]" in said.err
    assert said.out.startswith("stale ")


def test_changed_code_keeps_the_state_and_makes_no_run_directory(make_job: MakeJob, reference: dict) -> None:
    def refuse() -> None:
        raise ProvenanceError("the code changed")

    job = make_job()
    with pytest.raises(ProvenanceError, match="the code changed"):
        train(replace(job, verify=refuse))
    assert not job.run.exists()
    train(job)  # from the state at the end: no step is made again
    assert json.loads((job.run / "run.json").read_text())["resumed"] == 1
    assert digests(job.run) == reference


def test_the_command_verifies_the_code_before_it_publishes(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = make_job()
    found = common.verify_code
    calls: list[bool] = []

    def changed(modules: Sequence[str], planned: str) -> None:
        calls.append(job.run.exists())
        found(modules, planned if len(calls) == 1 else "0" * 64)  # edited while it trained

    monkeypatch.setattr(common, "verify_code", changed)
    arguments = ["--spec", json.dumps(job.record["spec"]), "--code", job.record["code"], "--device", "cpu"]
    arguments += ["--manifests", *map(str, job.manifests.values())]
    assert train_command.main([*arguments, "--work", str(job.work), "--run", str(job.run)]) == 1
    assert "changed after this job was queued" in capsys.readouterr().err
    assert calls == [False, False]
    assert states(job)
    assert not job.run.exists()


def test_a_full_disk_keeps_the_last_state(make_job: MakeJob, reference: dict) -> None:
    job = make_job()
    steps(job, 5)
    before = states(job)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))  # bytes of a file: writing fails in its middle
    try:
        with pytest.raises(WorkDirectoryError, match=r"cannot write in .*Make room"):
            train(job)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert states(job) == before
    assert not job.run.exists()
    train(job)
    assert digests(job.run) == reference


def test_a_run_directory_that_cannot_be_made_keeps_everything(
    make_job: MakeJob, reference: dict, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    job = replace(make_job(), run=tmp_path / "file" / "run")
    with pytest.raises(WorkDirectoryError, match="cannot write"):
        train(job)
    job = replace(job, run=tmp_path / "run")
    train(job)  # from the state at the end: no step is made again
    assert json.loads((job.run / "run.json").read_text())["resumed"] == 1
    assert digests(job.run) == reference
