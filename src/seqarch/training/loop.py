"""The training loop: one run from its spec to its run directory, resumable at every step.

The run follows its plan (seqarch.training.schedule) segment by segment. What is needed to go on is a state:
the position in the plan, weights, optimiser and the rows measured so far. It is saved every so often, at the
end of each segment, and when a signal or a loss that is not finite stops the run. Batches are a pure function
of the step, so a resumed run is bitwise the uninterrupted one (on a CPU).
"""

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from seqarch.architecture import describe
from seqarch.files import sha256_file, write_json, write_parquet
from seqarch.model import Decoder
from seqarch.progress import progress
from seqarch.tasks.batch import Batch
from seqarch.training.checkpoint import Metadata, save_weights
from seqarch.training.environment import environment, pick_device
from seqarch.training.errors import Interrupted, NonFiniteError, OutOfMemory
from seqarch.training.job import Job
from seqarch.training.memory import MicroBatch, prepare_blocks, state_bytes
from seqarch.training.metrics import History, Row, peak_flops
from seqarch.training.numerics import numerics
from seqarch.training.optimizer import make_optimizer
from seqarch.training.report import Reporter
from seqarch.training.schedule import PHASES, TRUNK, Segment, learning_rate, phase, plan
from seqarch.training.signals import Stop, stop_on_signal
from seqarch.training.state import history_of, pack, restore
from seqarch.training.step import LossSum, accumulate, clip_gradients, gradient_norm, mean_loss, split
from seqarch.training.workdir import State, WorkDirectory, fingerprint
from seqarch.training.world import World

log = logging.getLogger(__name__)


def train(job: Job, world: World | None = None) -> None:
    """Train, or go on training, and leave the finished run directory.

    Args:
        world: of this process, where several call this together.

    Raises:
        Interrupted: a signal or the time limit stopped it; the same call goes on from there.
        NonFiniteError: a loss or a gradient is not finite.
        TrainingError: anything else in the way (device, working directory, data).
    """
    world = world or World(pick_device(job.device))
    with (
        numerics(job.spec.train.torch_threads, world.device),
        stop_on_signal(job.ends, patient=world.size > 1) as stop,
        _opened(WorkDirectory(job.work, fingerprint(job.record)), world) as work,
    ):
        world.on_first(partial(work.describe, job.record))
        trainer = Trainer(job, world, work, stop)
        trainer.resume()
        try:
            trainer.fit()
        except NonFiniteError as error:
            if not job.trial:
                raise
            log.warning("%s", error)
            trainer.diverged = True
        world.on_first(trainer.write_results)
        if job.verify is not None:
            world.on_first(job.verify)
        # A trial's checkpoints stay in the working directory: without them its states could not be resumed.
        without = ("checkpoints",) if job.trial else ()
        world.on_first(partial(work.publish, job.run, without))
        world.on_first(work.remove)
    if world.first:
        log.info("finished: %s", job.run)


@contextmanager
def _opened(work: WorkDirectory, world: World) -> Iterator[WorkDirectory]:
    """The directory, locked by the first process; the others only read in it."""
    world.on_first(work.open)
    try:
        yield work
    finally:
        if world.first:
            work.close()


@dataclass
class Progress:
    """What changes while training, beside the tensors."""

    segment: int = 0  # index in the plan
    step: int = 0  # made in this segment's line from the initial weights
    resumed: int = 0  # times the run was taken up again
    fork: str | None = None  # the state that the trunk goes on from after the present branch
    outputs: dict[str, str] = field(default_factory=dict)  # checkpoint files made so far -> sha256
    history: History = field(default_factory=History)


class Trainer:
    """Holds model, optimiser and data of one run and takes them through its plan."""

    def __init__(self, job: Job, world: World, work: WorkDirectory, stop: Stop) -> None:
        self.job, self.world, self.work, self.stop = job, world, work, stop
        self.device = world.device
        self.spec = job.spec.train
        self.plan = plan(self.spec)
        self.data, self.validation = job.open_data(job.spec, job.manifests)
        torch.manual_seed(job.spec.seed)
        self.model = Decoder(job.spec.model)
        self.model.init_weights(job.spec.seed)
        self.model.train()
        prepare_blocks(self.model, self.spec.compile, self.spec.checkpoint_activations)
        self.loss = LossSum(self.model)
        self.loss_in_training = world.distribute(self.loss)
        self.parameters = list(self.model.parameters())
        self.optimizer = make_optimizer(self.model, self.spec.optimizer, self.spec.learning_rate)
        self.autocast = torch.autocast(
            self.device.type, dtype=torch.bfloat16, enabled=self.spec.precision == "bfloat16"
        )
        self.at = Progress()
        self.sizes = describe(job.spec.model, self.spec.sequence_length)
        # Backward computes two products for each of the forward pass.
        self.flops_per_token = 3 * self.sizes["flops_per_token"]
        peak = peak_flops(self.device, self.spec.precision)
        self.peak = peak and peak * world.size
        self.diverged = False
        rows = (self.spec.micro_batch_tokens or self.spec.batch_tokens) // self.spec.sequence_length
        self.micro_batch = MicroBatch(rows, work)
        self._every = self.spec.steps(self.spec.validation.every_tokens)
        self._saved: tuple[tuple[int, int], str] | None = None  # the last saved position and its state
        self._saved_at = time.monotonic()

    # --- the plan -----------------------------------------------------------------------------------------

    def fit(self) -> None:
        """Train what is left of the plan."""
        total, done = sum(segment.steps for segment in self.plan), len(self.at.history.rows)
        run = self.job.spec
        if not self.world.first:
            self._fit(lambda row: None)
            return
        log.info("weights, gradients and optimiser: %.2f GB on each device", state_bytes(self.model) / 1e9)
        with progress(f"{run.setting} {run.architecture} seed {run.seed}", total) as advance:
            report = Reporter(advance, total, done, self.spec.batch_tokens, self.flops_per_token, self.peak)
            self._fit(report.step)

    def _fit(self, report: Callable[[Row], None]) -> None:
        for index in range(self.at.segment, len(self.plan)):
            self._enter(index)
            self._train_segment(self.plan[index], report)

    def _enter(self, index: int) -> None:
        """Go on with a segment of the plan: after a branch, back to where the trunk was left."""
        left, segment = self.at.segment, self.plan[index]
        if index == left:
            return
        self.at.segment = index
        if segment.parent != left:
            assert self.at.fork is not None
            restore(self.work.load(self.at.fork).tensors, self.model, self.optimizer, self.world)
            self.at.step = segment.start
        if segment.branch == TRUNK:
            self.at.fork = None

    def _train_segment(self, segment: Segment, report: Callable[[Row], None]) -> None:
        while self.at.step < segment.stop:
            self.stop.lap()
            row = self._step(segment)
            self.at.step += 1
            self.at.history.rows.append(row)
            report(row)
            if self.at.step == segment.stop:
                self._finish_segment(segment)
            due = time.monotonic() - self._saved_at > self.job.save_seconds
            stop, save = self.world.any(bool(self.stop), due)
            if stop and len(self.at.outputs) < len(self.plan):
                self._interrupt()
            if save:
                self._save()

    def _finish_segment(self, segment: Segment) -> None:
        path = self.work.outputs / "checkpoints" / f"{segment.checkpoint}.safetensors"
        kind = PHASES[segment.checkpoint.split("-")[0]]
        tokens = segment.stop * self.spec.batch_tokens
        weights = self.world.gather(self.model.state_dict())

        def write() -> str:
            with self.work.writing():
                save_weights(path, weights, Metadata(dict(self.job.record), segment.stop, tokens, kind))
                return sha256_file(path)

        self.at.outputs[f"checkpoints/{path.name}"] = self.world.on_first(write)
        state = self._save()
        if segment.branch == TRUNK:
            self.at.fork = state

    # --- one step -----------------------------------------------------------------------------------------

    def _step(self, segment: Segment) -> Row:
        started = time.perf_counter()
        step = self.at.step + 1
        lr = learning_rate(self.spec, segment, step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        batch = self.data.batch(step - 1, self.world.rank, self.world.size)
        mean = self._gradients(batch.to(self.device, non_blocking=True))
        loss, grad_norm = self.world.values(mean, gradient_norm(self.parameters))
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            self._refuse(step, lr, loss, grad_norm)
        clip_gradients(self.parameters, self.spec.optimizer.clip, grad_norm)
        self.optimizer.step()
        seconds = time.perf_counter() - started
        return Row(
            branch=segment.branch,
            phase=phase(self.spec, segment, step),
            step=step,
            tokens=step * self.spec.batch_tokens,
            lr=lr,
            loss=loss,
            grad_norm=grad_norm,
            validation_loss=self._validate(step, segment),
            seconds=seconds,
        )

    def _gradients(self, batch: Batch) -> Tensor:
        """Forward and backward; the mean loss. Out of memory: again, in smaller micro-batches."""
        while True:
            self.optimizer.zero_grad()
            try:
                return accumulate(
                    self.loss_in_training,
                    split(batch, self.micro_batch.rows),
                    self.autocast,
                    self.world.divisor,
                    partial(self.world.partial, self.loss_in_training),
                )
            except torch.OutOfMemoryError as error:
                reason = str(error).partition("\n")[0]
            # Here the error, and what its frames held, is gone.
            self._take_fewer(len(batch.inputs), reason)

    def _take_fewer(self, n_rows: int, reason: str) -> None:
        """Halve the micro-batch after an attempt with n_rows at most."""
        self.micro_batch.rows = min(self.micro_batch.rows, n_rows)
        self.micro_batch.halve(reason)
        if self.world.size > 1:  # the others wait for this process: all start again together
            raise OutOfMemory(f"{reason}; the next attempt takes {self.micro_batch.rows} sequences at a time")
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _validate(self, step: int, segment: Segment) -> float | None:
        """The validation loss where it is due: nats per token, in-domain sets counting alike."""
        if step % self._every and step != segment.stop:
            return None
        while True:
            # Cut before it is shared out, so that all processes make equally many forward passes.
            rows = self.micro_batch.rows * self.world.size
            parts = (each for batch in self.validation for each in split(batch, rows))
            batches = (self.world.part(each).to(self.device) for each in parts)
            try:
                loss = mean_loss(self.loss, batches, self.autocast, self.world.totals)
                break
            except torch.OutOfMemoryError as error:
                reason = str(error).partition("\n")[0]
            self._take_fewer(max(len(batch.inputs) for batch in self.validation), reason)
        if not math.isfinite(loss):  # the step is made: a state saved now would go on behind it
            raise NonFiniteError(
                f"{self.job.spec.architecture}, step {step}: validation loss {loss} after the step. "
                f"The state saved last is kept in {self.work.path}. {self._remedies()}"
            )
        return loss

    def _refuse(self, step: int, lr: float, loss: float, grad_norm: float) -> NoReturn:
        state = self._save()
        raise NonFiniteError(
            f"{self.job.spec.architecture}, step {step}: loss {loss}, gradient norm {grad_norm} at learning "
            f"rate {lr:.3g}; the step was not made. The state before it is {self.work.path / state}. "
            + self._remedies()
        )

    def _remedies(self) -> str:
        return (
            f"Lower train.overrides.{self.job.spec.architecture}.learning_rate or train.learning_rate, lower "
            "train.optimizer.clip, or raise train.schedule.warmup_fraction"
        )

    def _interrupt(self) -> NoReturn:
        self._save()
        error = Interrupted(
            f"stopped by {self.stop.reason} after step {self.at.step} of "
            f"{self.plan[self.at.segment].branch}; the same command goes on from {self.work.path}"
        )
        error.signal = self.stop.signal
        raise error

    # --- state --------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Take the run up where the newest whole state left it, if there is one."""
        state = self._newest()
        if state is not None:
            self._take_up(state)
        if self.job.invocation is not None:
            note = partial(self.work.note_attempt, self.job.invocation, len(self.at.history.rows))
            self.world.on_first(note)

    def _newest(self) -> State | None:
        """The first process looks for it and finds out what is damaged; the others read what it found."""
        found: list[State] = []

        def find() -> str | None:
            found.extend(state for state in [self.work.load_newest()] if state is not None)
            return found[0].name if found else None

        name = self.world.on_first(find)
        return None if name is None else found[0] if found else self.work.load(name)

    def _take_up(self, state: State) -> None:
        info = dict(state.info)
        needs = info.pop("needs")
        restore(state.tensors, self.model, self.optimizer, self.world)
        self.at = Progress(**info, fork=needs, history=history_of(state.tensors))
        self.at.resumed += 1
        segment = self.plan[self.at.segment]
        if segment.branch == TRUNK and self.at.step == segment.stop:
            self.at.fork = state.name
        self._saved = ((self.at.segment, self.at.step), state.name)
        log.info("resumed after step %d of %s", self.at.step, segment.branch)

    def _save(self) -> str:
        """Save the state; its name. A position that is saved already is not saved again."""
        position = (self.at.segment, self.at.step)
        if self._saved is None or self._saved[0] != position:
            info = {
                "segment": self.at.segment,
                "step": self.at.step,
                "resumed": self.at.resumed,
                "outputs": self.at.outputs,
            }
            tensors = pack(self.model, self.optimizer, self.at.history, self.world)
            name = self.world.on_first(lambda: self.work.save(tensors, info, needs=self.at.fork))
            self._saved = (position, name)
        self._saved_at = time.monotonic()
        return self._saved[1]

    # --- results ------------------------------------------------------------------------------------------

    def write_results(self) -> None:
        """metrics.parquet, timing.parquet and run.json beside the checkpoints."""
        run, out, history = self.job.spec, self.work.outputs, self.at.history
        timing = history.timing(self.spec.batch_tokens, self.flops_per_token, self.peak)
        with self.work.writing():
            metrics = history.metrics(run.architecture, run.setting, run.seed)
            write_parquet(out / "metrics.parquet", metrics, self.job.record)
            write_parquet(out / "timing.parquet", timing, self.job.record)
            write_json(out / "run.json", self._summary())

    def _summary(self) -> dict[str, Any]:
        rows = self.at.history.rows
        seconds = sum(row.seconds for row in rows)
        tokens = len(rows) * self.spec.batch_tokens
        return {
            "provenance": dict(self.job.record),
            "checkpoints": {} if self.job.trial else self.at.outputs,
            "model": {**self.sizes, "training_flops_per_token": self.flops_per_token},
            "steps": len(rows),
            "tokens": tokens,
            "seconds": seconds,
            "tokens_per_second": tokens / seconds if rows else None,
            "mfu": tokens / seconds * self.flops_per_token / self.peak if rows and self.peak else None,
            "resumed": self.at.resumed,
            "diverged": self.diverged,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "environment": {**environment(self.device), "processes": self.world.size},
            "micro_batch_sequences": self.micro_batch.rows,
        }
