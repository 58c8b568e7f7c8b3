"""The one contract between tasks and the training loop."""

from dataclasses import dataclass

import torch

IGNORE = -100  # a target that no loss counts, as in torch.nn.functional.cross_entropy


@dataclass(frozen=True)
class Batch:
    """B sequences of T tokens, all tensors int64 [B, T].

    Attributes:
        inputs: token ids.
        targets: the id to predict at each place, already aligned with `inputs`; `IGNORE` where none is.
        segment_ids: which document of its sequence a token is in, not decreasing; None: nothing is masked.
        positions: place within the document; None: 0 to T − 1.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    segment_ids: torch.Tensor | None = None
    positions: torch.Tensor | None = None

    @property
    def n_targets(self) -> int:
        """How many targets a loss counts."""
        return int((self.targets != IGNORE).sum())

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Batch":
        def move(tensor: torch.Tensor | None) -> torch.Tensor | None:
            return None if tensor is None else tensor.to(device, non_blocking=non_blocking)

        return Batch(
            self.inputs.to(device, non_blocking=non_blocking),
            self.targets.to(device, non_blocking=non_blocking),
            move(self.segment_ids),
            move(self.positions),
        )
