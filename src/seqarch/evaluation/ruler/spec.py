"""Options of the long-context data: the 13 RULER tasks and the needle at fixed depths."""

from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from seqarch.schema import Spec

TaskName = Literal[
    "niah_single_1",
    "niah_single_2",
    "niah_single_3",
    "niah_multikey_1",
    "niah_multikey_2",
    "niah_multikey_3",
    "niah_multivalue",
    "niah_multiquery",
    "vt",
    "cwe",
    "fwe",
    "qa_1",
    "qa_2",
]
TASKS: tuple[str, ...] = get_args(TaskName)
ESSAY_TASKS = ("niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multivalue", "niah_multiquery")
QA_TASKS = ("qa_1", "qa_2")
Format = Literal["Essay-Word-Num", "Essay-Word-UUID", "Repeat-Word-Num"]
SpecialTokens = Literal["bos", "none", "template"]
Positive = Annotated[int, Field(ge=1)]


class CorpusText(Spec):
    """Text of the corpus stage: never comparable with published RULER figures."""

    kind: Literal["corpus"]
    domains: Annotated[tuple[str, ...], Field(min_length=1)]
    split: Literal["train", "validation", "test"] = "test"
    bytes: Positive = 1_000_000  # of whole documents, at most


class HubText(Spec):
    """A data set of the Hugging Face hub, or a folder laid out like one."""

    kind: Literal["huggingface"]
    path: str = "baber/paul_graham_essays"
    revision: str | None = None
    split: str = "train"
    column: str = "text"


class FileText(Spec):
    """A UTF-8 text file, or a folder of *.txt files, which are read in the order of their names."""

    kind: Literal["file"]
    path: str


HaystackSpec = Annotated[CorpusText | HubText | FileText, Field(discriminator="kind")]


class HubQuestions(Spec):
    """A data set of the hub with the columns of SQuAD v2.0 (qa_1) or HotpotQA (qa_2)."""

    kind: Literal["huggingface"]
    path: str  # rajpurkar/squad_v2, hotpotqa/hotpot_qa
    name: str | None = None  # hotpot_qa: distractor
    revision: str | None = None
    split: str = "validation"


class FileQuestions(Spec):
    """The JSON file as SQuAD v2.0 (qa_1) or HotpotQA (qa_2) publishes it."""

    kind: Literal["file"]
    path: str


class CorpusQuestions(Spec):
    """Gaps in sentences of the corpus stage's text: never comparable with published RULER figures."""

    kind: Literal["corpus"]
    domains: Annotated[tuple[str, ...], Field(min_length=1)]
    split: Literal["train", "validation", "test"] = "test"
    bytes: Positive = 1_000_000  # of whole documents, at most


QuestionsSpec = Annotated[HubQuestions | FileQuestions | CorpusQuestions, Field(discriminator="kind")]


class Wrapper(Spec):
    """Text around the task's template, of a chat format say; the answer prefix follows it."""

    before: str = ""
    after: str = ""


class RulerDataStep(Spec):
    """`cli.ruler_data`: the samples of one task at one length."""

    task: TaskName
    profile: Literal["fixed", "faithful"] = "fixed"
    length: Positive  # prompt + generation, tokens
    n: Positive = 500
    first: Annotated[int, Field(ge=0)] = 0  # index of the first sample: two chunks equal one file
    seed: int = 42
    special_tokens: SpecialTokens = "bos"  # what goes before the prompt; template = the tokenizer's own
    haystack: HaystackSpec | None = None
    random_offset: bool = False  # each sample's essay starts at another sentence; `fixed` only
    questions: QuestionsSpec | None = None
    wrapper: Wrapper = Wrapper()

    @model_validator(mode="after")
    def _resources(self) -> Self:
        if self.task in ESSAY_TASKS and self.haystack is None:
            raise ValueError(f"{self.task} hides needles in essays: give `haystack`")
        if self.task in QA_TASKS and self.questions is None:
            raise ValueError(f"{self.task} asks questions about documents: give `questions`")
        if self.random_offset and self.profile == "faithful":
            raise ValueError("random_offset: upstream always starts with the first essay; use profile fixed")
        return self


class ScoreStep(Spec):
    """`cli.ruler_score`: who made the predictions."""

    experiment: str
    arch: str
    setting: str | None = None
    model: str | None = None  # a pretrained model's name
    seed: int | None = None
    checkpoint: str | None = None
    run_id: str | None = None


class NeedleDataStep(Spec):
    """`cli.needle_data`: one format at one length, all depths and controls."""

    format: Format
    length: Positive
    depths: Annotated[tuple[Annotated[float, Field(ge=0, le=100)], ...], Field(min_length=1)] = (
        0,
        20,
        40,
        50,
        60,
        80,
        100,
    )
    n: Positive = 200  # samples of each depth and control
    seed: int = 42
    special_tokens: SpecialTokens = "bos"
    haystack: HaystackSpec | None = None

    @model_validator(mode="after")
    def _resources(self) -> Self:
        if self.format.startswith("Essay") and self.haystack is None:
            raise ValueError(f"{self.format} hides needles in essays: give `haystack`")
        return self
