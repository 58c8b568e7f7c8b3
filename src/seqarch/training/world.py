"""The processes that train one model together, and what they have to agree on.

`World` is one process on its own: nothing of torch.distributed is loaded, and nothing it does changes a bit.
`seqarch.training.group.Group` is several. The loop calls both in the same places, on every process.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch
from torch import Tensor, nn

from seqarch.tasks.batch import Batch
from seqarch.training.checkpoint import on_cpu
from seqarch.training.step import LossSum

T = TypeVar("T")


class World:
    """One process.

    Attributes:
        rank: of this process, from 0; the first one writes all files.
        size: number of processes. Each takes its share of the rows of every batch.
        device: of this process.
    """

    rank = 0
    size = 1

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @property
    def first(self) -> bool:
        return self.rank == 0

    def distribute(self, loss: LossSum) -> nn.Module:
        """Move the model to the devices; the module that computes the loss for training."""
        loss.to(self.device)
        return loss

    def partial(self, module: nn.Module) -> AbstractContextManager[object]:
        """Around a backward pass after which gradients are not complete yet: they need not be shared."""
        return nullcontext()

    def divisor(self, n_targets: int) -> float:
        """What to divide a sum over this process's targets by, so that the gradient that comes out, and the
        average over processes of the loss, are those of the mean over all targets."""
        return max(1, n_targets)

    def values(self, mean: Tensor, norm: Tensor) -> tuple[float, float]:
        """The step's loss and gradient norm as numbers: the one wait for the device."""
        loss, grad_norm = torch.stack([mean, norm]).tolist()
        return loss, grad_norm

    def part(self, batch: Batch) -> Batch:
        """This process's rows of a batch that all have; rows without targets where there are too few."""
        return batch

    def totals(self, values: Iterable[float]) -> list[float]:
        """Sums over all processes."""
        return list(values)

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Each flag, if any process has it set: so all stop after the same step."""
        return flags

    def on_first(self, function: Callable[[], T]) -> T:
        """What the function returns, or raises, on the first process, where alone it is called."""
        return function()

    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole tensors on the CPU, on the first process; on the others nothing."""
        return on_cpu(tensors)

    def place(self, tensor: Tensor, like: Tensor) -> Tensor:
        """A whole tensor as this process holds its part of one `like` it."""
        return tensor

    def local(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """The parts that this process holds."""
        return list(tensors)
