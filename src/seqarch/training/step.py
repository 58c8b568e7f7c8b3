"""One optimiser step, and the loss it lowers: mean nats per token of a global batch."""

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from seqarch.model import Decoder
from seqarch.tasks.batch import IGNORE, Batch


def loss_sum(model: Decoder, batch: Batch) -> Tensor:
    """Sum over targets of -log p(target), in nats, float32 scalar."""
    logits, _ = model(batch.inputs, segment_ids=batch.segment_ids, positions=batch.positions)
    return F.cross_entropy(
        logits.flatten(0, 1).float(), batch.targets.flatten(), ignore_index=IGNORE, reduction="sum"
    )


def accumulate(model: Decoder, batches: Sequence[Batch], autocast: torch.autocast) -> Tensor:
    """Add to the gradients those of the mean loss over all targets of all batches; that loss, float32 scalar.

    The sum is divided by the number of targets of the whole, not of each part, so that how a batch is cut
    into micro-batches changes nothing but rounding.
    """
    n_targets = sum(batch.n_targets for batch in batches)
    total = torch.zeros((), device=batches[0].inputs.device)
    for batch in batches:
        with autocast:
            loss = loss_sum(model, batch) / max(1, n_targets)
        loss.backward()
        total += loss.detach()
    return total


def gradient_norm(parameters: Iterable[Tensor]) -> Tensor:
    """The global L2 norm, a scalar."""
    return torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])


def clip_gradients(parameters: Iterable[Tensor], limit: float | None, norm: float) -> None:
    """Scale gradients of global L2 norm `norm` to one of `limit` if they exceed it (arXiv 1211.5063)."""
    if limit is not None and norm > limit:
        torch.nn.utils.clip_grads_with_norm_(parameters, limit, torch.tensor(norm))


@torch.no_grad()
def mean_loss(model: Decoder, batches: Iterable[Batch], autocast: torch.autocast) -> float:
    """Mean nats per target over batches, without gradients."""
    total, n_targets = 0.0, 0
    model.eval()
    for batch in batches:
        with autocast:
            total += float(loss_sum(model, batch))
        n_targets += batch.n_targets
    model.train()
    return total / max(1, n_targets)


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
