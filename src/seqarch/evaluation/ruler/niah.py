"""Needle in a haystack: the eight niah tasks of RULER (Hsieh et al., 2024, arXiv 2404.06654).

The wording is RULER's, verbatim (Apache-2.0, NVIDIA/RULER at c3f5e3b).
"""

import random
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from seqarch.evaluation.ruler.errors import ResourceError
from seqarch.evaluation.ruler.prompt import Prompt, Sample, Setup, Spot, around, fill, ordered
from seqarch.evaluation.ruler.streams import sample_seed, stream

Kind = Literal["words", "numbers", "uuids"]

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
NEEDLE = "One of the special magic {type} for {key} is: {value}."
PLURAL = (
    "Some special magic {type} are hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {type} afterwards.\n{context}\n"
    "What are all the special magic {type} for {query} mentioned in the provided text?"
)
PLURAL_PREFIX = " The special magic {type} for {query} mentioned in the provided text are"
SINGULAR = (
    "A special magic {type} is hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {type} afterwards.\n{context}\n"
    "What is the special magic {type} for {query} mentioned in the provided text?"
)
SINGULAR_PREFIX = " The special magic {type} for {query} mentioned in the provided text is"
ONE = {"words": "word", "numbers": "number", "uuids": "uuid"}
# round(linspace(0, 100, 40)): 0, 3, 5, 8, …, 97, 100
DEPTHS = tuple(round(100 * i / 39) for i in range(40))


@dataclass(frozen=True)
class NiahTask:
    """A row of RULER's table; k keys with v values each, q of them asked for."""

    haystack: Literal["noise", "essay", "needle"]
    key: Kind = "words"
    value: Kind = "numbers"
    k: int = 1
    v: int = 1
    q: int = 1


NIAH: dict[str, NiahTask] = {
    "niah_single_1": NiahTask("noise"),
    "niah_single_2": NiahTask("essay"),
    "niah_single_3": NiahTask("essay", value="uuids"),
    "niah_multikey_1": NiahTask("essay", k=4),
    "niah_multikey_2": NiahTask("needle"),
    "niah_multikey_3": NiahTask("needle", key="uuids", value="uuids"),
    "niah_multivalue": NiahTask("essay", v=4),
    "niah_multiquery": NiahTask("essay", k=4, q=4),
}


class Niah:
    """One of the tasks, set up (`seqarch.evaluation.ruler.prompt.Task`).

    Raises ResourceError if there are fewer keys than the task needs, or no essays.
    """

    tokens_to_generate = 128
    least_length = 0

    def __init__(self, setup: Setup) -> None:
        self.setup, self.task = setup, NIAH[setup.task]
        single = self.task.q * self.task.v == 1
        self.context_template = SINGULAR if single else PLURAL
        self.prefix_template = SINGULAR_PREFIX if single else PLURAL_PREFIX
        self.template = f"{self.context_template}\0{self.prefix_template}\0{NEEDLE}\0{NOISE}"
        self.noun = ONE[self.task.value] if single else self.task.value
        self.line = fill(NEEDLE, type=self.task.value).split(" {key}")[0]
        n_keys = setup.words.n_keys if self.task.key == "words" else None
        if n_keys is not None and n_keys < self.task.k:
            raise ResourceError(f"{setup.task} needs {self.task.k} keys, the word lists make {n_keys}")
        if self.task.haystack == "essay" and setup.haystack is None:
            raise ResourceError(f"{setup.task} hides needles in essays: give a haystack")
        self.n_keys = n_keys
        self.unit_tokens = self._unit_tokens()

    def _unit_tokens(self) -> float:
        count = self.setup.encoder.count
        if self.task.haystack == "noise":
            return float(count([NOISE, "\n", NOISE]) - count([NOISE]))
        if self.task.haystack == "needle":
            drawn = Distractors(self, sample_seed(self.setup.seed, self.setup.task, -1), set())
            return count(["x", *drawn.lines(1)])
        assert self.setup.haystack is not None
        if self.setup.fixed:
            some = self.setup.haystack.sentences[:200]
            return count([" ".join(some)]) / len(some)
        words = self.setup.haystack.words[:4000]
        return count([" ".join(words)]) / len(words)

    def variants(self, index: int) -> Iterator[Sample]:
        yield NiahSample(self, sample_seed(self.setup.seed, self.setup.task, index))

    def draw(self, kind: Kind, rng: random.Random) -> str:
        """A key or a value; by `random()`, which is faster than `choice`: distractors are many."""
        if kind == "numbers":
            return str(1_000_000 + int(rng.random() * 9_000_000))
        if kind == "uuids":
            return str(uuid.UUID(int=rng.getrandbits(128), version=4))
        words = self.setup.words
        adjective = words.adjectives[int(rng.random() * len(words.adjectives))]
        return f"{adjective}-{words.nouns[int(rng.random() * len(words.nouns))]}"

    def key(self, rng: random.Random, used: set[str]) -> str:
        """A key; in `fixed` not one of those used (D3)."""
        key = self.draw(self.task.key, rng)
        while self.setup.fixed and key in used:
            key = self.draw(self.task.key, rng)
        used.add(key)
        return key


class Distractors:
    """Lines of the needle's form: a longer haystack extends a shorter one."""

    def __init__(self, niah: Niah, seed: str, used: set[str]) -> None:
        self.niah, self.used = niah, used
        self.rng = stream(seed, "distractors")
        self.keys: list[str] = []
        self.pieces: list[str] = []
        self.ends = [0]  # tokens of the first n lines

    def lines(self, n: int) -> list[str]:
        """The first n lines, two pieces each: what returns in every line, and the rest."""
        niah = self.niah
        start = f"\n{niah.line}"
        while len(self.keys) < n:
            key = niah.key(self.rng, self.used)
            self.keys.append(key)
            self.pieces += [start, f" {key} is: {niah.draw(niah.task.value, self.rng)}."]
        return self.pieces[: 2 * n]

    def tokens(self, n: int) -> int:
        """Of the first n lines, where words end at spaces and line ends: then each counts alone."""
        if len(self.ends) <= n:
            pieces = self.lines(n)[2 * len(self.ends) - 2 :]
            counts = self.niah.setup.encoder.count_each(pieces)
            for start, rest in zip(counts[::2], counts[1::2], strict=True):
                self.ends.append(self.ends[-1] + start + rest)
        return self.ends[n]


class NiahSample:
    """Keys, values, order and query; the haystack comes with the size."""

    def __init__(self, niah: Niah, seed: str) -> None:
        self.niah, self.seed = niah, seed
        setup, task = niah.setup, niah.task
        keys, values = stream(seed, "keys"), stream(seed, "values")
        used: set[str] = set()
        self.keys = [niah.key(keys, used) for _ in range(task.k)]
        self.values = [[niah.draw(task.value, values) for _ in range(task.v)] for _ in self.keys]
        asked = stream(seed, "query").sample(range(task.k), task.q)
        self.asked = [self.keys[i] for i in asked]
        self.outputs = [value for i in asked for value in self.values[i]]
        needles = [
            fill(NEEDLE, type=task.value, key=key, value=value)
            for key, group in zip(self.keys, self.values, strict=True)
            for value in group
        ]
        self.answer_needle = needles[asked[0] * task.v]
        self.needles = ordered(setup, seed, needles)
        self.distractors = Distractors(niah, seed, used)
        self.n_min = 1 if task.haystack == "essay" else len(needles)
        self.n_max = None
        if task.haystack == "needle" and niah.n_keys is not None and setup.fixed:
            self.n_max = niah.n_keys - task.k - self.n_min  # as many lines as there are other keys
            if self.n_max < 0:
                raise ResourceError(
                    f"{setup.task} needs {task.k + self.n_min} different keys, the word lists make "
                    f"{niah.n_keys}"
                )
        self.offset = 0
        if setup.random_offset and setup.haystack is not None:
            self.offset = stream(seed, "offset").randrange(len(setup.haystack.sentences))
        self.depths = sorted(stream(seed, "positions").sample(DEPTHS, len(needles)))
        self.alone: int | None = None  # tokens of the prompt without distractors

    def tokens(self, step: int) -> int | None:
        """Needles among lines of their own form: the same wherever they stand."""
        encoder = self.niah.setup.encoder
        if self.niah.task.haystack != "needle" or not encoder.additive:
            return None
        if self.alone is None:
            needles = [f"\n{needle}" if i else needle for i, needle in enumerate(self.needles)]
            self.alone = encoder.count(self.prompt(needles, [], 0).all_pieces())
        return self.alone + self.distractors.tokens(self.n_min + step)

    def build(self, step: int) -> Prompt:
        n = self.n_min + step
        niah = self.niah
        if niah.task.haystack == "essay":
            context, marks = self._essay(n)
        else:
            context, marks = self._lines(n)
        return self.prompt(context, marks, n)

    def prompt(self, context: list[str], marks: list[int], n: int) -> Prompt:
        """The question about a context of n units; `marks` are the needles' pieces in it."""
        niah = self.niah
        values = {"type": niah.noun, "query": join_words(self.asked)}
        pieces, before = around(niah.setup, niah.context_template, context, **values)
        spots = tuple(_spot(before + place, context[place]) for place in marks)
        return Prompt(
            pieces,
            fill(niah.prefix_template, **values),
            self.outputs,
            n,
            spots,
            answer_spot=[context[each].strip() for each in marks].index(self.answer_needle)
            if marks
            else None,
            ambiguous=self._ambiguous(n),
            notes=(("haystack_offset", self.offset),) if niah.setup.random_offset else (),
        )

    def _ambiguous(self, n: int) -> bool:
        """Whether a queried key also stands elsewhere with another value (D3)."""
        if self.niah.setup.fixed:
            return False
        lines = self.distractors.keys[:n] if self.niah.task.haystack == "needle" else []
        everywhere = [*self.keys, *lines]
        return any(everywhere.count(key) > 1 for key in self.asked)

    def _essay(self, n: int) -> tuple[list[str], list[int]]:
        setup = self.niah.setup
        assert setup.haystack is not None
        if setup.fixed:
            sentences = setup.haystack.first_sentences(n, self.offset)
        else:
            sentences = setup.haystack.sentences_of_words(n)
        places = [int(len(sentences) * (depth / 100)) for depth in self.depths]
        context, marks = [], []
        for start, end, needle in zip(
            [0, *places], [*places, len(sentences)], [*self.needles, ""], strict=True
        ):
            group = sentences[start:end]
            if not group and not setup.fixed:
                group = [""]  # upstream joins empty groups, too: a leading or a doubled space (D12)
            context += group
            if needle:
                marks.append(len(context))
                context.append(needle)
        return [context[0], *(f" {piece}" for piece in context[1:])], marks

    def _lines(self, n: int) -> tuple[list[str], list[int]]:
        """Needles before lines at places drawn without replacement; D6: also after the last line."""
        setup = self.niah.setup
        noise = self.niah.task.haystack == "noise"
        lines = [f"\n{NOISE}"] * n if noise else self.distractors.lines(n)
        per_line = 1 if noise else 2
        places = sorted(
            stream(self.seed, "positions", n).sample(range(n + 1 if setup.fixed else n), len(self.needles))
        )
        context: list[str] = []
        marks = []
        # The first needle goes to the last place, as upstream inserts them.
        for start, end, needle in zip([0, *places], [*places, n], [*reversed(self.needles), ""], strict=True):
            context += lines[per_line * start : per_line * end]
            if needle:
                marks.append(len(context))
                context.append(f"\n{needle}")
        context[0] = context[0].removeprefix("\n")
        return context, marks


def _spot(piece: int, text: str) -> Spot:
    start = len(text) - len(text.lstrip())
    value = text.rindex(" is: ") + len(" is: ")
    return Spot(piece, (start, len(text)), (value, len(text) - 1))


def join_words(words: Sequence[str]) -> str:
    """`a`, or `a, b, and c`."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + ", and " + words[-1]
