"""Needle lines: a key and its value in one of many lines, asked for at the end; character by character.

    lqkzpmwturcvbnea; … KEY=abc VAL=1234; … KEY=abc VAL=1234        (the last four characters are predicted)

Noise lines are letters, or further keys with values (`noise: keys`: then the key must be read, too). Keys are
different within a sequence. Sequence j has the same key, value and noise at every depth, and at a shorter
length the first lines of that noise. What is left of T fills the front.
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
    numerals,
)
from seqarch.tasks.recall.spec import LETTERS, NEEDLE_ALPHABET, NeedleLines

TEXT = Alphabet(NEEDLE_ALPHABET)


class NeedleLinesTask:
    def __init__(self, spec: NeedleLines) -> None:
        self.spec = spec

    def training(self, step: int) -> Case:
        return Case(self.spec.length)

    def cases(self) -> list[Case]:
        return [Case(length, depth=depth) for length in self.spec.test_lengths for depth in self.spec.depths]

    def controls(self, case: Case) -> list[Case]:
        alone = self.spec.line + self.spec.question
        return [Case(case.length, control=NO_NEEDLE), Case(alone, control=ADJACENT)]

    def make(self, case: Case, rows: int, draws: Draws) -> Examples:
        spec = self.spec
        n_noise = 0 if case.control == ADJACENT else spec.lines(case.length) - 1
        keys = self._keys(1 + (n_noise + 1 if spec.noise == "keys" else 0), rows, draws)
        value = numerals(draws.named("values").below(10**spec.value_digits, rows), spec.value_digits)
        needle = self._lines(keys[:, 0], value)
        noise = self._noise(n_noise + 1, keys[:, 1:], rows, draws)
        if case.control == NO_NEEDLE:
            needle = noise[:, n_noise]
        places = self._places(case, n_noise, rows, draws)
        # Line i is the needle at its place; before it noise line i, after it noise line i - 1.
        order = np.arange(n_noise + 1)[None, :]
        chosen = np.where(order < places[:, None], order, order - 1).clip(0)
        lines = np.take_along_axis(noise, chosen[..., None], axis=1)
        lines[np.arange(rows), places] = needle
        return self._asked(case.length, lines, keys[:, 0], value, 100 * places / max(1, n_noise))

    def _keys(self, n: int, rows: int, draws: Draws) -> Ints:
        """n different keys in each row, as numbers; a smaller n gives the first of a larger one."""
        size = len(LETTERS) ** self.spec.key_letters
        drawn = draws.named("keys").below(size, 4 * n + 16, rows).T
        keys = drawn[:, :n].copy()
        ordered = np.sort(keys, axis=1)
        for row in np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1)):
            keys[row] = list(dict.fromkeys(drawn[row].tolist()))[:n]
        return keys

    def _lines(self, keys: Ints, values: Ints) -> Ints:
        """Keys [...] and digits of values [..., digits] -> lines [..., characters]."""
        spec = self.spec
        letters = keys[..., None] // 26 ** np.arange(spec.key_letters - 1, -1, -1) % 26 + TEXT.id("a")

        def spread(text: str) -> Ints:
            return np.broadcast_to(TEXT.ids(text), (*keys.shape, len(text)))

        parts = [spread("KEY="), letters, spread(" VAL="), values + TEXT.id("0"), spread(";")]
        return np.concatenate(parts, axis=-1)

    def _noise(self, n: int, keys: Ints, rows: int, draws: Draws) -> Ints:
        """[rows, n, characters]; drawn line by line, so that fewer lines are the first of more."""
        stream = draws.named("noise")
        if self.spec.noise == "keys":
            digits = self.spec.value_digits
            return self._lines(keys, numerals(stream.below(10**digits, n, rows).T, digits))
        letters = stream.below(len(LETTERS), n, rows, self.spec.line - 1).transpose(1, 0, 2) + TEXT.id("a")
        end = np.full((*letters.shape[:2], 1), TEXT.id(";"), dtype=np.int64)
        return np.concatenate([letters, end], axis=2)

    def _places(self, case: Case, n_noise: int, rows: int, draws: Draws) -> Ints:
        """Noise lines before the needle, [rows]."""
        if case.depth is None:
            return draws.named("depths").below(n_noise + 1, rows)
        return np.full(rows, boundary(n_noise, case.depth), dtype=np.int64)

    def _asked(self, length: int, lines: Ints, keys: Ints, value: Ints, depth: np.ndarray) -> Examples:
        spec, rows = self.spec, len(keys)
        end = self._lines(keys, value)[:, :-1]  # the question and its answer, without the final mark
        text = np.concatenate([lines.reshape(rows, -1), end], axis=1)
        inputs = np.full((rows, length), 0, dtype=np.int64)
        inputs[:, length - text.shape[1] + 1 :] = text[:, :-1]
        targets = ignored(inputs.shape)
        targets[:, -spec.value_digits :] = value + TEXT.id("0")
        return Examples(inputs, targets, depth)

    def read(self, inputs: Ints) -> Ints:
        """The digits behind the question's key where it stood first, at the question's value."""
        answers = np.zeros_like(inputs)
        text = TEXT.text(inputs)
        start = text.rindex("KEY=")
        end = text.index(" VAL=", start) + len(" VAL=")
        first = text.find(text[start:end])
        if first < start:
            value = text[first + end - start :][: self.spec.value_digits]
            answers[-self.spec.value_digits :] = TEXT.ids(value)
        return answers
