"""What the recall tasks have in common: examples, the places they are asked in, text as ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from seqarch.errors import SeqarchError
from seqarch.tasks.batch import IGNORE
from seqarch.tasks.recall.draws import Draws, Ints

# Controls, each judged on its own.
SHUFFLED = "shuffled"  # the pairs' values are others: what is asked for stands nowhere
NO_NEEDLE = "no_needle"  # the needle is a line of noise
ADJACENT = "adjacent"  # the question directly after the only pair


class RecallError(SeqarchError):
    """A recall task cannot be made or scored."""


@dataclass(frozen=True)
class Case:
    """A cell of the test, or what one training batch holds.

    Attributes:
        length: T, tokens of the sequence.
        pairs: key-value pairs (mqar), lines or entries; letters for copying.
        depth: of the needle, per cent; None: drawn.
        control: what is left out or changed.
    """

    length: int
    pairs: int | None = None
    depth: float | None = None
    control: str | None = None


@dataclass(frozen=True)
class Examples:
    """B sequences.

    Attributes:
        inputs: int64 [B, T].
        targets: int64 [B, T], the id to predict at the same place; IGNORE where nothing is asked.
        depth: actual depths, per cent, [B]; None where there are none.
    """

    inputs: Ints
    targets: Ints
    depth: np.ndarray | None = None


class Task(Protocol):
    """A task's module, with its options bound: pure functions of them and of the draws."""

    def training(self, step: int) -> Case:
        """What the batch of a step (from 0) holds."""

    def cases(self) -> list[Case]:
        """The cells of the test."""

    def controls(self, case: Case) -> list[Case]:
        """The controls that a cell is judged by."""

    def make(self, case: Case, rows: int, draws: Draws) -> Examples:
        """That many sequences."""

    def read(self, inputs: Ints) -> Ints:
        """The answers that one input sequence [T] allows to read, at every place; 0 where it has none."""


class Alphabet:
    """Characters as ids, in order."""

    def __init__(self, characters: str) -> None:
        self.characters = characters
        self._ids = {character: i for i, character in enumerate(characters)}

    def ids(self, text: str) -> Ints:
        return np.array([self._ids[character] for character in text], dtype=np.int64)

    def id(self, character: str) -> int:
        return self._ids[character]

    def text(self, ids: Sequence[int] | Ints) -> str:
        return "".join(self.characters[i] for i in ids)


def numerals(numbers: Ints, digits: int) -> Ints:
    """The digits of numbers [...] -> [..., digits], leading zeros kept."""
    return numbers[..., None] // 10 ** np.arange(digits - 1, -1, -1) % 10


def boundary(n_lines: int, depth: float) -> int:
    """Before which of n equally long lines a needle at that depth stands; n: after the last.

    The boundary b_i that minimises |b_i - depth/100 b_n|, ties to the lower.
    """
    return min(range(n_lines + 1), key=lambda i: (abs(i - depth / 100 * n_lines), i))


def ignored(shape: tuple[int, ...]) -> Ints:
    return np.full(shape, IGNORE, dtype=np.int64)


def check_oracle(task: Task, examples: Examples, what: str) -> None:
    """Raise RecallError unless every answer can be read from the input."""
    for row, (inputs, targets) in enumerate(zip(examples.inputs, examples.targets, strict=True)):
        asked = targets != IGNORE
        found = task.read(inputs)[asked]
        if not asked.any() or (found != targets[asked]).any():
            raise RecallError(
                f"{what}, sequence {row}: the oracle reads {found.tolist()}, not {targets[asked].tolist()}: "
                "the data are wrong"
            )
