"""Common words: a numbered list in which ten words return more often than the others, after a solved example.

The wording is RULER's, verbatim (Apache-2.0, NVIDIA/RULER at c3f5e3b).
"""

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from seqarch.evaluation.ruler.errors import ResourceError
from seqarch.evaluation.ruler.prompt import Prompt, Sample, Setup, around, ordered
from seqarch.evaluation.ruler.streams import Permutation, sample_seed, stream

TEMPLATE = (
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n{context}\n"
    "Question: What are the 10 most common words in the above list?"
)
PREFIX = " Answer: The top 10 words that appear most often in the list are:"
N_COMMON = 10
LONG = 4096  # from here on the larger counts


class Counts(NamedTuple):
    """How often the common and the other words stand in the list and in the example; the example's words."""

    common: int
    other: int
    example_common: int
    example_other: int
    example_words: int


class Cwe:
    """The task, set up (`seqarch.evaluation.ruler.prompt.Task`).

    Raises ResourceError if the pool is smaller than the example.
    """

    tokens_to_generate = 120
    least_length = 0
    template = f"{TEMPLATE}\0{PREFIX}"

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.counts = Counts(30, 3, 10, 3, 40) if setup.length >= LONG else Counts(6, 1, 3, 1, 20)
        self.pool = list(setup.words.pool)
        random.Random(setup.seed).shuffle(self.pool)
        if len(self.pool) < self.counts.example_words:
            raise ResourceError(
                f"cwe needs {self.counts.example_words} words, the word lists have {len(self.pool)}"
            )
        some = numbered(self.pool[:100])
        self.unit_tokens = self.counts.other * setup.encoder.count(some) / 100

    def variants(self, index: int) -> Iterator[Sample]:
        yield CweSample(self, sample_seed(self.setup.seed, self.setup.task, index))


class CweSample:
    """A permutation of the pool: the first ten words are the common ones."""

    def __init__(self, cwe: Cwe, seed: str) -> None:
        self.cwe, self.seed = cwe, seed
        self.words = Permutation(stream(seed, "words"), len(cwe.pool))
        self.n_max = len(cwe.pool) - (N_COMMON + 1)
        self.example = self._example()

    def _example(self) -> list[str]:
        """The task once more, solved."""
        cwe, counts = self.cwe, self.cwe.counts
        drawn = stream(self.seed, "example").sample(cwe.pool, counts.example_words)
        common, other = drawn[:N_COMMON], drawn[N_COMMON:]
        words = common * counts.example_common + other * counts.example_other
        pieces, _ = around(cwe.setup, TEMPLATE, numbered(ordered(cwe.setup, self.seed, words, -1)))
        return [*pieces, PREFIX, *(f" {piece.lstrip()}" for piece in numbered(common)), "\n"]

    def build(self, step: int) -> Prompt:
        cwe, counts = self.cwe, self.cwe.counts
        n = N_COMMON + 1 + step
        drawn = [cwe.pool[i] for i in self.words[:n]]
        common, other = drawn[:N_COMMON], drawn[N_COMMON:]
        words = ordered(cwe.setup, self.seed, common * counts.common + other * counts.other, n)
        pieces, _ = around(cwe.setup, TEMPLATE, numbered(words))
        return Prompt([*self.example, *pieces], PREFIX, common, n)


def numbered(words: Sequence[str]) -> list[str]:
    """`1. w 2. w …` in pieces."""
    pieces = [piece for number, word in enumerate(words, 1) for piece in (f" {number}.", f" {word}")]
    return [pieces[0].lstrip(), *pieces[1:]]
