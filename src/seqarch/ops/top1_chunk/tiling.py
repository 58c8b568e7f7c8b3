"""How the kernels of Top-1 chunk selection cut their work: tile sizes, the schedule of the chosen stream."""

from typing import NamedTuple

import torch
from torch import Tensor


def block_sizes(dtype: torch.dtype, width: int, C: int) -> dict[str, int]:
    """Tile of queries and of keys (both divide C), warps, pipeline stages, for heads of `width` channels.

    A chunk is streamed through tiles of keys: 128 keys and values of 256 channels would not fit the shared
    memory at once. The compile test holds that these do.
    """
    if dtype == torch.float32:
        warps = 8 if width > 64 else 4
        return {"BLOCK_M": min(32, C), "BLOCK_N": min(32, C), "num_warps": warps, "num_stages": 1}
    M, N = (64, 32) if width == 256 else (64, 64)
    return {
        "BLOCK_M": min(M, C),
        "BLOCK_N": min(N, C),
        "num_warps": 8 if width == 256 else 4,
        "num_stages": 2,
    }


class Schedule(NamedTuple):
    """The chosen stream of each head: `order` [B H, L] lists its queries by chunk (those with none last),
    `offsets` [B H, N + 1] where each chunk's begin, `tile_chunk`, `tile_start` [B H, tiles] cut the lists
    into tiles; unused tiles have chunk N. Sizes do not depend on the data, so that nothing waits for the
    device. All int32.
    """

    order: Tensor
    offsets: Tensor
    tile_chunk: Tensor
    tile_start: Tensor


def schedule(chosen: Tensor, n_chunks: int, M: int) -> Schedule:
    """Stable counting sort of chosen [B, H, L] (-1: none), deterministic."""
    flat = chosen.flatten(0, 1)
    keys, order = torch.where(flat < 0, n_chunks, flat).sort(dim=1, stable=True)
    bounds = torch.arange(n_chunks + 1, device=flat.device, dtype=keys.dtype).expand(flat.shape[0], -1)
    offsets = torch.searchsorted(keys, bounds.contiguous())
    tiles = (offsets.diff(dim=1) + M - 1) // M
    end = tiles.cumsum(1)
    tile = (
        torch.arange(flat.shape[1] // M + n_chunks, device=flat.device).expand(flat.shape[0], -1).contiguous()
    )
    chunk = torch.searchsorted(end, tile, right=True)
    inside = chunk.clamp(max=n_chunks - 1)
    start = offsets.gather(1, inside) + (tile - (end - tiles).gather(1, inside)) * M
    return Schedule(*(x.int().contiguous() for x in (order, offsets, chunk, start)))


def rows(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors whose channels lie side by side."""
    return tuple(x if x.stride(-1) == 1 else x.contiguous() for x in tensors)


def strides(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(stride for x in tensors for stride in x.stride()[:3])
