"""The batches of a run on a task that makes its own sequences, for the same loop as runs on text."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import TypeAdapter

from seqarch.tasks.recall.spec import RecallTask
from seqarch.tasks.recall.streams import TrainingStream, ValidationStream
from seqarch.training.data import DataError
from seqarch.training.spec import RunSpec, TaskData

_TASK: TypeAdapter = TypeAdapter(RecallTask)


def open_task_data(spec: RunSpec, manifests: Mapping[str, Path]) -> tuple[TrainingStream, ValidationStream]:
    """Training and validation batches of the task that the spec holds.

    Raises:
        DataError: the spec is of a run on text, or its sizes are not the task's.
    """
    if not isinstance(spec.data, TaskData):
        raise DataError(f"data of kind {spec.data.kind!r}: expected a task's")
    task, train = _TASK.validate_python(spec.data.task), spec.train
    rows, left = divmod(train.batch_tokens, train.sequence_length)
    sizes = (train.sequence_length, rows, spec.model["vocab_size"])
    if left or sizes != (task.train_length, task.batch_size, task.vocab_size):
        raise DataError(
            f"{task.kind}: sequences of {task.train_length} tokens, {task.batch_size} a batch, vocabulary "
            f"{task.vocab_size}; the run has {sizes[0]}, {sizes[1]}, {sizes[2]}"
        )
    batches = max(1, train.validation.tokens // train.batch_tokens)
    return TrainingStream(task, rows, spec.seed), ValidationStream(task, rows, batches, spec.data.seed)
