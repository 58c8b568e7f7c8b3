"""The options of training: the section `train:` of a configuration, and what is left of it for one run."""

from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from seqarch.schema import Spec

Fraction = Annotated[float, Field(gt=0, lt=1)]
Share = Annotated[float, Field(ge=0, lt=1)]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]  # it becomes a directory


class Cosine(Spec):
    """Linear warm-up, then half a cosine that ends at the last budget. The smaller budgets give `mid`
    checkpoints, which are not annealed: for models of several budgets in one phase use WSD."""

    kind: Literal["cosine"]
    warmup_fraction: Share = 0.01  # of the steps of the last budget
    final_fraction: Share = 0.1  # learning rate at the end / peak


class WSD(Spec):
    """Warm-up, stable, decay (arXiv 2404.06395): a trunk at constant learning rate, and for each budget a
    short branch that decays linearly. Each budget so gets an annealed model for the price of its decay."""

    kind: Literal["wsd"]
    warmup_fraction: Share = 0.01  # of the steps of the last budget
    decay_fraction: Fraction = 0.2  # of the steps of each budget
    final_fraction: Share = 0.0  # learning rate that the decay aims at / peak


class Optimizer(Spec):
    """AdamW."""

    betas: tuple[Share, Share] = (0.9, 0.95)
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.1
    clip: PositiveFloat | None = 1.0  # largest global gradient norm; null: no clipping


class Validation(Spec):
    """In-domain validation loss: on the way every `every_tokens`, and at every checkpoint."""

    tokens: PositiveInt
    every_tokens: PositiveInt


class InProcess(Spec):
    """Train in the step's own process, on one CPU or GPU."""

    kind: Literal["inprocess"] = "inprocess"


class Submitit(Spec):
    """Train in several processes of one node, started by submitit: one for each GPU, or on a CPU."""

    kind: Literal["submitit"]
    processes: PositiveInt
    sharded: bool = False  # parameters, gradients and optimiser split between them (FSDP2), not copied (DDP)


class Grid(Spec):
    """Learning rates to try for each architecture and setting: the one with the lowest in-domain validation
    loss is taken. Every rate trains one model from the start, on `budget` tokens."""

    grid: Annotated[tuple[PositiveFloat, ...], Field(min_length=2)]  # increasing
    budget: PositiveInt | None = None  # tokens of a trial; null: the first of `budgets`
    seed: NonNegativeInt = 0

    @field_validator("grid")
    @classmethod
    def _increases(cls, rates: tuple[float, ...]) -> tuple[float, ...]:
        if list(rates) != sorted(set(rates)):
            raise ValueError(f"learning rates must increase: {list(rates)}")
        return rates


class TrainSpec(Spec):
    """How one run trains, whatever it trains and on what."""

    sequence_length: PositiveInt
    batch_tokens: PositiveInt  # of one optimiser step
    micro_batch_tokens: PositiveInt | None = None  # of one forward and backward pass; null: the whole batch
    budgets: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]  # tokens, increasing
    schedule: Annotated[Cosine | WSD, Field(discriminator="kind")]
    learning_rate: PositiveFloat
    optimizer: Optimizer = Optimizer()
    document_mask: bool = False
    precision: Literal["float32", "bfloat16"] = "float32"
    validation: Validation
    checkpoint_activations: bool = False  # compute blocks again in the backward pass: less memory, more time
    compile: bool = False  # each block by torch.compile
    torch_threads: PositiveInt = 1  # of each process
    launcher: Annotated[InProcess | Submitit, Field(discriminator="kind")] = InProcess()

    @model_validator(mode="after")
    def _fits(self) -> "TrainSpec":
        for key in ("batch_tokens", "micro_batch_tokens"):
            tokens = getattr(self, key)
            if tokens is not None and tokens % self.sequence_length:
                raise ValueError(
                    f"{key} {tokens} is not a multiple of sequence_length {self.sequence_length}"
                )
        sequences = self.batch_tokens // self.sequence_length
        if sequences % self.processes:
            raise ValueError(
                f"launcher: {self.processes} processes cannot share the {sequences} sequences of a batch"
            )
        steps = [self.steps(budget) for budget in self.budgets]
        if steps != sorted(set(steps)):
            raise ValueError(f"budgets must increase by at least one step each; they are {steps} steps")
        wsd = isinstance(self.schedule, WSD)
        first = fork_step(self, self.budgets[0]) if wsd else self.total_steps - 1
        if first < max(self.warmup_steps, int(wsd)):
            raise ValueError(
                f"the warm-up takes {self.warmup_steps} steps (warmup_fraction of the last budget), but the "
                f"first decay starts after step {first}: lower warmup_fraction or decay_fraction, or raise "
                "the first budget"
            )
        return self

    def steps(self, budget: int) -> int:
        """Optimiser steps that a budget in tokens pays for."""
        return max(1, round(budget / self.batch_tokens))

    @property
    def processes(self) -> int:
        """That train together; one for each GPU."""
        return self.launcher.processes if isinstance(self.launcher, Submitit) else 1

    @property
    def total_steps(self) -> int:
        return self.steps(self.budgets[-1])

    @property
    def warmup_steps(self) -> int:
        return round(self.schedule.warmup_fraction * self.total_steps)


class Override(Spec):
    """What one architecture does differently: nothing that would make a comparison unfair."""

    budgets: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] | None = None
    learning_rate: PositiveFloat | Grid | None = None


class TrainSection(TrainSpec):
    """The whole section `train:`, for all runs of an experiment."""

    learning_rate: PositiveFloat | Grid  # type: ignore[assignment]  # of a run: a number
    settings: Annotated[dict[Name, Literal["in", "all"] | dict[str, PositiveFloat]], Field(min_length=1)]
    seeds: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)]
    overrides: dict[str, Override] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _runs_are_valid(self) -> "TrainSection":
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"a seed is there twice: {list(self.seeds)}")
        for setting, weights in self.settings.items():
            if isinstance(weights, dict) and not weights:
                raise ValueError(f"settings.{setting} names no domain")
        if self.grid_of("") is not None:
            self.for_trial("", 1.0)
        for architecture in self.overrides:
            try:
                self.for_run(architecture)
                if self.grid_of(architecture) is not None:
                    self.for_trial(architecture, 1.0)
            except ValidationError as error:
                raise ValueError(f"overrides.{architecture}: {error.errors()[0]['msg']}") from error
        return self

    def grid_of(self, architecture: str) -> Grid | None:
        """The learning rates that are tried for this architecture; None where its rate is given."""
        override = self.overrides.get(architecture, Override()).learning_rate
        rate = self.learning_rate if override is None else override
        return rate if isinstance(rate, Grid) else None

    def for_run(self, architecture: str) -> TrainSpec:
        """The options of one architecture's runs, its overrides applied. Where the learning rate is to be
        chosen from a grid, its lowest stands for it."""
        values = self.model_dump(exclude={"settings", "seeds", "overrides"})
        if architecture in self.overrides:
            values |= self.overrides[architecture].model_dump(exclude_none=True)
        grid = self.grid_of(architecture)
        return TrainSpec.model_validate(values | ({"learning_rate": grid.grid[0]} if grid else {}))

    def for_trial(self, architecture: str, learning_rate: float) -> TrainSpec:
        """The options of a run that tries a learning rate of the architecture's grid."""
        run, grid = self.for_run(architecture), self.grid_of(architecture)
        assert grid is not None
        budgets = (grid.budget or run.budgets[0],)
        return TrainSpec.model_validate(
            run.model_dump() | {"learning_rate": learning_rate, "budgets": budgets}
        )


class TokenData(Spec):
    """Next-token prediction on tokenized text."""

    kind: Literal["tokens"]
    weights: Annotated[
        dict[str, PositiveFloat | None], Field(min_length=1)
    ]  # training domains; null: by tokens
    id_domains: Annotated[tuple[str, ...], Field(min_length=1)]  # of the validation loss

    @model_validator(mode="after")
    def _weights_are_of_one_kind(self) -> "TokenData":
        nulls = sum(weight is None for weight in self.weights.values())
        if nulls not in (0, len(self.weights)):
            raise ValueError(f"weights: give every domain a weight, or none of them: {self.weights}")
        return self


class TaskData(Spec):
    """A task that makes its own sequences. Its module reads its options: a new one of them changes no
    fingerprint of training on text."""

    kind: Literal["recall"]
    task: dict[str, Any]  # seqarch.tasks.recall.spec
    seed: NonNegativeInt = 0  # of the validation sequences, which all runs share


class RunSpec(Spec):
    """Everything one training run depends on, besides its code and its input files."""

    architecture: str
    setting: str
    seed: NonNegativeInt
    model: dict[str, Any]  # resolved: seqarch.architecture.resolve
    data: Annotated[TokenData | TaskData, Field(discriminator="kind")]
    train: TrainSpec


def fork_step(spec: TrainSpec, budget: int) -> int:
    """The trunk's step after which the decay of `budget` starts."""
    assert isinstance(spec.schedule, WSD)
    steps = spec.steps(budget)
    return steps - max(1, round(spec.schedule.decay_fraction * steps))


def checkpoint_names(spec: TrainSpec) -> list[str]:
    """The checkpoints of a run, in the order of training, without `.safetensors`.

    WSD: `stable-<step>` where a decay starts and `annealed-<step>` where it ends, for each budget.
    Cosine: `mid-<step>` at each budget but the last, `annealed-<step>` at that.
    """
    if isinstance(spec.schedule, Cosine):
        names = [checkpoint_name("mid", spec.steps(budget)) for budget in spec.budgets[:-1]]
        return [*names, checkpoint_name("annealed", spec.total_steps)]
    names = []
    for budget in spec.budgets:
        names += [
            checkpoint_name("stable", fork_step(spec, budget)),
            checkpoint_name("annealed", spec.steps(budget)),
        ]
    return list(dict.fromkeys(names))


def checkpoint_name(kind: str, step: int) -> str:
    return f"{kind}-{step:08d}"
