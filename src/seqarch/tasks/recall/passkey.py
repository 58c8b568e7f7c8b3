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
    boundary,
    ignored,
)
from seqarch.tasks.recall.spec import DIGITS_OF_PASSKEY as DIGITS
from seqarch.tasks.recall.spec import PASSKEY_ALPHABET, PASSKEY_LINE, PASSKEY_NOISE, PASSKEY_QUESTION, Passkey

TEXT = Alphabet(PASSKEY_ALPHABET)


class PasskeyTask:
    def __init__(self, spec: Passkey) -> None:
        self.spec = spec

    def training(self, step: int) -> Case:
        return Case(self.spec.length)

    def cases(self) -> list[Case]:
        return [Case(length, depth=depth) for length in self.spec.test_lengths for depth in self.spec.depths]

    def controls(self, case: Case) -> list[Case]:
        return [Case(case.length, control=NO_NEEDLE), Case(self.spec.alone, control=ADJACENT)]

    def make(self, case: Case, rows: int, draws: Draws) -> Examples:
        n = 0 if case.control == ADJACENT else self.spec.n_noise(case.length)
        numbers = draws.named("values").below(90_000, rows) + 10_000
        if case.depth is None:
            places = draws.named("depths").below(n + 1, rows)
        else:
            places = np.full(rows, boundary(n, case.depth))
        inputs = np.zeros((rows, case.length), dtype=np.int64)
        targets = ignored(inputs.shape)
        for row, (number, place) in enumerate(zip(numbers.tolist(), places.tolist(), strict=True)):
            needle = PASSKEY_NOISE if case.control == NO_NEEDLE else PASSKEY_LINE.format(number)
            text = (
                PASSKEY_NOISE * place + needle + PASSKEY_NOISE * (n - place) + PASSKEY_QUESTION + str(number)
            )
            ids = TEXT.ids(text)[-case.length - 1 :]
            inputs[row, case.length - len(ids) + 1 :] = ids[:-1]
            targets[row, -DIGITS:] = ids[-DIGITS:]
        return Examples(inputs, targets, 100 * places / max(1, n))

    def read(self, inputs: Ints) -> Ints:
        answers = np.zeros_like(inputs)
        text = TEXT.text(inputs)
        before, _, _ = text.partition(PASSKEY_QUESTION)
        mark = PASSKEY_LINE.split("{}")[0]
        if mark in before:
            answers[-DIGITS:] = TEXT.ids(before[before.index(mark) + len(mark) :][:DIGITS])
        return answers
