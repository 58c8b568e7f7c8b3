"""Linear attention with no decay, or one decay a head (constant or per step), in chunks.

With G_i the sum of the log decays from the chunk's start to i, the decays come out of the matrix product,

    V'_j  = exp(-G_j) v_j
    o_i   = exp(G_i) ( sum_{j <= i} <q_i, k_j> V'_j + S_nᵀ q_i )
    S_n+1 = exp(G_C) ( S_n + sum_j k_j V'_jᵀ )

so that heads that share q and k (Mamba-2) are one wide head. exp(-G_C) must stay in range: the chunk is made
as short as that takes, and below 16 steps the exact form is used, which keeps exponents of differences, all
<= 0:

    A_ij  = <q_i, k_j> exp(G_i - G_j);  o_i = sum_{j <= i} A_ij v_j + exp(G_i) S_nᵀ q_i
    S_n+1 = exp(G_C) S_n + sum_j exp(G_C - G_j) k_j v_jᵀ
"""

import torch
from torch import Tensor

from seqarch.ops.common import (
    bounded_decay,
    clamped_exp,
    from_chunks,
    pad_time,
    pick_chunk_size,
    to_chunks,
    uncompiled,
)
from seqarch.ops.linear_attention.factored import factored
from seqarch.ops.linear_attention.parts import carry, masked, over_time
from seqarch.ops.segments import ChunkMasks, chunk_masks

SHORTEST_CHUNK = 16


@uncompiled
def scalar_decay(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    state: Tensor | None,
    segment_ids: Tensor | None,
    chunk_size: int | None,
    scale: float,
    return_state: bool,
) -> tuple[Tensor, Tensor | None]:
    """g None, [H] or [B, T, H]; the rest as `linear_attention`, in the accumulation dtype."""
    T = q.shape[1]
    C = chunk_size or pick_chunk_size(T)
    G = None
    if g is not None:
        longest = _longest_chunk_in_range(g, C, q.dtype)
        g = over_time(g, T, longest or C) if g.dim() == 1 else g
        if longest is None:
            masks = None if segment_ids is None else chunk_masks(segment_ids, C)
            return _exact(q * scale, k, v, g, state, masks, C, return_state)
        C = longest
        G = pad_time(g, C).unflatten(1, (-1, C)).cumsum(2)
    masks = None if segment_ids is None else chunk_masks(segment_ids, C)
    return factored(q, k, v, G, state, masks, C, scale, return_state)


def _longest_chunk_in_range(g: Tensor, C: int, dtype: torch.dtype) -> int | None:
    """The longest of C, C/2, .. >= 16 whose total log decays stay above -60 (float32), -500 (float64); None:
    none.
    """
    bound = -500.0 if dtype == torch.float64 else -60.0
    with torch.no_grad():
        while True:
            total = g * C if g.dim() == 1 else pad_time(g, C).unflatten(1, (-1, C)).sum(2)
            if total.min() >= bound:
                return C
            if C < 2 * SHORTEST_CHUNK:
                return None
            C = -(-C // 2)


def _exact(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    state: Tensor | None,
    masks: ChunkMasks | None,
    C: int,
    return_state: bool,
) -> tuple[Tensor, Tensor | None]:
    T, dtype = q.shape[1], q.dtype
    q, k, v = (to_chunks(x, C).contiguous() for x in (q, k, v))
    G = to_chunks(bounded_decay(g), C).cumsum(-1)  # [B or 1, H, N or 1, C]
    A = (q @ k.transpose(-1, -2)) * clamped_exp(G.unsqueeze(-1) - G.unsqueeze(-2)).tril()
    o = (A if masks is None else A * masks.same) @ v
    write = masked(clamped_exp(G[..., -1:] - G), None if masks is None else masks.write, dtype)
    decay = masked(clamped_exp(G[..., -1]), None if masks is None else masks.keep, dtype)
    read = masked(clamped_exp(G), None if masks is None else masks.read, dtype)
    assert write is not None
    assert decay is not None
    assert read is not None
    KV = k.transpose(-1, -2) @ (v * write.unsqueeze(-1))
    states, S = carry(KV, decay[..., None, None], state)
    if states is not None:
        o = o + (q @ states) * read.unsqueeze(-1)
    return from_chunks(o, T), S if return_state else None
