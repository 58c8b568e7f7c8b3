"""Options of the figures: `figures` of a configuration."""

from typing import Annotated, Literal

from pydantic import Field

from seqarch.schema import Spec


class FiguresSpec(Spec):
    formats: Annotated[tuple[Literal["svg", "png"], ...], Field(min_length=1)] = ("svg", "png")
    dpi: Annotated[int, Field(ge=50, le=600)] = 200  # of the PNG


class FigureJob(FiguresSpec):
    """`cli.figure`: one figure."""

    figure: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]  # a module of seqarch.figures
    study: str | None = None  # of the table equal_loss; null: all of them
    studies: tuple[str, ...] = ()  # the same for figures of several; none: all of them
    factors: dict[str, tuple[str, ...]] = {}  # entry -> switches in which it differs from its reference
    # All entries of the experiment, drawn or not -> their mixers: what colours are chosen from. Entries that
    # are not listed are known by their names.
    architectures: dict[str, tuple[str, ...]] = {}
