"""Phonebook (Jelassi et al., arXiv 2402.01032; De et al., arXiv 2402.19427); character by character.

    Name: dddddddddd        20 lines and more, names without repetition, numbers from 6000000000 on
                            a blank line
    Name: dddddddddd        two of the entries again, as examples
    Name: dddddddddd
                            a blank line
    Name: dddddddddd        a third; its number is predicted

Names are made of three syllables, all of one length. Drawing them with replacement, as the published code
does, gives one name two numbers.
"""

import numpy as np

from seqarch.tasks.recall.draws import Draws, Ints
from seqarch.tasks.recall.examples import Alphabet, Case, Examples, ignored
from seqarch.tasks.recall.spec import PHONEBOOK_ALPHABET, Phonebook

TEXT = Alphabet(PHONEBOOK_ALPHABET)
SYLLABLES = [a + b for a in "bdfghjklmnprstvwz" for b in "aeiou"]
DIGITS = 10


class PhonebookTask:
    def __init__(self, spec: Phonebook) -> None:
        self.spec = spec

    def training(self, step: int) -> Case:
        return Case(self.spec.train_length, self.spec.entries)

    def cases(self) -> list[Case]:
        return [Case(self.spec.length_of(entries), entries) for entries in self.spec.test_entries]

    def controls(self, case: Case) -> list[Case]:
        return []

    def make(self, case: Case, rows: int, draws: Draws) -> Examples:
        n = case.pairs
        assert n is not None
        inputs = np.zeros((rows, case.length), dtype=np.int64)
        targets = ignored(inputs.shape)
        for row in range(rows):
            lines = self._entries(n, draws.named(f"row {row}"))
            first, second, asked = draws.named(f"asked {row}").distinct(n, 3, 1)[0]
            text = "".join(f"{line}\n" for line in lines)
            text += f"\n{lines[first]}\n{lines[second]}\n\n{lines[asked]}"
            ids = TEXT.ids(text)
            inputs[row], targets[row, -DIGITS:] = ids[:-1], ids[-DIGITS:]
        return Examples(inputs, targets)

    def _entries(self, n: int, draws: Draws) -> list[str]:
        """n lines of different names."""
        names: dict[str, None] = {}
        while len(names) < n:
            syllables = draws.below(len(SYLLABLES), 3)
            names["".join(SYLLABLES[i] for i in syllables).capitalize()] = None
        numbers = draws.named("numbers").below(4 * 10 ** (DIGITS - 1), n) + 6 * 10 ** (DIGITS - 1)
        return [f"{name}: {number}" for name, number in zip(names, numbers, strict=True)]

    def read(self, inputs: Ints) -> Ints:
        answers = np.zeros_like(inputs)
        book, _, question = TEXT.text(inputs).split("\n\n")
        numbers = dict(line.split(": ") for line in book.splitlines())
        answers[-DIGITS:] = TEXT.ids(numbers[question.split(": ")[0]])
        return answers
