"""Several processes train as one does: same curve, same files, each other's states."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

from seqarch.architecture import resolve
from seqarch.mixers import registry
from seqarch.model import Decoder
from seqarch.tasks.batch import IGNORE, Batch
from seqarch.training import launcher
from seqarch.training.checkpoint import load_model
from seqarch.training.errors import Interrupted, NoProgress, OutOfMemory, TrainingError
from seqarch.training.group import Group, shard
from seqarch.training.job import Job
from seqarch.training.launcher import launch, visible_gpus
from seqarch.training.loop import train
from seqarch.training.memory import prepare_blocks, state_bytes
from seqarch.training.step import LossSum, mean_loss
from seqarch.training.world import World

MakeJob = Callable[..., Job]
CPU = torch.device("cpu")


def together(
    job: Job, size: int, folder: Path, sharded: bool = False, stop_after: int | None = None
) -> list[int]:
    """Train in `size` processes; their exit codes. The last one is told to stop after some steps."""
    store = folder / f"store-{len(list(folder.glob('store-*')))}"
    processes = [
        get_context("fork").Process(target=one, args=(job, rank, size, store, sharded, stop_after))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    return [wait(process) for process in processes]


def wait(process: ForkProcess) -> int:
    process.join(120)
    if process.exitcode is None:
        process.kill()
        process.join()
    assert process.exitcode is not None
    return process.exitcode


def one(job: Job, rank: int, size: int, store: Path, sharded: bool, stop_after: int | None) -> None:
    try:
        with Group(rank, size, CPU, store, sharded) as world:
            if stop_after is not None and rank == size - 1:
                after(world, stop_after)
            train(job, world)
    except (Interrupted, OutOfMemory, NoProgress) as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


def after(world: Group, steps: int) -> None:
    """Send a signal to this process alone when it makes its next step but `steps`."""
    plain, seen = world.values, iter(range(10**6))

    def values(mean: Tensor, norm: Tensor) -> tuple[float, float]:
        if next(seen) == steps - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(mean, norm)

    world.values = values  # type: ignore[method-assign]


def curve(run: Path, column: str = "loss") -> list[float]:
    values = pq.read_table(run / "metrics.parquet").column(column).to_pylist()
    return [value for value in values if value is not None]


@pytest.fixture
def reference(make_job: MakeJob) -> Job:
    job = make_job("reference")
    train(job)
    return job


@pytest.mark.parametrize(("size", "sharded"), [(2, False), (4, False), (2, True)])
def test_any_number_of_processes_makes_the_same_curve(
    make_job: MakeJob, reference: Job, tmp_path: Path, size: int, sharded: bool
) -> None:
    job = make_job("run", launcher={"kind": "submitit", "processes": size, "sharded": sharded})
    assert together(job, size, tmp_path, sharded) == [0] * size
    for column in ("loss", "validation_loss"):
        assert curve(job.run, column) == pytest.approx(curve(reference.run, column), abs=1e-5), column
    assert curve(job.run, "grad_norm") == pytest.approx(curve(reference.run, "grad_norm"), rel=1e-3)
    names = {path.name for path in job.run.rglob("*")}
    assert names == {path.name for path in reference.run.rglob("*")}
    assert not list(job.work.iterdir())
    for file in (job.run / "checkpoints").iterdir():
        ours, theirs = (load_model(each / "checkpoints" / file.name)[0] for each in (job.run, reference.run))
        for name, tensor in theirs.state_dict().items():
            torch.testing.assert_close(ours.state_dict()[name], tensor, rtol=0, atol=2e-3, msg=name)


def test_any_number_of_processes_goes_on_where_another_stopped(
    make_job: MakeJob, reference: Job, tmp_path: Path
) -> None:
    """2 sharded, then 4, then 1, then 2: each stops in another segment, all of them together."""
    for size, sharded, steps in ((2, True, 5), (4, False, 4), (1, False, 3)):
        launcher = {"kind": "submitit", "processes": size, "sharded": sharded}
        job = make_job("run", launcher=launcher)
        assert together(job, size, tmp_path, sharded, stop_after=steps) == [75] * size
    job = make_job("run", launcher={"kind": "submitit", "processes": 2})
    assert together(job, 2, tmp_path) == [0, 0]
    assert curve(job.run) == pytest.approx(curve(reference.run), abs=1e-5)


def test_all_mixers_train_in_two_processes(make_job: MakeJob, tmp_path: Path) -> None:
    """Every parameter takes part in every step: one that does not would stop DDP with an error."""
    for mixer in registry.names():
        options: dict[str, Any] = {"mixer": mixer, "budgets": [128], "learning_rate": 3e-3}
        options |= {"schedule": {"kind": "cosine"}, "n_layers": 2}
        alone = make_job(f"{mixer}-alone", **options)
        train(alone)
        for sharded in (False, True):
            name = f"{mixer}-{sharded}"
            job = make_job(name, **options, launcher={"kind": "submitit", "processes": 2, "sharded": sharded})
            assert together(job, 2, tmp_path, sharded) == [0, 0], name
            assert curve(job.run) == pytest.approx(curve(alone.run), abs=1e-5), name


def test_validation_rows_are_shared_evenly_and_filled_up() -> None:
    ids = torch.arange(15).view(3, 5)
    batch = Batch(ids, ids + 1, ids // 2)
    found = [world.part(batch) for world in (Group(rank, 4, CPU, Path("unused"), False) for rank in range(4))]
    assert [part.inputs.tolist() for part in found[:3]] == [[row] for row in ids.tolist()]
    assert [part.n_targets for part in found] == [5, 5, 5, 0]
    assert found[3].inputs.shape == (1, 5)
    assert bool((found[3].targets == IGNORE).all())
    assert found[3].segment_ids is not None


# --- memory -----------------------------------------------------------------------------------------------


@contextmanager
def fake_group(size: int) -> Iterator[None]:
    """A process group of which only this process is there: enough to shard, not to compute."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def test_the_large_model_s_state_is_split_between_eight_devices() -> None:
    """1.3B parameters, without allocating them: 16 bytes each for weights, gradients and two moments."""
    resolved = resolve("m", {"m": {"mixer": "attention"}}, {"scale": "1.3b"}, 32_000, 2048)
    with torch.device("meta"):
        loss = LossSum(Decoder(resolved))
    n = sum(parameter.numel() for parameter in loss.parameters())
    assert 1.2e9 < n < 1.5e9
    assert state_bytes(loss) == 16 * n
    with fake_group(8):
        shard(loss, "cpu", 8)
        assert state_bytes(loss) == pytest.approx(16 * n / 8, rel=0.001)
        assert sum(parameter.numel() for parameter in loss.parameters()) == n
        # Gathered at a time: one block, not the model.
        largest = max(sum(p.numel() for p in block.parameters()) for block in loss.model.blocks)
        assert largest < n / 15


def test_blocks_computed_again_or_compiled_change_no_number(make_job: MakeJob, reference: Job) -> None:
    again = make_job("again", checkpoint_activations=True)
    train(again)
    assert curve(again.run) == curve(reference.run)
    for file in (again.run / "checkpoints").iterdir():
        ours, theirs = (load_model(run / "checkpoints" / file.name)[0] for run in (again.run, reference.run))
        assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


@pytest.mark.parametrize("mixer", ["rwkv7", "hgrn2", "mamba2"])
def test_activation_checkpointing_holds_less(make_job: MakeJob, mixer: str) -> None:
    """Shared values between blocks included; what is saved for the backward pass is counted."""
    resolved = resolve("m", {"m": {"mixer": mixer}}, {"d_model": 32, "n_layers": 3}, 257, 64)
    ids = torch.arange(4 * 65).view(4, 65) % 257
    batch = Batch(ids[:, :-1], ids[:, 1:])
    gradients, held = [], []
    for checkpointed in (False, True):
        model = Decoder(resolved)
        prepare_blocks(model, compiled=False, checkpointed=checkpointed)
        sizes: dict[int, int] = {}

        def pack(tensor: Tensor, sizes: dict[int, int] = sizes) -> Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            total = LossSum(model)(batch)
        held.append(sum(sizes.values()))
        total.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert held[1] < 0.5 * held[0]
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True) if a is not None)


@pytest.mark.slow
def test_compiled_blocks_train_the_same(make_job: MakeJob) -> None:
    plain, compiled = (make_job(str(each), budgets=[5 * 64], compile=each) for each in (False, True))
    for job in (plain, compiled):
        train(job)
    assert curve(compiled.run) == pytest.approx(curve(plain.run), abs=1e-4)


class Small(torch.nn.Module):
    """Runs out of memory with more than `rows` sequences, as a GPU does."""

    def __init__(self, inner: torch.nn.Module, rows: int) -> None:
        super().__init__()
        self.inner, self.rows, self.seen = inner, rows, set[int]()

    def forward(self, batch: Batch) -> Tensor:
        self.seen.add(len(batch.inputs))
        loss = self.inner(batch)
        if len(batch.inputs) > self.rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has …")
        return loss


class SmallWorld(World):
    """One process whose device holds `rows` sequences in training."""

    def __init__(self, rows: int) -> None:
        super().__init__(CPU)
        self.rows = rows

    def distribute(self, loss: LossSum) -> torch.nn.Module:
        self.small = Small(super().distribute(loss), self.rows)
        return self.small


def test_out_of_memory_halves_the_micro_batch_at_the_same_global_batch(
    make_job: MakeJob, reference: Job, caplog: pytest.LogCaptureFixture
) -> None:
    job, world = make_job("run"), SmallWorld(rows=1)
    train(job, world)
    assert world.small.seen == {4, 2, 1}
    assert "from now on micro-batches of 1 sequences (CUDA out of memory" in caplog.text
    assert curve(job.run) == pytest.approx(curve(reference.run), abs=1e-5)
    summary = json.loads((job.run / "run.json").read_text())
    assert summary["micro_batch_sequences"] == 1


@pytest.mark.parametrize(("trains", "scores", "seen"), [(1, 4, {1}), (4, 2, {4, 2})])
def test_validation_takes_no_more_sequences_than_fit(
    make_job: MakeJob,
    reference: Job,
    monkeypatch: pytest.MonkeyPatch,
    trains: int,
    scores: int,
    seen: set[int],
) -> None:
    """Those that training has come down to, and fewer where these do not fit."""
    sizes = set()

    def limited(loss: Any, batches: Iterable[Batch], *rest: Any) -> float:
        parts = list(batches)
        sizes.add(largest := max(len(each.inputs) for each in parts))
        if largest > scores:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return mean_loss(loss, parts, *rest)

    monkeypatch.setattr("seqarch.training.loop.mean_loss", limited)
    job = make_job("run")
    train(job, SmallWorld(rows=trains))
    assert sizes == seen
    assert curve(job.run) == pytest.approx(curve(reference.run), abs=1e-5)
    assert json.loads((job.run / "run.json").read_text())["micro_batch_sequences"] == min(seen)


def test_what_fits_is_remembered_and_what_never_fits_is_an_error(make_job: MakeJob) -> None:
    job = make_job("run")
    with pytest.raises(OutOfMemory, match=r"one sequence does not fit.*checkpoint_activations"):
        train(job, SmallWorld(rows=0))
    world = SmallWorld(rows=1)
    train(job, world)
    assert world.small.seen == {1}


# --- the launcher -----------------------------------------------------------------------------------------


def command(job: Job, *more: str) -> list[str]:
    return [
        *(sys.executable, "-m", "seqarch.cli.train", "--spec", json.dumps(job.record["spec"])),
        *("--device", "cpu", "--manifests", *map(str, job.manifests.values())),
        *("--work", str(job.work), "--run", str(job.run), *more),
    ]


def test_the_command_starts_two_processes_and_passes_signals_on(
    make_job: MakeJob, reference: Job, tmp_path: Path
) -> None:
    job = make_job("run", launcher={"kind": "submitit", "processes": 2})
    environment = os.environ | {"TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    with subprocess.Popen(
        command(job, "--save-seconds", "0"), stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        end = time.monotonic() + 60
        while not list(job.work.glob("*/state-*")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end
            time.sleep(0.01)
        process.terminate()
        _, err = process.communicate(timeout=120)
    assert process.returncode == 75, err
    assert "error: stopped by SIGTERM after step" in err
    again = subprocess.run(command(job), capture_output=True, text=True, timeout=120, env=environment)
    assert again.returncode == 0, again.stderr
    assert "resumed after step" in again.stderr  # the first process's log
    assert again.stderr.count("finished: ") == 1
    assert curve(job.run) == pytest.approx(curve(reference.run), abs=1e-5)
    assert not list((tmp_path / "tmp").glob("seqarch-launch-*"))


def test_a_process_that_dies_ends_the_others(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "GRACE", 1.0)
    job = make_job("run", launcher={"kind": "submitit", "processes": 2}, save_seconds=0)
    killer = threading.Thread(target=kill_a_process, args=(job,))
    killer.start()
    with pytest.raises(TrainingError, match=r"process \d of 2 failed"):
        launch(job)
    killer.join()
    launch(job)


def kill_a_process(job: Job) -> None:
    while not list(job.work.glob("*/state-*")):
        time.sleep(0.01)
    (lock,) = job.work.glob("*/lock")
    os.kill(int(lock.read_text().split()[1]), signal.SIGKILL)


def test_a_requeued_job_waits_for_its_end_through_any_signal(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Returning would be success for submitit."""
    pauses = []

    def pause() -> None:
        pauses.append(1)
        if len(pauses) == 3:
            raise SystemExit  # killed

    def interrupted(job: Job) -> None:
        raise Interrupted("its time was up")

    asked = []
    monkeypatch.setattr(launcher, "launch", interrupted)
    monkeypatch.setattr(launcher.subprocess, "run", lambda command, check: asked.append(command))
    monkeypatch.setattr(launcher.signal, "pause", pause)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with pytest.raises(SystemExit):
        launcher._Requeueing(make_job())()
    assert asked == [["scontrol", "requeue", "7"]]


def test_gpus_that_submitit_cannot_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "pick_device", lambda name: torch.device("cuda"))
    for names, found in (("0,3", (0, 3)), ("2,1,0", (2, 1))):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
        assert visible_gpus("auto", 2) == found
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-7f5e,MIG-8a")
    with pytest.raises(TrainingError, match="by number only"):
        visible_gpus("auto", 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(TrainingError, match=r"wants 2 processes.*1 GPUs are visible"):
        visible_gpus("auto", 2)
