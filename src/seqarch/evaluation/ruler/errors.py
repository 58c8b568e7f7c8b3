"""What can go wrong with long-context data."""

from seqarch.errors import SeqarchError


class RulerError(SeqarchError):
    """Long-context data, predictions or scores cannot be made from what was given."""


class ResourceError(RulerError):
    """A text, a set of questions or a word list is missing or unsuitable."""


class InfeasibleLength(RulerError):
    """A task does not fit into the length, even with its smallest prompt.

    Attributes:
        task: its name.
        requested: the length asked for, in tokens.
        minimum: the least length at which all samples fit.
    """

    def __init__(self, task: str, requested: int, minimum: int) -> None:
        self.task, self.requested, self.minimum = task, requested, minimum
        super().__init__(
            f"{task} does not fit into {requested} tokens with this tokenizer: its smallest prompts and the "
            f"tokens to generate take {minimum}; ask for at least that, or leave the task out at this length"
        )
