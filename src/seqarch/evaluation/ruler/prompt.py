"""What a task makes: prompts in pieces, and samples that can be made longer or shorter."""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from seqarch.evaluation.ruler.encoder import PromptEncoder
from seqarch.evaluation.ruler.questions import QuestionSet
from seqarch.evaluation.ruler.resources import Haystack, WordLists
from seqarch.evaluation.ruler.spec import Wrapper
from seqarch.evaluation.ruler.streams import stream

Profile = Literal["fixed", "faithful"]
NO_WRAPPER = Wrapper()


@dataclass(frozen=True)
class Spot:
    """A needle: where it and its answer stand, in characters of one piece."""

    piece: int
    needle: tuple[int, int]
    answer: tuple[int, int]


@dataclass(frozen=True)
class Prompt:
    """A prompt with n units.

    Attributes:
        pieces: joined, the input without the answer prefix.
        outputs: what the answer is compared with.
        n_units: sentences, lines, words or documents in the haystack.
        spots: the needles in the order of the text.
        answer_spot: the needle that has outputs[0].
        ambiguous: another answer could be defended; only in the faithful profile.
        gold_positions: of the documents with the answer, from 0.
        notes: what else the record has.
    """

    pieces: list[str]
    answer_prefix: str
    outputs: list[str]
    n_units: int
    spots: tuple[Spot, ...] = ()
    answer_spot: int | None = None
    ambiguous: bool = False
    gold_positions: tuple[int, ...] = ()
    notes: tuple[tuple[str, int], ...] = ()

    @property
    def input(self) -> str:
        return "".join(self.pieces)

    def all_pieces(self) -> list[str]:
        """What the model reads, prefix included."""
        return [*self.pieces, self.answer_prefix]


class Sample(Protocol):
    """One sample at any size. `steps` count from 0; a step has one unit more than the one before, unless the
    task leaves sizes out."""

    @property
    def n_max(self) -> int | None:
        """The last step; None: no end."""
        ...

    def build(self, step: int) -> Prompt: ...


@runtime_checkable
class Counted(Protocol):
    """A sample that knows its size before it is built. What is built is counted all the same."""

    def tokens(self, step: int) -> int | None:
        """Tokens of the prompt, without special ones; None: only building it tells."""
        ...


@dataclass(frozen=True)
class Setup:
    """What all samples of a file share."""

    task: str
    profile: Profile
    length: int
    seed: int
    encoder: PromptEncoder
    words: WordLists
    haystack: Haystack | None = None
    questions: QuestionSet | None = None
    wrapper: Wrapper = NO_WRAPPER
    random_offset: bool = False

    @property
    def fixed(self) -> bool:
        return self.profile == "fixed"


class Task(Protocol):
    """One of the 13 tasks, set up.

    Attributes:
        tokens_to_generate: what is left free for the answer.
        template: the constants of the prompt, for its hash.
        unit_tokens: tokens of a unit, about: where the search starts.
        least_length: no length below it is possible, whatever the tokenizer.
    """

    tokens_to_generate: int
    template: str
    unit_tokens: float
    least_length: int

    def variants(self, index: int) -> Iterator[Sample]:
        """The sample of that index; further ones, each smaller, for a length where the first does not fit."""
        ...


def fill(template: str, **values: str) -> str:
    """The template with its fields filled in. Nothing but the named fields is special: braces, dollars and
    back-ticks of a text stay what they are, also where a value spells a field."""
    parts = re.split("{(" + "|".join(values) + ")}", template)
    return "".join(values[part] if number % 2 else part for number, part in enumerate(parts))


def around(setup: Setup, template: str, context: list[str], **values: str) -> tuple[list[str], int]:
    """The template and the wrapper around the pieces of a context; the number of pieces before them."""
    before, after = (fill(part, **values) for part in template.split("{context}"))
    head = [part for part in (setup.wrapper.before, before) if part]
    tail = [part for part in (after, setup.wrapper.after) if part]
    return [*head, *context, *tail], len(head)


def ordered(setup: Setup, seed: str, items: list[str], n: int | None = None) -> list[str]:
    """The items shuffled: per sample, or (D2, faithful) by one permutation for all samples of a file."""
    items = list(items)
    (stream(seed, "order", n) if setup.fixed else random.Random(setup.seed)).shuffle(items)
    return items
