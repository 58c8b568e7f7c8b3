"""Options of the analysis: `studies` (what is compared with what), `statistics` (how, fixed beforehand)."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from seqarch.schema import Spec

Phase = Literal["annealed", "stable", "mid_cosine"]


# Figures of paper A that show some studies alone; modules of seqarch.figures.
StudyFigure = Literal["limited_mixed", "stateful", "minor_factors", "major_factors", "top1"]


class StudySpec(Spec):
    """One comparison: each of `compare` against `reference`; entries of `architectures`."""

    reference: str
    compare: Annotated[tuple[str, ...], Field(min_length=1)]
    figures: tuple[StudyFigure, ...] = ()  # that show it

    @model_validator(mode="after")
    def _names(self) -> "StudySpec":
        if self.reference in self.compare:
            raise ValueError(f"the reference {self.reference!r} is also in compare: leave it out there")
        if len(set(self.compare)) != len(self.compare):
            raise ValueError(f"compare names an architecture twice: {list(self.compare)}")
        return self

    @property
    def architectures(self) -> tuple[str, ...]:
        return (self.reference, *self.compare)


class StatisticsSpec(Spec):
    """How out-of-domain losses are compared at equal in-domain loss."""

    margin: Annotated[float, Field(gt=0)] = 0.02  # nats per token; smaller differences do not matter
    x0: Literal["lowest", "middle", "highest"] | float = (
        "lowest"  # the primary point: on the grid, or in nats
    )
    grid: Annotated[int, Field(ge=2)] = 5  # equally spaced points of the common interval
    common: Literal["study", "pair"] = "study"  # the curves whose ranges must overlap
    interpolation: Literal["linear", "pchip"] = "linear"
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    bootstrap: Annotated[int, Field(ge=100)] = 2000
    seed: int = 0
    phases: Annotated[tuple[Phase, ...], Field(min_length=1)] = (
        "annealed",
    )  # checkpoints that make the curves
    exploratory: bool = False  # admit mid-cosine checkpoints and mixed phases; the table says so


class EqualLossJob(Spec):
    """`cli.equal_loss`."""

    studies: dict[str, StudySpec]
    statistics: StatisticsSpec
    domains: dict[str, Literal["in", "out"]]  # compared; the documents of others are left out


class SensitivityJob(EqualLossJob):
    """`cli.sensitivity`."""

    settings: dict[str, dict[str, float | None]]  # training domains and weights; null: by tokens


class TablesJob(Spec):
    """`cli.tables`."""

    experiment: str


class UnigramJob(Spec):
    """`cli.unigram`."""

    experiment: str
    settings: dict[str, dict[str, float | None]]  # training domains and weights; null: by tokens
    domains: dict[str, Literal["in", "out"]]
    max_tokens: Annotated[int, Field(gt=0)] = 20_000_000  # counted of each training domain, at most
