"""Options of the long-context evaluation: which models read which samples, and who trained them."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from seqarch.evaluation.ruler.spec import (
    ESSAY_TASKS,
    QA_TASKS,
    Format,
    HaystackSpec,
    Positive,
    QuestionsSpec,
    SpecialTokens,
    TaskName,
)
from seqarch.schema import Spec

MIXERS = ("attention", "mamba2", "rwkv6")  # that checkpoints of other packages are loaded into
Who = Literal["own", "pretrained"]
Dtype = Literal["float32", "bfloat16", "float16"]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]


class RulerSpec(Spec):
    """`evaluation.ruler`: the 13 tasks at several lengths."""

    models: Annotated[tuple[Who, ...], Field(min_length=1)] = ("own", "pretrained")
    tasks: Annotated[tuple[TaskName, ...], Field(min_length=1)]
    lengths: Annotated[tuple[Positive, ...], Field(min_length=1)]  # prompt and answer, tokens
    samples: Positive = 500
    profile: Literal["fixed", "faithful"] = "fixed"
    seed: int = 42
    haystack: HaystackSpec | None = None
    questions: dict[Literal["qa_1", "qa_2"], QuestionsSpec] = {}

    @model_validator(mode="after")
    def _resources(self) -> Self:
        if self.haystack is None and (essay := [task for task in self.tasks if task in ESSAY_TASKS]):
            raise ValueError(f"{', '.join(essay)} hide needles in essays: give `haystack`")
        if asked := [task for task in self.tasks if task in QA_TASKS and task not in self.questions]:
            raise ValueError(f"{', '.join(asked)}: give their `questions`")
        return self


class NeedleSpec(Spec):
    """`evaluation.needle`: one needle at fixed depths."""

    models: Annotated[tuple[Who, ...], Field(min_length=1)] = ("own", "pretrained")
    formats: Annotated[tuple[Format, ...], Field(min_length=1)]
    depths: Annotated[tuple[Annotated[float, Field(ge=0, le=100)], ...], Field(min_length=1)] = (
        *(0, 20, 40, 50, 60, 80, 100),
    )
    multiples: tuple[Positive, ...] = (1, 2)  # lengths, as multiples of each model's training length
    lengths: tuple[Positive, ...] = ()  # and these, for every model
    samples: Positive = 200
    seed: int = 42
    haystack: HaystackSpec | None = None

    @model_validator(mode="after")
    def _resources(self) -> Self:
        if self.haystack is None and any(each.startswith("Essay") for each in self.formats):
            raise ValueError("the Essay formats hide needles in essays: give `haystack`")
        if not self.multiples and not self.lengths:
            raise ValueError("neither multiples nor lengths: give one of them")
        return self


class PublishedTokenizer(Spec):
    """A tokenizer of the hub, or a folder with tokenizer.json."""

    path: str
    revision: str = "main"
    special_tokens: SpecialTokens = "template"  # before a prompt: what its own template puts there


class PublishedModel(Spec):
    """A model of the hub, or a folder laid out like one."""

    path: str
    revision: str = "main"
    tokenizer: Name  # an entry of `pretrained.tokenizers`
    training_length: Positive  # tokens of its longest training sequences
    training_length_source: Annotated[str, Field(min_length=1)]  # who says so
    context: Positive | None = None  # the longest sequence it may be given; by default its position table's
    dtype: Dtype = "bfloat16"
    batch_tokens: Positive = 32_768
    published: str | None = None  # its abbreviation in config/published
    mixers: tuple[str, ...] = ()  # what it is made of, for its colour; by default guessed from the name


class PretrainedSection(Spec):
    """`pretrained`: models that others trained, and their tokenizers."""

    tokenizers: Annotated[dict[Name, PublishedTokenizer], Field(min_length=1)]
    models: Annotated[dict[Name, PublishedModel], Field(min_length=1)]

    @model_validator(mode="after")
    def _tokenizers_exist(self) -> Self:
        for name, model in self.models.items():
            if model.tokenizer not in self.tokenizers:
                known = ", ".join(sorted(self.tokenizers))
                raise ValueError(f"models.{name}.tokenizer: no {model.tokenizer!r}; known: {known}")
        if "own" in self.tokenizers:
            raise ValueError("tokenizers.own: this name is the experiment's own tokenizer's; choose another")
        return self


class PublishedStep(Spec):
    """`cli.pretrained_tokenizer` and `cli.pretrained_model`."""

    path: str
    revision: str


class Samples(Spec):
    """One file of samples."""

    suite: str  # fixed, faithful (RULER's profiles), needle
    probe: str  # a task, or a format of the needle
    length: Positive


class PredictStep(Samples):
    """`cli.predict`: a run of the experiment answers the samples of one file."""

    setting: str
    architecture: str
    seed: int
    model: dict[str, Any]  # resolved: seqarch.architecture.resolve
    checkpoint: str
    special_tokens: SpecialTokens
    batch_tokens: Positive = 32_768
    torch_threads: Positive = 1


class PredictPretrainedStep(Samples):
    """`cli.predict_pretrained`: a published model answers the samples of one file."""

    name: str
    special_tokens: SpecialTokens
    context: Positive | None
    dtype: Dtype
    batch_tokens: Positive


class TableModel(Spec):
    """What the tables say of a model beside its scores."""

    training_length: Positive
    training_length_source: str | None = None
    published: str | None = None


class LongContextTable(Spec):
    """`cli.long_context_table`."""

    kind: Literal["ruler", "needle"]
    experiment: str
    models: dict[str, TableModel]
    published_sha256: dict[str, str]  # of config/published, by file
    bootstrap: Positive
    confidence: Annotated[float, Field(gt=0.5, lt=1)]
    seed: int
