"""The training loop: one run from its spec to its run directory, resumable at every step.

The run follows its plan (seqarch.training.schedule) segment by segment. What is needed to go on is a state:
the position in the plan, weights, optimiser and the rows measured so far. It is saved every so often, at the
end of each segment, and when a signal or a loss that is not finite stops the run. Batches are a pure function
of the step, so a resumed run is bitwise the uninterrupted one (on a CPU).
"""

import logging
import math
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from seqarch.architecture import describe
from seqarch.files import sha256_file, write_json, write_parquet
from seqarch.model import Decoder
from seqarch.progress import progress
from seqarch.training.checkpoint import Metadata, on_cpu, save_model
from seqarch.training.data import OpenData, open_data
from seqarch.training.environment import environment, pick_device
from seqarch.training.errors import Interrupted, NonFiniteError
from seqarch.training.metrics import History, Row, peak_flops
from seqarch.training.numerics import numerics
from seqarch.training.optimizer import make_optimizer
from seqarch.training.report import Reporter
from seqarch.training.schedule import PHASES, TRUNK, Segment, learning_rate, phase, plan
from seqarch.training.signals import Stop, stop_on_signal
from seqarch.training.spec import RunSpec
from seqarch.training.step import accumulate, clip_gradients, gradient_norm, mean_loss, split
from seqarch.training.workdir import WorkDirectory, fingerprint

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """One training run, as a launcher hands it to the process that trains.

    Attributes:
        manifests: token manifests: `train/<domain>`, and `validation/<domain>` of the in-domain ones.
        work: the directory for unfinished runs. run: the run directory to make.
        record: provenance of the outputs.
        device: cpu, cuda or auto.
        save_seconds: between two saved states.
        trial: the run only tries a learning rate: it keeps no checkpoint, and a loss that is not finite ends
            it with what was measured before.
        open_data: opens the data that the spec names.
    """

    spec: RunSpec
    manifests: Mapping[str, Path]
    work: Path
    run: Path
    record: Mapping[str, Any]
    device: str = "auto"
    save_seconds: float = 300.0
    trial: bool = False
    open_data: OpenData = open_data


def train(job: Job) -> None:
    """Train, or go on training, and leave the finished run directory.

    Raises:
        Interrupted: a signal stopped it; the same call goes on from there.
        NonFiniteError: the loss or a gradient is not finite.
        TrainingError: anything else in the way (device, working directory, data).
    """
    device = pick_device(job.device)
    with (
        numerics(job.spec.train.torch_threads, device),
        stop_on_signal() as stop,
        WorkDirectory(job.work, fingerprint(job.record)) as work,
    ):
        trainer = Trainer(job, device, work, stop)
        trainer.resume()
        try:
            trainer.fit()
        except NonFiniteError as error:
            if not job.trial:
                raise
            log.warning("%s", error)
            trainer.diverged = True
        trainer.write_results()
        work.publish(job.run)
        work.remove()
    log.info("finished: %s", job.run)


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

    def __init__(self, job: Job, device: torch.device, work: WorkDirectory, stop: Stop) -> None:
        self.job, self.device, self.work, self.stop = job, device, work, stop
        self.spec = job.spec.train
        self.plan = plan(self.spec)
        self.data, self.validation = job.open_data(job.spec, job.manifests)
        torch.manual_seed(job.spec.seed)
        self.model = Decoder(job.spec.model)
        self.model.init_weights(job.spec.seed)
        self.model.to(device).train()
        self.parameters = list(self.model.parameters())
        self.optimizer = make_optimizer(self.model, self.spec.optimizer, self.spec.learning_rate)
        self.autocast = torch.autocast(
            device.type, dtype=torch.bfloat16, enabled=self.spec.precision == "bfloat16"
        )
        self.at = Progress()
        self.sizes = describe(job.spec.model, self.spec.sequence_length)
        # Backward computes two products for each of the forward pass.
        self.flops_per_token = 3 * self.sizes["flops_per_token"]
        self.peak = peak_flops(device, self.spec.precision)
        self.diverged = False
        self._rows = (self.spec.micro_batch_tokens or self.spec.batch_tokens) // self.spec.sequence_length
        self._every = self.spec.steps(self.spec.validation.every_tokens)
        self._saved: tuple[tuple[int, int], str] | None = None  # the last saved position and its state
        self._saved_at = time.monotonic()

    # --- the plan -----------------------------------------------------------------------------------------

    def fit(self) -> None:
        """Train what is left of the plan."""
        total, done = sum(segment.steps for segment in self.plan), len(self.at.history.rows)
        run = self.job.spec
        with progress(f"{run.setting} {run.architecture} seed {run.seed}", total) as advance:
            report = Reporter(advance, total, done, self.spec.batch_tokens, self.flops_per_token, self.peak)
            for index in range(self.at.segment, len(self.plan)):
                self._enter(index)
                self._train_segment(self.plan[index], report.step)

    def _enter(self, index: int) -> None:
        """Go on with a segment of the plan: after a branch, back to where the trunk was left."""
        left, segment = self.at.segment, self.plan[index]
        if index == left:
            return
        self.at.segment = index
        if segment.parent != left:
            assert self.at.fork is not None
            self._restore_tensors(self.work.load(self.at.fork).tensors)
            self.at.step = segment.start
        if segment.branch == TRUNK:
            self.at.fork = None

    def _train_segment(self, segment: Segment, report: Callable[[Row], None]) -> None:
        while self.at.step < segment.stop:
            row = self._step(segment)
            self.at.step += 1
            self.at.history.rows.append(row)
            report(row)
            if self.at.step == segment.stop:
                self._finish_segment(segment)
            if self.stop and len(self.at.outputs) < len(self.plan):
                self._interrupt()
            if time.monotonic() - self._saved_at > self.job.save_seconds:
                self._save()

    def _finish_segment(self, segment: Segment) -> None:
        path = self.work.outputs / "checkpoints" / f"{segment.checkpoint}.safetensors"
        kind = PHASES[segment.checkpoint.split("-")[0]]
        tokens = segment.stop * self.spec.batch_tokens
        with self.work.writing():
            save_model(path, self.model, Metadata(dict(self.job.record), segment.stop, tokens, kind))
            self.at.outputs[f"checkpoints/{path.name}"] = sha256_file(path)
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
        batch = self.data.batch(step - 1).to(self.device, non_blocking=True)
        self.optimizer.zero_grad()
        mean = accumulate(self.model, split(batch, self._rows), self.autocast)
        norm = gradient_norm(self.parameters)
        loss, grad_norm = torch.stack([mean, norm]).tolist()  # the one wait for the device
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

    def _validate(self, step: int, segment: Segment) -> float | None:
        """The validation loss where it is due: nats per token, in-domain sets counting alike."""
        if step % self._every and step != segment.stop:
            return None
        batches = (batch.to(self.device) for batch in self.validation)
        return mean_loss(self.model, batches, self.autocast)

    def _refuse(self, step: int, lr: float, loss: float, grad_norm: float) -> NoReturn:
        state = self._save()
        raise NonFiniteError(
            f"{self.job.spec.architecture}, step {step}: loss {loss}, gradient norm {grad_norm} at learning "
            f"rate {lr:.3g}; the step was not made. The state before it is {self.work.path / state}. Lower "
            f"train.overrides.{self.job.spec.architecture}.learning_rate or train.learning_rate, lower "
            "train.optimizer.clip, or raise train.schedule.warmup_fraction"
        )

    def _interrupt(self) -> NoReturn:
        self._save()
        assert self.stop.signal is not None
        raise Interrupted(
            f"stopped by {self.stop.signal.name} after step {self.at.step} of "
            f"{self.plan[self.at.segment].branch}; the same command goes on from {self.work.path}"
        )

    # --- state --------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Take the run up where the newest whole state left it, if there is one."""
        state = self.work.load_newest()
        if state is None:
            return
        info = dict(state.info)
        needs = info.pop("needs")
        self._restore_tensors(state.tensors)
        history = History.from_bytes(state.tensors["history"].numpy().tobytes())
        self.at = Progress(**info, fork=needs, history=history)
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
            self._saved = (position, self.work.save(self._tensors(), info, needs=self.at.fork))
        self._saved_at = time.monotonic()
        return self._saved[1]

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        for index, moments in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": tensor for name, tensor in moments.items()}
        tensors["rng"] = torch.get_rng_state()
        tensors["history"] = torch.frombuffer(bytearray(self.at.history.to_bytes()), dtype=torch.uint8)
        return on_cpu(tensors)

    def _restore_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Weights, optimiser and random state; the history stays."""
        weights: dict[str, Tensor] = {}
        moments: dict[int, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            kind, _, name = key.partition(".")
            if kind == "model":
                weights[name] = tensor
            elif kind == "optimizer":
                index, _, name = name.partition(".")
                moments.setdefault(int(index), {})[name] = tensor
        self.model.load_state_dict(weights)
        self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": moments})
        torch.set_rng_state(tensors["rng"])

    # --- results ------------------------------------------------------------------------------------------

    def write_results(self) -> None:
        """metrics.parquet, timing.parquet and run.json beside the checkpoints."""
        run, out, history = self.job.spec, self.work.outputs, self.at.history
        timing = history.timing(self.spec.batch_tokens, self.flops_per_token, self.peak)
        with self.work.writing():
            if self.job.trial:
                shutil.rmtree(out / "checkpoints", ignore_errors=True)
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
            "mfu": self.peak and rows and tokens / seconds * self.flops_per_token / self.peak,
            "resumed": self.at.resumed,
            "diverged": self.diverged,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "environment": environment(self.device),
        }
