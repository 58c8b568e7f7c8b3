"""Options of the recall evaluation: `evaluation.recall` of a configuration, and the slice one job gets."""

from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, StringConstraints, model_validator

from seqarch.schema import Spec
from seqarch.tasks.recall.spec import RecallTask
from seqarch.training.spec import Optimizer, Share

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]  # it becomes a directory


class _Options(Spec):
    """How models are trained on recall tasks and measured, whatever they are."""

    seeds: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)]  # of weights and training sequences
    learning_rates: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)]  # increasing
    # Seeds that try every learning rate; the others train at the best one alone. Null: all.
    sweep_seeds: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] | None = None
    warmup_fraction: Share = 0.1  # of a run's steps; then half a cosine to zero
    optimizer: Optimizer = Optimizer(betas=(0.9, 0.98))
    precision: Literal["float32", "bfloat16"] = "float32"
    n: PositiveInt = 200  # test sequences of a cell
    n_validation: PositiveInt = 192  # sequences that a learning rate is chosen on, like training's
    seed: NonNegativeInt = 0  # draws both
    batch_tokens: PositiveInt = 16_384  # of a forward pass that scores
    torch_threads: PositiveInt = 1

    @model_validator(mode="after")
    def _consistent(self) -> "_Options":
        rates = list(self.learning_rates)
        if rates != sorted(set(rates)):
            raise ValueError(f"learning_rates must increase: {rates}")
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"a seed is there twice: {list(self.seeds)}")
        if missing := set(self.sweep) - set(self.seeds):
            raise ValueError(f"sweep_seeds {sorted(missing)} are not among seeds {list(self.seeds)}")
        return self

    @property
    def sweep(self) -> tuple[int, ...]:
        """The seeds that try every learning rate."""
        return self.seeds if self.sweep_seeds is None else self.sweep_seeds


class RecallSpec(_Options):
    """`evaluation.recall`: small models trained from scratch on synthetic tasks."""

    d_model: Annotated[int, Field(ge=8)]
    n_layers: PositiveInt  # of the transformer; the others match its parameters, as everywhere
    tie_embeddings: bool = True
    entries: dict[Name, dict[str, Any]] = {}  # like `architectures`, for these tasks alone
    architectures: tuple[str, ...] | None = None  # of both kinds; null: all
    tasks: Annotated[dict[Name, RecallTask], Field(min_length=1)]

    def options(self) -> dict[str, Any]:
        """What a job needs of it beside its task and its model, as JSON."""
        return self.model_dump(mode="json", include=set(_Options.model_fields))


class RecallJob(_Options):
    """One job: one architecture on one task, all learning rates and seeds."""

    experiment: str
    name: str  # of the task
    architecture: str
    model: dict[str, Any]  # resolved: seqarch.architecture.resolve
    task: RecallTask
