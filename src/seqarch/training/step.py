"""One optimiser step, and the loss it lowers: mean nats per token of a global batch."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqarch.model import Decoder
from seqarch.tasks.batch import IGNORE, Batch


def loss_sum(model: Decoder, batch: Batch) -> Tensor:
    """Sum over targets of -log p(target), in nats, float32 scalar."""
    logits, _ = model(batch.inputs, segment_ids=batch.segment_ids, positions=batch.positions)
    return F.cross_entropy(
        logits.flatten(0, 1).float(), batch.targets.flatten(), ignore_index=IGNORE, reduction="sum"
    )


class LossSum(nn.Module):
    """`loss_sum` as a module, which is what can be spread over several processes."""

    def __init__(self, model: Decoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Tensor:
        return loss_sum(self.model, batch)


def accumulate(
    loss: Callable[[Batch], Tensor],
    batches: Sequence[Batch],
    autocast: torch.autocast,
    divisor: Callable[[int], float] = lambda n_targets: max(1, n_targets),
    partial: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Tensor:
    """Add to the gradients those of the mean loss over all targets of all batches; that loss, float32 scalar.

    The sum is divided by the number of targets of the whole, not of each part, so that how a batch is cut
    into micro-batches changes nothing but rounding.

    Args:
        loss: of one batch, summed over its targets.
        divisor: from the number of targets here (see `World.divisor`).
        partial: a context for all backward passes but the last (see `World.partial`).
    """
    n_targets = divisor(sum(batch.n_targets for batch in batches))
    total = torch.zeros((), device=batches[0].inputs.device)
    for number, batch in enumerate(batches, 1):
        with nullcontext() if number == len(batches) else partial():
            with autocast:
                mean = loss(batch) / n_targets
            mean.backward()
        total += mean.detach()
    return total


def gradient_norm(parameters: Iterable[Tensor]) -> Tensor:
    """The global L2 norm, a scalar."""
    return torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])


def clip_gradients(parameters: Iterable[Tensor], limit: float | None, norm: float) -> None:
    """Scale gradients of global L2 norm `norm` to one of `limit` if they exceed it (arXiv 1211.5063)."""
    if limit is not None and norm > limit:
        torch.nn.utils.clip_grads_with_norm_(parameters, limit, torch.tensor(norm))


@torch.no_grad()
def mean_loss(
    loss: nn.Module,
    batches: Iterable[Batch],
    autocast: torch.autocast,
    totals: Callable[[Iterable[float]], Sequence[float]] = tuple,
) -> float:
    """Mean nats per target over batches, without gradients. `totals` adds up over processes."""
    total, n_targets = 0.0, 0
    loss.eval()
    for batch in batches:
        with autocast:
            total += float(loss(batch))
        n_targets += batch.n_targets
    loss.train()
    total, n = totals((total, n_targets))
    return total / max(1, n)


def split(batch: Batch, rows: int) -> list[Batch]:
    """Micro-batches of at most `rows` sequences each."""

    def part(tensor: Tensor | None, start: int) -> Tensor | None:
        return None if tensor is None else tensor[start : start + rows]

    return [
        Batch(
            inputs=batch.inputs[start : start + rows],
            targets=batch.targets[start : start + rows],
            segment_ids=part(batch.segment_ids, start),
            positions=part(batch.positions, start),
        )
        for start in range(0, len(batch.inputs), rows)
    ]
