"""Batches of a recall task: pure functions of (options, seed, step), on streams that share nothing.

Training batches depend on the run's seed. Validation and test do not: all architectures, learning rates and
seeds are measured on the same sequences, drawn from streams of their own.
"""

from collections.abc import Iterator

import torch

from seqarch.tasks.batch import Batch
from seqarch.tasks.recall.copying import CopyingTask
from seqarch.tasks.recall.draws import Draws
from seqarch.tasks.recall.examples import Case, Examples, RecallError, Task
from seqarch.tasks.recall.mqar import MqarTask
from seqarch.tasks.recall.needle_lines import NeedleLinesTask
from seqarch.tasks.recall.passkey import PasskeyTask
from seqarch.tasks.recall.phonebook import PhonebookTask
from seqarch.tasks.recall.spec import Copying, Mqar, NeedleLines, Passkey, Phonebook

Spec = Mqar | NeedleLines | Copying | Phonebook | Passkey
TRAIN, VALIDATION, TEST = "train", "validation", "test"


def open_task(spec: Spec) -> Task:
    """The task with these options. Raises RecallError where they leave no room for it."""
    match spec:
        case Mqar():
            return MqarTask(spec)
        case NeedleLines():
            return NeedleLinesTask(spec)
        case Copying():
            return CopyingTask(spec)
        case Phonebook():
            return PhonebookTask(spec)
        case Passkey():
            return PasskeyTask(spec)


def to_batch(examples: Examples) -> Batch:
    return Batch(torch.from_numpy(examples.inputs), torch.from_numpy(examples.targets))


class TrainingStream:
    """Training batches.

    Args:
        batch_sequences: B, sequences of one global batch, whatever the world size.
        seed: of the run.
    """

    def __init__(self, spec: Spec, batch_sequences: int, seed: int) -> None:
        self.task = open_task(spec)
        self.vocab_size = spec.vocab_size
        self.batch_sequences, self.seed = batch_sequences, seed
        self._kind = spec.kind

    def batch(self, step: int, rank: int = 0, world_size: int = 1) -> Batch:
        """The rows of `rank` in the global batch of `step` (both from 0), [B / world_size, T]."""
        if step < 0 or not 0 <= rank < world_size or self.batch_sequences % world_size:
            raise RecallError(
                f"step {step}, rank {rank} of {world_size}, {self.batch_sequences} sequences: expected "
                "step ≥ 0, rank < world size, and a batch that the world size divides"
            )
        draws = Draws(self._kind, TRAIN, self.seed, step)
        whole = self.task.make(self.task.training(step), self.batch_sequences, draws)
        rows = self.batch_sequences // world_size
        part = slice(rank * rows, (rank + 1) * rows)
        return to_batch(Examples(whole.inputs[part], whole.targets[part]))


def held_out(task: Task, kind: str, case: Case, rows: int, split: str, seed: int) -> Examples:
    """The first `rows` sequences of a cell; with equal keys, values and noise at every length and depth."""
    control = case.control or "task"
    return task.make(case, rows, Draws(kind, split, seed, control))


class ValidationStream:
    """A fixed set of batches as in training: one of each kind that training goes through.

    Attributes:
        n_tokens: input tokens of all batches together.
    """

    def __init__(self, spec: Spec, batch_sequences: int, batches: int, seed: int) -> None:
        self.task, self.spec = open_task(spec), spec
        self.batch_sequences, self.batches, self.seed = batch_sequences, batches, seed
        self.n_tokens = batches * batch_sequences * spec.train_length

    def __iter__(self) -> Iterator[Batch]:
        return map(to_batch, self.examples())

    def examples(self) -> Iterator[Examples]:
        """The batches as arrays."""
        for number in range(self.batches):
            draws = Draws(self.spec.kind, VALIDATION, self.seed, number, "batch")
            yield self.task.make(self.task.training(number), self.batch_sequences, draws)
