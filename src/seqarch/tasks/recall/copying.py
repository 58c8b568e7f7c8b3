"""Copying, and looking up what follows a part (Jelassi et al., arXiv 2402.01032); character by character.

    copy    $s|s.        prefix  $part|s|rest.        suffix  $s|partrest.

s are random letters; `part` is one of its n-grams that occurs once and has letters after it, `rest` those
letters. What follows the last `|` (in suffix: the part) is predicted, the point included; `*` fills the end.
Drawing among all n-grams, as the published code does, asks for the first of several occurrences.
"""

from collections import Counter

import numpy as np

from seqarch.tasks.recall.draws import Draws, Ints
from seqarch.tasks.recall.examples import Alphabet, Case, Examples, ignored
from seqarch.tasks.recall.spec import COPY_ALPHABET, LETTERS, Copying

TEXT = Alphabet(COPY_ALPHABET)
TRIES = 100  # of a string with a part that occurs once; one of random letters hardly ever has none


class CopyingTask:
    def __init__(self, spec: Copying) -> None:
        self.spec = spec

    def training(self, step: int) -> Case:
        return Case(self.spec.train_length)

    def cases(self) -> list[Case]:
        return [Case(self.spec.length_of(letters), letters) for letters in self.spec.test_letters]

    def controls(self, case: Case) -> list[Case]:
        return []

    def make(self, case: Case, rows: int, draws: Draws) -> Examples:
        """`case.pairs` letters; in training a number drawn from the configured range for each sequence."""
        low, high = (case.pairs, case.pairs) if case.pairs is not None else self.spec.letters
        inputs = np.full((rows, case.length), TEXT.id("*"), dtype=np.int64)
        targets = ignored(inputs.shape)
        for row in range(rows):
            stream = draws.named(f"row {row}")
            letters = low + int(stream.below(high - low + 1, 1)[0])
            asked, answer = self._text(letters, stream)
            ids = TEXT.ids(asked + answer)
            inputs[row, : len(ids) - 1] = ids[:-1]
            targets[row, len(asked) - 1 : len(ids) - 1] = ids[len(asked) :]
        return Examples(inputs, targets)

    def _text(self, letters: int, draws: Draws) -> tuple[str, str]:
        """What is given, and what is to follow."""
        variant, n = self.spec.variant, self.spec.ngram
        for _ in range(TRIES):
            s = "".join(LETTERS[i] for i in draws.below(len(LETTERS), letters))
            if variant == "copy":
                return f"${s}|", f"{s}."
            parts = [s[i : i + n] for i in range(letters - n + 1)]
            count = Counter(parts)
            once = [i for i, part in enumerate(parts[:-1]) if count[part] == 1]
            if once:
                start = once[int(draws.below(len(once), 1)[0])]
                part, rest = parts[start], s[start + n :]
                given = f"${part}|{s}|" if variant == "prefix" else f"${s}|{part}"
                return given, f"{rest}."
        raise AssertionError(f"{TRIES} strings of {letters} letters, and no {n} of them once")

    def read(self, inputs: Ints) -> Ints:
        answers = np.zeros_like(inputs)
        text = TEXT.text(inputs).rstrip("*")
        variant, n = self.spec.variant, self.spec.ngram
        if variant == "prefix":
            part, s, _ = text[1:].split("|")
            start, rest = text.rindex("|"), s[s.index(part) + n :]
        else:
            s, after = text[1:].split("|")
            start = text.rindex("|") + (n if variant == "suffix" else 0)
            rest = s[s.index(after[:n]) + n :] if variant == "suffix" else s
        ids = TEXT.ids(f"{rest}.")
        answers[start : start + len(ids)] = ids
        return answers
