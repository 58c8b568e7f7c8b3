"""Passkey: a number of five digits in one of many lines (after Mohtashami and Jaggi, arXiv 2305.16300).

The lines around it are RULER's noise (Hsieh et al., arXiv 2404.06654), verbatim. What is left of T fills the
front.
"""

import numpy as np

from seqarch.tasks.recall.draws import Draws, Ints
from seqarch.tasks.recall.examples import (
    ADJACENT,
    NO_NEEDLE,
    Alphabet,
    Case,
    Examples,
    RecallError,
    boundary,
    ignored,
)
from seqarch.tasks.recall.spec import PASSKEY_ALPHABET, Passkey

TEXT = Alphabet(PASSKEY_ALPHABET)
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
LINE = "The pass key is {}. Remember it.\n"
QUESTION = "What is the pass key? The pass key is "
DIGITS = 5


class PasskeyTask:
    def __init__(self, spec: Passkey) -> None:
        self.spec = spec
        for length in (spec.length, *spec.test_lengths):
            if self.n_noise(length) < 1:
                least = length - self._room(length) + len(NOISE)
                raise RecallError(f"passkey, length {length}: one line of noise needs {least}")

    @staticmethod
    def _room(length: int) -> int:
        """Tokens for noise: the last digit is predicted, never read."""
        return length - len(LINE.format("12345")) - len(QUESTION) - (DIGITS - 1)

    def n_noise(self, length: int) -> int:
        return self._room(length) // len(NOISE)

    def training(self, step: int) -> Case:
        return Case(self.spec.length)

    def cases(self) -> list[Case]:
        return [Case(length, depth=depth) for length in self.spec.test_lengths for depth in self.spec.depths]

    def controls(self, case: Case) -> list[Case]:
        alone = case.length - self._room(case.length)
        return [Case(case.length, control=NO_NEEDLE), Case(alone, control=ADJACENT)]

    def make(self, case: Case, rows: int, draws: Draws) -> Examples:
        n = 0 if case.control == ADJACENT else self.n_noise(case.length)
        numbers = draws.named("values").below(90_000, rows) + 10_000
        if case.depth is None:
            places = draws.named("depths").below(n + 1, rows)
        else:
            places = np.full(rows, boundary(n, case.depth))
        inputs = np.zeros((rows, case.length), dtype=np.int64)
        targets = ignored(inputs.shape)
        for row, (number, place) in enumerate(zip(numbers.tolist(), places.tolist(), strict=True)):
            needle = NOISE if case.control == NO_NEEDLE else LINE.format(number)
            text = NOISE * place + needle + NOISE * (n - place) + QUESTION + str(number)
            ids = TEXT.ids(text)[-case.length - 1 :]
            inputs[row, case.length - len(ids) + 1 :] = ids[:-1]
            targets[row, -DIGITS:] = ids[-DIGITS:]
        return Examples(inputs, targets, 100 * places / max(1, n))

    def read(self, inputs: Ints) -> Ints:
        answers = np.zeros_like(inputs)
        text = TEXT.text(inputs)
        before, _, _ = text.partition(QUESTION)
        mark = LINE.split("{}")[0]
        if mark in before:
            answers[-DIGITS:] = TEXT.ids(before[before.index(mark) + len(mark) :][:DIGITS])
        return answers
