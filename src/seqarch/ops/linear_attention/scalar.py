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

from seqarch.ops.common import clamped_exp, from_chunks, pad_time, pick_chunk_size, shortened, to_chunks
from seqarch.ops.linear_attention.parts import carry, causal_product, masked, over_time
from seqarch.ops.segments import ChunkMasks, chunk_masks

SHORTEST_CHUNK = 16


def scalar_decay(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    state: Tensor | None,
    segment_ids: Tensor | None,
    chunk_size: int | None,
    return_state: bool,
) -> tuple[Tensor, Tensor | None]:
    """g None, [H] or [B, T, H]; the rest as `linear_attention`, in the accumulation dtype, scale already in
    q.
    """
    T = q.shape[1]
    C = chunk_size or pick_chunk_size(T)
    if g is not None:
        factored = _longest_chunk_in_range(g, C, q.dtype)
        g = over_time(g, T, factored or C) if g.dim() == 1 else g
        if factored is None:
            masks = None if segment_ids is None else chunk_masks(segment_ids, C)
            return _exact(q, k, v, g, state, masks, C, return_state)
        C = factored
    masks = None if segment_ids is None else chunk_masks(segment_ids, C)
    return _factored(q, k, v, g, state, masks, C, return_state)


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


def _factored(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    state: Tensor | None,
    masks: ChunkMasks | None,
    C: int,
    return_state: bool,
) -> tuple[Tensor, Tensor | None]:
    T, H, V = v.shape[1:]
    folded = q.shape[2] == 1 and H > 1
    decay = last = None
    if g is not None:
        G = pad_time(g, C).unflatten(1, (-1, C)).cumsum(2)  # [B or 1, N or 1, C, H]
        last = G[:, :, -1].exp()  # [B or 1, N or 1, H]
        decay = _in_time(G, T)  # [B or 1, T, H, 1]
        v = v * (-decay).exp()
        decay = decay.exp()
    if folded:
        v, state = _fold(v.unsqueeze(2)), None if state is None else _fold(state.transpose(1, 2).unsqueeze(1))
        last = None if last is None else last.repeat_interleave(V, dim=-1).unsqueeze(2)  # [.., 1, H V]
    elif last is not None:
        last = last.unsqueeze(-1)
    q, k, v = (to_chunks(x, C).contiguous() for x in (q, k, v))
    o = causal_product(q, k, v, None if masks is None else masks.same)
    S = None
    if v.shape[2] > 1 or state is not None or return_state:
        written = v if masks is None else v * masks.write.unsqueeze(-1)
        KV = k.transpose(-1, -2) @ written
        if last is not None:
            last = last.transpose(1, 2).unsqueeze(-2)  # [B or 1, H or 1, N or 1, 1, 1 or H V]
            KV = KV * last
        kept = masked(last, None if masks is None else masks.keep[..., None, None], q.dtype)
        states, S = carry(KV, kept, state)
        if states is not None:
            inter = q @ states
            o = o + (inter if masks is None else inter * masks.read.unsqueeze(-1))
    o = from_chunks(o, T)
    if folded:
        o = o.unflatten(-1, (H, V)).squeeze(2)
        S = None if S is None else S.squeeze(1).unflatten(-1, (H, V)).transpose(1, 2)
    return (o if decay is None else o * decay), S


def _fold(x: Tensor) -> Tensor:
    """[.., H, V] -> [.., H V]."""
    return x.flatten(-2)


def _in_time(G: Tensor, T: int) -> Tensor:
    """[B or 1, N or 1, C, H] -> [B or 1, T, H, 1]; one chunk that stands for all is repeated."""
    G = G.flatten(1, 2)
    if G.shape[1] < T:
        G = G.repeat(1, T // G.shape[1], 1)
    return shortened(G, T).unsqueeze(-1)


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
    G = to_chunks(g, C).cumsum(-1)  # [B or 1, H, N or 1, C]
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
