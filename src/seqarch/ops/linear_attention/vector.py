"""Linear attention with a decay for each key channel, inclusive or bonus read, in chunks.

With G_i the sum of the log decays from the chunk's start to i, and E_i = G_i (inclusive read) or G_{i-1}
(bonus):

    A_ij  = sum_d q_id k_jd exp(E_id - G_jd)      j <= i (inclusive), j < i (bonus)
    o_i   = sum_j A_ij v_j + (q_i * exp E_i)ᵀ S_n                        bonus: + (sum_d q_id u_d k_id) v_i
    S_n+1 = diag(exp G_C) S_n + sum_j (k_j * exp(G_C - G_j)) v_jᵀ

The tier is chosen once per call from the range of the decays:

1. `_centred`: two factors around the chunk's middle, if their exponents stay within the dtype's range;
2. `_blocked` with sub-blocks of 16, each diagonal block by centred factors, if those stay in range;
3. `_blocked` with sub-blocks of 8 and exact differences on the diagonal: always finite.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from seqarch.ops.common import clamped_exp, from_chunks, pick_chunk_size, to_chunks, uncompiled
from seqarch.ops.linear_attention.parts import carry, causal_product, over_time
from seqarch.ops.segments import ChunkMasks, chunk_masks

SUB_BLOCK, EXACT_BLOCK = 16, 8


@uncompiled
def vector_decay(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    bonus: Tensor | None,
    state: Tensor | None,
    segment_ids: Tensor | None,
    chunk_size: int | None,
    return_state: bool,
) -> tuple[Tensor, Tensor | None]:
    """g [H, K], [B, T, H, K], or None or a scalar gate with a bonus; the rest as `linear_attention`, in the
    accumulation dtype, scale already in q."""
    (B, T, H, _), K = v.shape, q.shape[-1]
    if g is None:
        g = q.new_zeros(1, K).expand(H, K)
    elif g.dim() in (1, 3):
        g = g.unsqueeze(-1).expand(*g.shape, K)
    q, k = q.expand(B, T, H, K), k.expand(B, T, H, K)
    C = chunk_size or pick_chunk_size(T)
    E, G = _cumulative(g, T, C, exclusive=bonus is not None)
    tier = _centred
    if not _in_range(E, G):
        tier, C = _blocked, SUB_BLOCK * -(-min(C, 64) // SUB_BLOCK)
        E, G = _cumulative(g, T, C, exclusive=bonus is not None)
    masks = None if segment_ids is None else chunk_masks(segment_ids, C)
    q, k, v = (to_chunks(x, C).contiguous() for x in (q, k, v))
    needs_state = v.shape[2] > 1 or state is not None or return_state
    o, S = tier(q, k, v, G, E, 0 if bonus is None else -1, state, masks, needs_state)
    if bonus is not None:
        o = o + (q * bonus[None, :, None, None] * k).sum(-1, keepdim=True) * v
    return from_chunks(o, T), S


def _centred(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    G: Tensor,
    E: Tensor,
    diagonal: int,
    state: Tensor | None,
    masks: ChunkMasks | None,
    needs_state: bool,
) -> tuple[Tensor, Tensor | None]:
    """A = tril((q exp(E - M)) (k exp(M - G))ᵀ) with M = G in the chunk's middle. Products above the diagonal
    may overflow; they are removed by selection. The state's rows take the rest of the decay: exp(M) and
    exp(G_C - M)."""
    M = G[..., G.shape[-2] // 2, :].unsqueeze(-2)
    qe, ke = q * (E - M).exp(), k * (M - G).exp()
    o = causal_product(qe, ke, v, None if masks is None else masks.same, diagonal)
    if not needs_state:
        return o, None
    last = G[..., -1:, :]
    written = ke if masks is None else ke * masks.write.unsqueeze(-1)
    KV = (written.transpose(-1, -2) @ v) * (last - M).exp().transpose(-1, -2)
    states, S = carry(KV, _kept(last, masks), state)
    if states is not None:
        inter = qe @ (states * clamped_exp(M).transpose(-1, -2))
        o = o + (inter if masks is None else inter * masks.read.unsqueeze(-1))
    return o, S


def _blocked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    G: Tensor,
    E: Tensor,
    diagonal: int,
    state: Tensor | None,
    masks: ChunkMasks | None,
    needs_state: bool,
) -> tuple[Tensor, Tensor | None]:
    """A by sub-blocks: a pair I > J goes through R = G just before sub-block I, where both exponents are <=
    0; the diagonal blocks by centred factors or by exact differences."""
    C = q.shape[-2]
    c = SUB_BLOCK if _in_range(_blocks(E, SUB_BLOCK), _blocks(G, SUB_BLOCK)) else EXACT_BLOCK
    in_blocks = (_blocks(x, c) for x in (q, k, G, E))
    own = _diagonal(c == EXACT_BLOCK, *in_blocks).unbind(-3)
    rows = [F.pad(own[0], (0, C - c))]
    for i in range(1, C // c):
        R = G[..., i * c - 1 : i * c, :]
        rows_i = slice(i * c, (i + 1) * c)
        qi = q[..., rows_i, :] * clamped_exp(E[..., rows_i, :] - R)
        kj = k[..., : i * c, :] * clamped_exp(R - G[..., : i * c, :])
        row = torch.cat([qi @ kj.transpose(-1, -2), own[i]], dim=-1)
        rows.append(F.pad(row, (0, C - (i + 1) * c)))
    A = torch.cat(rows, dim=-2).tril(diagonal)
    o = (A if masks is None else A * masks.same) @ v
    if not needs_state:
        return o, None
    last = G[..., -1:, :]
    written = k * clamped_exp(last - G)
    written = written if masks is None else written * masks.write.unsqueeze(-1)
    states, S = carry(written.transpose(-1, -2) @ v, _kept(last, masks), state)
    if states is not None:
        inter = (q * clamped_exp(E)) @ states
        o = o + (inter if masks is None else inter * masks.read.unsqueeze(-1))
    return o, S


def _kept(last: Tensor, masks: ChunkMasks | None) -> Tensor:
    """The decay of the carried state over each chunk [B, H, N, K, 1]; 0 where the document ended."""
    decay = clamped_exp(last).transpose(-1, -2)
    return decay if masks is None else decay * masks.keep[..., None, None]


def _diagonal(exact: bool, q: Tensor, k: Tensor, G: Tensor, E: Tensor) -> Tensor:
    """A inside sub-blocks [.., m, c, c]; entries above the diagonal are anything."""
    if exact:
        D = clamped_exp(E.unsqueeze(-2) - G.unsqueeze(-3))  # [.., c, c, K]
        return (q.unsqueeze(-2) * k.unsqueeze(-3) * D).sum(-1)
    M = G[..., G.shape[-2] // 2, :].unsqueeze(-2)
    return (q * (E - M).exp()) @ (k * (M - G).exp()).transpose(-1, -2)


def _blocks(x: Tensor, c: int) -> Tensor:
    """[.., C, D] -> [.., C / c, c, D]."""
    return x.unflatten(-2, (-1, c))


def _cumulative(g: Tensor, T: int, C: int, exclusive: bool) -> tuple[Tensor, Tensor]:
    """E and G [B or 1, H, N or 1, C, K] of a vector gate."""
    g = to_chunks(over_time(g, T, C) if g.dim() == 2 else g, C)
    G = g.cumsum(-2)
    return (G - g if exclusive else G), G


def _in_range(E: Tensor, G: Tensor) -> bool:
    """Whether exponents around the middle of each block stay where products of two factors neither overflow
    nor
    lose digits: 80 in float32, 600 in float64."""
    bound = 600.0 if G.dtype == torch.float64 else 80.0
    with torch.no_grad():
        M = G[..., G.shape[-2] // 2, :]
        return bool((E[..., 0, :] - M).max() <= bound) and bool((M - G[..., -1, :]).max() <= bound)
