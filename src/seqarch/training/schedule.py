"""The order of a run's steps and the learning rate of each.

A run is a list of segments. With WSD (arXiv 2404.06395) the trunk is cut where a decay starts, and each decay
is a branch that starts from the trunk there; the trunk then goes on from where it was, with the batches it
would have had without the branch:

    trunk   0 ───────────── s₁ ───────────── s₂ ─────── …      η = η_peak
    branch                  s₁ ╲_ n₁         s₂ ╲_ n₂          η = η_peak (f + (1 - f) (1 - k / (D + 1)))

at the branch's steps k = 1 … D, with n = steps(budget), D = decay_fraction · n, s = n - D. The decay ends one
step above its aim f η_peak, so that no step is made at a learning rate of zero. Warm-up: η = η_peak · t / W
at the steps t = 1 … W. Cosine, at the steps t = W + 1 … N:

    η = η_peak (f + (1 - f) (1 + cos(π (t - 1 - W) / (N - W))) / 2)
"""

import math
from dataclasses import dataclass

from seqarch.training.spec import Cosine, TrainSpec, checkpoint_name, fork_step

TRUNK = "trunk"
PHASES = {
    "stable": "stable",
    "annealed": "annealed",
    "mid": "mid_cosine",
}  # of a checkpoint, by its name's first part


@dataclass(frozen=True)
class Segment:
    """Steps start + 1 … stop (counted from 1, with the trunk's steps before them), then a checkpoint.

    Attributes:
        branch: `trunk`, or the name of the checkpoint a decay makes.
        parent: index in the plan of the segment at whose end this one starts; None: at the initial weights.
    """

    branch: str
    start: int
    stop: int
    parent: int | None
    checkpoint: str

    @property
    def steps(self) -> int:
        return self.stop - self.start


def plan(spec: TrainSpec) -> list[Segment]:
    """The segments of a run in the order they are trained."""
    segments: list[Segment] = []
    trunk: int | None = None  # index of the last segment of the trunk
    for budget in spec.budgets:
        stop = spec.steps(budget)
        if isinstance(spec.schedule, Cosine):
            cut, kind = stop, "annealed" if stop == spec.total_steps else "mid"
        else:
            cut, kind = fork_step(spec, budget), "stable"
        start = segments[trunk].stop if trunk is not None else 0
        if trunk is None or cut > start:
            segments.append(Segment(TRUNK, start, cut, trunk, checkpoint_name(kind, cut)))
            trunk = len(segments) - 1
        if not isinstance(spec.schedule, Cosine):
            name = checkpoint_name("annealed", stop)
            segments.append(Segment(name, cut, stop, trunk, name))
    return segments


def learning_rate(spec: TrainSpec, segment: Segment, step: int) -> float:
    """The learning rate of step `step` = start + 1 … stop of `segment`."""
    peak, schedule, warmup = spec.learning_rate, spec.schedule, spec.warmup_steps
    if step <= warmup:
        return peak * step / warmup
    if isinstance(schedule, Cosine):
        share = (1 + math.cos(math.pi * (step - 1 - warmup) / (spec.total_steps - warmup))) / 2
    elif segment.branch == TRUNK:
        return peak
    else:
        share = 1 - (step - segment.start) / (segment.steps + 1)
    return peak * (schedule.final_fraction + (1 - schedule.final_fraction) * share)


def phase(spec: TrainSpec, segment: Segment, step: int) -> str:
    """The phase of the model that step `step` makes: warmup, stable, decay, annealed or mid_cosine."""
    if step == segment.stop and segment.checkpoint.startswith("annealed-"):
        return "annealed"
    if step <= spec.warmup_steps:
        return "warmup"
    if isinstance(spec.schedule, Cosine):
        return "mid_cosine"
    return "stable" if segment.branch == TRUNK else "decay"
