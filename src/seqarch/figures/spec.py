"""Options of the figures: `figures` of a configuration."""

from typing import Annotated, Literal

from pydantic import Field

from seqarch.schema import Spec


class FiguresSpec(Spec):
    formats: Annotated[tuple[Literal["svg", "png"], ...], Field(min_length=1)] = ("svg", "png")
    dpi: Annotated[int, Field(ge=50, le=600)] = 200  # of the PNG
