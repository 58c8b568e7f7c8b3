"""What can go wrong in training."""

from seqarch.errors import SeqarchError


class TrainingError(SeqarchError):
    """A training run cannot go on."""


class CheckpointError(TrainingError):
    """A checkpoint is unreadable, or does not fit the model it says it is of."""


class WorkDirectoryError(TrainingError):
    """The working directory of a run cannot be used: another process has it, or it cannot be written."""


class NonFiniteError(TrainingError):
    """A loss or gradient that is not finite; the optimiser has not used it."""


class OutOfMemory(TrainingError):
    """A micro-batch did not fit in the device's memory; the next attempt takes a smaller one."""


class NoProgress(TrainingError):
    """Two attempts in a row got no further than where they started."""


class Interrupted(TrainingError):
    """Stopped by a signal, or before its time was up, with its state saved: the same command goes on."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h
    signal: int | None = None  # None: its time was up
