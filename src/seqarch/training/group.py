"""Several processes of one node that train one model: data parallel, replicated (DDP) or sharded (FSDP2).

The global batch is the same for any number of processes; each takes its rows of it. Losses and gradients are
means over the targets of the whole batch, so that only rounding depends on how many there are.
"""

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from seqarch.errors import SeqarchError
from seqarch.tasks.batch import IGNORE, Batch
from seqarch.training.step import LossSum
from seqarch.training.world import World

T = TypeVar("T")
PATIENCE = timedelta(minutes=60)  # for the slowest process: the first may be writing a large state


class Group(World):
    """`with Group(…) as world:` in each process.

    Args:
        store: a file that does not exist yet, the same for all: where they find each other.
        sharded: parameters, gradients and optimiser are split between the processes (FSDP2), and parameters
            gathered where they are needed; else each process has all of them.
    """

    def __init__(self, rank: int, size: int, device: torch.device, store: Path, sharded: bool) -> None:
        super().__init__(device)
        self.rank, self.size, self.sharded, self.store = rank, size, sharded, store

    def __enter__(self) -> "Group":
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        elif sys.platform == "linux":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all are on this node
        dist.init_process_group(
            "nccl" if self.device.type == "cuda" else "gloo",
            init_method=f"file://{self.store}",
            rank=self.rank,
            world_size=self.size,
            timeout=PATIENCE,
        )
        return self

    def __exit__(self, *error: object) -> None:
        dist.destroy_process_group()

    # --- model and gradients ------------------------------------------------------------------------------

    def distribute(self, loss: LossSum) -> nn.Module:
        if self.sharded:
            shard(loss, self.device.type, self.size)
            return loss
        from torch.nn.parallel import DistributedDataParallel

        loss.to(self.device)
        # No buffer changes in training, so none is sent around.
        return DistributedDataParallel(loss, broadcast_buffers=False, gradient_as_bucket_view=True)

    def partial(self, module: nn.Module) -> AbstractContextManager[object]:
        # Sharded gradients are shared each time: whole ones would be what sharding is there to avoid.
        return nullcontext() if self.sharded else module.no_sync()  # type: ignore[operator]

    def divisor(self, n_targets: int) -> float:
        # Gradients are averaged over the processes: the sum over all targets / size.
        return max(1.0, self.totals([n_targets])[0]) / self.size

    def values(self, mean: Tensor, norm: Tensor) -> tuple[float, float]:
        total = mean.detach().clone()
        dist.all_reduce(total)
        return super().values(total / self.size, _whole(norm))

    # --- batches and agreements ---------------------------------------------------------------------------

    def part(self, batch: Batch) -> Batch:
        rows = slice(self.rank, None, self.size)

        def mine(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor[rows] if self.rank < len(tensor) else tensor[:1]

        own = Batch(*(mine(getattr(batch, name)) for name in Batch.__dataclass_fields__))  # type: ignore[arg-type]
        if self.rank < len(batch.inputs):
            return own
        return replace(own, targets=torch.full_like(own.targets, IGNORE))

    def totals(self, values: Iterable[float]) -> list[float]:
        tensor = torch.tensor(list(values), dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return tensor.tolist()

    def any(self, *flags: bool) -> tuple[bool, ...]:
        return tuple(total > 0 for total in self.totals(map(float, flags)))

    def on_first(self, function: Callable[[], T]) -> T:
        box: list[Any] = [None, None]
        if self.first:
            try:
                box[0] = function()
            except SeqarchError as error:
                box[1] = error
        dist.broadcast_object_list(box, src=0)
        if box[1] is not None:
            raise box[1]
        return box[0]

    # --- tensors ------------------------------------------------------------------------------------------

    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        for name, tensor in tensors.items():
            whole = _whole(tensor)  # takes part on every process
            if self.first:
                found[name] = whole.detach().cpu().contiguous()
        return found

    def place(self, tensor: Tensor, like: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor, distribute_tensor

        if not isinstance(like, DTensor) or tensor.shape != like.shape:
            return tensor
        # Every process has read the whole tensor: nothing needs to be sent.
        return distribute_tensor(
            tensor.to(self.device), like.device_mesh, like.placements, src_data_rank=None
        )

    def local(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        from torch.distributed.tensor import DTensor

        return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]


def shard(loss: LossSum, device: str, size: int) -> None:
    """Split the parameters over `size` processes, block by block; what is outside the blocks, together."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device, (size,))
    for block in loss.model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(loss, mesh=mesh)


def _whole(tensor: Tensor) -> Tensor:
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
