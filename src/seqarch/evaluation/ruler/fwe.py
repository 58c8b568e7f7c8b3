"""Frequent words: coded words with a Zipf-like frequency; the three most frequent but the dots are asked for.

The wording is RULER's, verbatim (Apache-2.0, NVIDIA/RULER at c3f5e3b).
"""

import math
import random
import string
from collections.abc import Iterator

from seqarch.evaluation.ruler.prompt import Prompt, Sample, Setup, around, ordered
from seqarch.evaluation.ruler.streams import sample_seed, stream

TEMPLATE = (
    "Read the following coded text and track the frequency of each coded word. Find the three most "
    "frequently appeared coded words. {context}\nQuestion: Do not provide any explanation. Please ignore "
    "the dots '....'. What are the three most frequently appeared words in the above coded text?"
)
PREFIX = " Answer: According to the coded text above, the three most frequently appeared words are:"
NOISE_WORD = "..."
WORD_LENGTH = 6
ALPHA = 2.0
ZETA = math.pi**2 / 6  # zeta(2)
N_MIN = 27  # the least n with all three answers
TIES = range(42, 53)  # n at which the fourth word is as frequent as the fifth
N_WORDS = 4  # noise and three answers


class Fwe:
    """The task, set up (`seqarch.evaluation.ruler.prompt.Task`)."""

    tokens_to_generate = 50
    template = f"{TEMPLATE}\0{PREFIX}"

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        wrapper = setup.encoder.count([setup.wrapper.before]) + setup.encoder.count([setup.wrapper.after])
        taken = self.tokens_to_generate + wrapper
        self.vocabulary_size = max(N_WORDS, (setup.length - taken) // 50)
        self.least_length = 0 if setup.fixed else 50 * N_WORDS + taken  # D11
        some = words_of(sample_seed(setup.seed, setup.task, -1), 100)
        self.unit_tokens = setup.encoder.count([" ".join(some)]) / 100

    def n_of(self, step: int) -> int:
        """Units of a step. `fixed` leaves out sizes with a tie (D11): 41 is followed by 53."""
        n = N_MIN + step
        return n if not self.setup.fixed or n < TIES.start else n + len(TIES)

    def variants(self, index: int) -> Iterator[Sample]:
        yield FweSample(self, sample_seed(self.setup.seed, self.setup.task, index))


class FweSample:
    """The coded words by rank."""

    n_max = None

    def __init__(self, fwe: Fwe, seed: str) -> None:
        self.fwe, self.seed = fwe, seed
        self.vocabulary = words_of(seed, fwe.vocabulary_size)
        if not fwe.setup.fixed:  # D2: upstream sorts them, then shuffles by one permutation
            self.vocabulary.sort()
            random.Random(fwe.setup.seed).shuffle(self.vocabulary)
        self.vocabulary[0] = NOISE_WORD

    def build(self, step: int) -> Prompt:
        n = self.fwe.n_of(step)
        amounts = counts(n, len(self.vocabulary))
        expanded = [
            word for word, amount in zip(self.vocabulary, amounts, strict=False) for _ in range(amount)
        ]
        first, *rest = ordered(self.fwe.setup, self.seed, expanded, n)
        pieces, _ = around(self.fwe.setup, TEMPLATE, [first, *(f" {word}" for word in rest)])
        tie = len(amounts) > N_WORDS and amounts[N_WORDS - 1] == amounts[N_WORDS]
        return Prompt(pieces, PREFIX, self.vocabulary[1:N_WORDS], n, ambiguous=tie)


def counts(n: int, vocabulary_size: int) -> list[int]:
    """How often the words of ranks k = 1, 2, … stand in a text of n units: int(n k^-2 / zeta(2)) > 0."""
    found = []
    for rank in range(1, vocabulary_size + 1):
        amount = int(n * rank**-ALPHA / ZETA)
        if amount == 0:
            break
        found.append(amount)
    return found


def words_of(seed: str, n: int) -> list[str]:
    """n distinct random words of six letters."""
    rng = stream(seed, "words")
    found: dict[str, None] = {}
    while len(found) < n:
        found["".join(rng.choices(string.ascii_lowercase, k=WORD_LENGTH))] = None
    return list(found)
