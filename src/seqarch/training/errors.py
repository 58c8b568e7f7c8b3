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


class Interrupted(TrainingError):
    """Training stopped on a signal with its state saved: the same command goes on from there."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h
