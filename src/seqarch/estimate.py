"""What an experiment will cost before anything of it runs: accelerator-hours, memory, disk, jobs.

Compute: a training token costs three forward passes (Kaplan et al., arXiv 2001.08361, section 2.1: backward
is twice forward), each `flops_per_token` of the architecture's own count; an accelerator does `peak`·`mfu`.

Memory of one accelerator, bytes, for n parameters, micro-batches of m tokens, depth L, width d, vocabulary V:

    16 n / shards                      float32 weights, gradients and both moments of AdamW
    + m d (34 L)  or  m d (2 L + 34)   what backward needs, in bfloat16, kept or computed again (activation
                                       checkpointing; Korthikanti et al., arXiv 2205.05198, section 4, without
                                       the T x T matrices, which no op here stores)
    + 10 m V                           logits in bfloat16, in float32, and their gradient

shards: the processes of a sharded run (FSDP2), else 1. Recurrent mixers keep up to
twice the second term for their gates: these are estimates.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from seqarch.architecture import describe
from seqarch.plan import Plan
from seqarch.rules import RULES
from seqarch.training.schedule import plan as segments
from seqarch.training.spec import TrainSpec, checkpoint_names

BYTES_PER_TOKEN = 4.0  # of English text under a vocabulary of 32K and more
ZSTD = 2.5  # how much smaller Parquet with zstd makes English text
STATES = 3  # kept while a run is unfinished: the last two, and the one a branch returns to


@dataclass(frozen=True)
class Machine:
    """What runs the experiment.

    Attributes:
        peak: FLOP/s of one accelerator, dense. mfu: the share of it that training reaches.
        at_once: accelerators at work at the same time.
    """

    peak: float
    mfu: float
    at_once: int = 1

    def hours(self, flops: float) -> float:
        return flops / (self.peak * self.mfu) / 3600


def training_tokens(spec: TrainSpec) -> int:
    """Tokens that one run trains on, the decays of all budgets included."""
    return sum(segment.steps for segment in segments(spec)) * spec.batch_tokens


def memory_bytes(model: Mapping[str, Any], spec: TrainSpec, recompute: bool) -> float:
    """Of one accelerator in training; see the formula above."""
    n, sharded = describe(model, spec.sequence_length)["num_params"], getattr(spec.launcher, "sharded", False)
    shards = spec.processes if sharded else 1
    m = min(spec.micro_batch_tokens or spec.batch_tokens, spec.batch_tokens // spec.processes)
    d, depth = model["d_model"], len(model["layers"])
    kept = m * d * (2 * depth + 34) if recompute else m * d * 34 * depth
    return 16 * n / shards + kept + 10 * m * model["vocab_size"]


def by_architecture(plan: Plan, machine: Machine) -> Iterator[dict[str, Any]]:
    """One row an architecture: its runs, trials and evaluations in all settings and seeds."""
    experiment = plan.experiment
    loss = experiment.evaluation.loss
    for name, model in plan.models.items():
        spec = plan.slices.runs[name]
        counts = describe(model, spec.sequence_length)
        forward, runs = counts["flops_per_token"], len(list(plan.jobs("train", architecture=name)))
        trials = sum(
            training_tokens(experiment.train.for_trial(name, plan.slices.rates[name][job["rate"]]))
            for job in plan.jobs("sweep", architecture=name)
        )
        tokens = training_tokens(spec)
        kinds = [each for each in checkpoint_names(spec) if each.rsplit("-", 1)[0] in loss.checkpoints]
        twice = 2 if loss.window_mode == "sliding" else 1
        scored = loss.bytes_per_domain / BYTES_PER_TOKEN * len(experiment.corpus.domains) * twice
        scored *= len(kinds) * len(loss.windows)
        training = 3 * forward * (tokens * runs + trials)
        yield {
            "architecture": name,
            "parameters": counts["num_params"],
            "runs": runs,
            "tokens_per_run": tokens,
            "flops_per_token": forward,
            "training_hours": machine.hours(3 * forward * tokens * runs),
            "trial_hours": machine.hours(3 * forward * trials),
            "loss_hours": machine.hours(forward * scored * runs),
            "hours_per_run": machine.hours(3 * forward * tokens) / spec.processes,
            "accelerators_per_run": spec.processes,
            "training_flops": training,
            "memory_bytes": memory_bytes(model, spec, recompute=False),
            "memory_bytes_recomputed": memory_bytes(model, spec, recompute=True),
            "checkpoint_bytes": 4 * counts["num_params"] * len(checkpoint_names(spec)) * runs,
            "state_bytes": STATES * 12 * counts["num_params"],
        }


def disk(plan: Plan, rows: list[dict[str, Any]]) -> dict[str, float]:
    """Bytes by kind. The text is at least what the longest run reads once, if it reads nothing twice."""
    experiment = plan.experiment
    unique = max(max(spec.budgets) for spec in plan.slices.runs.values())
    until = "" if experiment.corpus.keep_text else ", until it is tokenized"
    width = 2 if experiment.tokenizer.vocab_size <= 2**16 else 4
    return {
        "token files, at least": float(unique * width),
        f"filtered text, at least{until}": unique * BYTES_PER_TOKEN / ZSTD,
        "checkpoints": float(sum(row["checkpoint_bytes"] for row in rows)),
        "states of unfinished runs, each at most": float(max(row["state_bytes"] for row in rows)),
    }


def jobs(plan: Plan) -> dict[str, int]:
    """Rule -> number of its jobs."""
    counted = {rule: sum(1 for _ in plan.jobs(rule)) for rule in RULES}
    return {rule: number for rule, number in counted.items() if number}
