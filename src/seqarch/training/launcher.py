"""How a run's processes are started: in this process, or several of a node by submitit.

Snakemake is the only one that submits to a cluster. Here submitit's `local` executor starts the processes
where this one is already, inside the job's allocation; nothing is restarted in place. A signal is passed on
to them, they stop together after a step with their state saved, and this process ends with the exit code of
an interrupted run, so that Snakemake's `retries` submit it again.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from seqarch.errors import SeqarchError
from seqarch.training.environment import pick_device
from seqarch.training.errors import Interrupted, TrainingError
from seqarch.training.group import Group
from seqarch.training.job import Job
from seqarch.training.loop import train
from seqarch.training.signals import end_of_slurm_job
from seqarch.training.spec import Submitit

log = logging.getLogger(__name__)

GRACE = 60.0  # seconds that the others have to end by themselves after one process has failed
LONG = 366 * 24 * 60.0  # minutes: where no limit is known
WARNING_SECONDS = 60  # submitit signals this long before its own timeout; ours comes earlier


def launch(job: Job) -> None:
    """Train as `job.spec.train.launcher` says. Raises what `seqarch.training.loop.train` raises."""
    if job.ends is None:
        job = replace(job, ends=end_of_slurm_job())
    launcher = job.spec.train.launcher
    if isinstance(launcher, Submitit):
        _launch(job, launcher)
    else:
        train(job)


def _launch(job: Job, launcher: Submitit) -> None:
    import submitit  # one file touches it

    gpus = visible_gpus(job.device, launcher.processes)
    with tempfile.TemporaryDirectory(prefix="seqarch-launch-") as folder:
        executor = submitit.LocalExecutor(folder, max_num_timeout=0)
        executor.update_parameters(
            timeout_min=LONG if job.ends is None else max(2.0, (job.ends - time.time()) / 60),
            signal_delay_s=WARNING_SECONDS,
            nodes=1,
            tasks_per_node=launcher.processes,
            gpus_per_node=len(gpus),
            visible_gpus=gpus,
        )
        with _deaf_to_interrupts():
            handle = executor.submit(_process, replace(job, device="cuda" if gpus else "cpu"), folder)
        with _passing_on_signals(handle, Path(folder)):
            _wait(handle, Path(folder), launcher.processes)
        _raise_errors([handle.task(rank) for rank in range(launcher.processes)])


def visible_gpus(device: str, processes: int) -> tuple[int, ...]:
    """The numbers of the GPUs to use, one for each process; none: train on the CPU.

    Raises:
        TrainingError: too few of them, or named so that submitit cannot pass them on.
    """
    if pick_device(device).type == "cpu":
        return ()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(i) for i in range(torch.cuda.device_count())] if named is None else named.split(",")
    if not all(name.strip().isdigit() for name in names):
        raise TrainingError(
            f"CUDA_VISIBLE_DEVICES is {named}: the launcher submitit knows GPUs by number only, not by "
            "UUID or MIG name. Ask for whole GPUs, or use train.launcher {kind: inprocess} with one of them"
        )
    if len(names) < processes:
        raise TrainingError(
            f"train.launcher wants {processes} processes, each with a GPU of its own, but "
            f"{len(names)} GPUs are visible here ({', '.join(names)}): lower "
            "train.launcher.processes, or give the job more GPUs"
        )
    return tuple(int(name) for name in names[:processes])


# --- jobs of their own, outside Snakemake -----------------------------------------------------------------


@dataclass(frozen=True)
class Allocation:
    """What each job asks for. `cluster`: slurm or local; `cpus`: of each process."""

    cluster: str
    minutes: int
    partition: str | None
    account: str | None
    gpus: int
    cpus: int
    memory_gb: float


def submit(jobs: list[Job], folder: Path, allocation: Allocation) -> None:
    """Run all jobs on a cluster and wait for them; submitit's files and their logs lie in `folder`.

    Raises:
        TrainingError: some failed; the others have ended too.
    """
    import submitit

    executor = submitit.AutoExecutor(folder, cluster=allocation.cluster)
    executor.update_parameters(
        timeout_min=allocation.minutes,
        nodes=1,
        tasks_per_node=1,
        gpus_per_node=allocation.gpus,
        cpus_per_task=allocation.cpus,
        mem_gb=allocation.memory_gb,
        slurm_partition=allocation.partition,
        slurm_account=allocation.account,
        slurm_job_name="seqarch-sweep",
    )
    handles = [executor.submit(_Requeueing(job)) for job in jobs]
    for handle, job in zip(handles, jobs, strict=True):
        log.info("%s: job %s, log %s", job.run.name, handle.job_id, handle.paths.stderr)
    failed = []
    for handle, job in zip(handles, jobs, strict=True):
        try:
            handle.result()
        except Exception as error:  # submitit's own, with the end of the log as text
            failed.append(f"{job.run.name} (log {handle.paths.stderr}): {error}")
    if failed:
        raise TrainingError("\n".join(failed))


@dataclass(frozen=True)
class _Requeueing:
    """What a job runs. At its time limit it goes into the queue again, and on where it was."""

    job: Job

    def __call__(self) -> None:
        try:
            launch(self.job)
        except Interrupted as error:
            job = os.environ.get("SLURM_JOB_ID")
            if job is None:
                raise
            if error.signal == signal.SIGTERM:
                # Cancelled; or requeued or preempted: then Slurm starts it again, if there is no result yet.
                sys.exit(error.exit_code)
            log.info("%s; job %s goes into the queue again", error, job)
            subprocess.run(["scontrol", "requeue", job], check=True)
            while True:  # Slurm ends this process now, maybe with signals that do not; returning is success
                signal.pause()

    def checkpoint(self, *args: Any) -> Any:
        """submitit's, on its signal before training has begun: the same again."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


# --- in each process --------------------------------------------------------------------------------------


def _process(job: Job, folder: str) -> SeqarchError | None:
    """Train as one of several; an error that has an explanation is returned."""
    from submitit.helpers import TorchDistributedEnvironment

    # Each process is bound to its GPU below; hiding the others would slow the exchange between them.
    own = TorchDistributedEnvironment().export(set_cuda_visible_devices=False)
    level = logging.INFO if own.rank == 0 else logging.WARNING
    form = "%(asctime)s %(levelname)s %(message)s"
    logging.basicConfig(level=level, format=form, stream=sys.stderr, force=True)
    logging.getLogger("submitit").propagate = False
    Path(folder, f"{own.rank}.pid").write_text(str(os.getpid()))
    kind = job.device
    device = torch.device(kind, own.local_rank) if kind == "cuda" else torch.device(kind)
    launcher = job.spec.train.launcher
    assert isinstance(launcher, Submitit)
    try:
        with Group(own.rank, own.world_size, device, Path(folder, "store"), launcher.sharded) as world:
            train(job, world)
    except SeqarchError as error:
        return error
    return None


# --- in the process that waits ----------------------------------------------------------------------------


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """What is started within ignores Ctrl-C, which a terminal sends to all: this process passes it on."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _passing_on_signals(handle: Any, folder: Path) -> Iterator[None]:
    """Within it a signal to stop is one to the processes; before they have started, to what starts them."""
    handled = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)

    def pass_on(number: int, frame: FrameType | None) -> None:
        pids = _pids(folder)
        for pid in pids or [int(handle.job_id)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number if pids else signal.SIGTERM)

    before = {number: signal.signal(number, pass_on) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(handle: Any, folder: Path, processes: int) -> None:
    """Until all processes have ended. What the first one logs goes to stderr; if one fails, the others, which
    may wait for it for ever, are ended."""
    logs = handle.task(0).paths.stderr
    shown, failed_at = 0, None
    while True:
        done = handle.done()
        if logs.exists():
            with open(logs, "rb") as file:
                file.seek(shown)
                text = file.read()
            shown += len(text)
            sys.stderr.write(text.decode(errors="replace"))
            sys.stderr.flush()
        if done:
            return
        pids = _pids(folder)
        alive = [pid for pid in pids if _alive(pid)]
        if len(alive) == len(pids):
            failed_at = None
        else:
            failed_at = failed_at or time.monotonic()
            if time.monotonic() - failed_at > GRACE:
                log.warning(
                    "%d of %d processes have ended; ending the others", processes - len(alive), processes
                )
                for pid in alive:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                failed_at = None
        time.sleep(0.2)


def _pids(folder: Path) -> list[int]:
    texts = [file.read_text() for file in folder.glob("*.pid")]
    return [int(text) for text in texts if text]  # an empty one is being written


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _raise_errors(tasks: list[Any]) -> None:
    """Raise the error that explains itself, if a process has one; else report that of the first."""
    broken: list[str] = []
    for rank, task in enumerate(tasks):
        try:
            error = task.result()
        except Exception as failure:  # submitit's own, with the traceback or the end of the log as text
            broken.append(f"process {rank} of {len(tasks)} failed:\n{failure}")
        else:
            if error is not None:
                raise error
    if broken:
        raise TrainingError(broken[0])
