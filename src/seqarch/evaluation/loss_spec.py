"""Options of the loss evaluation: `evaluation.loss` of a configuration, and the slice one job gets."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from seqarch.schema import Spec

Kind = Literal["annealed", "stable", "mid"]
Role = Literal["in", "out"]


class LossSpec(Spec):
    """`evaluation.loss`: which checkpoints are scored, on how much text, in which windows."""

    bytes_per_domain: Annotated[int, Field(gt=0)]  # UTF-8 bytes of each domain's fixed document set
    max_doc_bytes: Annotated[int, Field(ge=4)] | None = None  # longer documents are cut: more of them fit
    seed: int = 0  # draws the document sets
    checkpoints: Annotated[tuple[Kind, ...], Field(min_length=1)] = ("annealed",)
    window_mode: Literal["disjoint", "sliding"] = "disjoint"
    # `document`: state and cache reset at each document. `packed`: beside it, as rows of their own, documents
    # end to end as in training; a secondary result that no comparison uses.
    boundary_modes: tuple[Literal["document", "packed"], ...] = ("document",)
    # Window widths as multiples of the training length; one pass each.
    windows: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)] = (1,)
    batch_tokens: Annotated[int, Field(gt=0)] = 16_384  # of one forward pass
    position_bucket: Annotated[int, Field(ge=1)] = 64  # tokens, width of a bucket in the table of positions
    precision: Literal["float32", "bfloat16"] = "float32"
    bootstrap: Annotated[int, Field(ge=100)] = 1000  # replicates behind the intervals over documents
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95

    @field_validator("boundary_modes")
    @classmethod
    def _primary(cls, values: tuple) -> tuple:
        if "document" not in values:
            raise ValueError("document is the primary result and always scored: add it")
        return values

    @field_validator("checkpoints", "windows", "boundary_modes")
    @classmethod
    def _distinct(cls, values: tuple) -> tuple:
        if len(set(values)) != len(values):
            raise ValueError(f"each value once, please: {list(values)}")
        return values


class Trained(Spec):
    """What the evaluation needs to know of a run's training; the rest stands in its checkpoints."""

    sequence_length: Annotated[int, Field(ge=2)]
    batch_tokens: Annotated[int, Field(gt=0)]  # of an optimiser step: with it a step stands for tokens seen
    checkpoints: Annotated[tuple[str, ...], Field(min_length=1)]  # all of the run, e.g. annealed-00000098
    torch_threads: Annotated[int, Field(ge=1)] = 1


class LossJob(Spec):
    """One job: every configured checkpoint of one run on every domain."""

    experiment: str
    setting: str
    architecture: str
    seed: int
    model: dict[str, Any]  # resolved: seqarch.architecture.resolve
    train: Trained
    loss: LossSpec
    domains: dict[str, Role]

    @model_validator(mode="after")
    def _something_to_score(self) -> "LossJob":
        if not self.checkpoints:
            raise ValueError(
                f"none of the run's checkpoints {list(self.train.checkpoints)} is of the kinds to score, "
                f"{list(self.loss.checkpoints)}: see evaluation.loss.checkpoints"
            )
        return self

    @property
    def checkpoints(self) -> list[str]:
        """Those of the configured kinds, in the order of training."""
        return [name for name in self.train.checkpoints if name.rsplit("-", 1)[0] in self.loss.checkpoints]
