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

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from seqarch.ops.common import bounded_decay, clamped_exp, from_chunks, pick_chunk_size, to_chunks, uncompiled
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
        tier, C = _blocked, next(size for size in (16, 32, 64) if size >= min(C, 64))
        E, G = _cumulative(bounded_decay(g), T, C, exclusive=bonus is not None)
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
    """A by halves: the pairs of a block's second half I and its first half J go through R = G at the end of
    J, where both exponents are <= 0, and so on in each half; at the bottom sub-blocks by centred factors or
    by exact differences."""
    C = q.shape[-2]
    exact = not _in_range(_blocks(E, SUB_BLOCK), _blocks(G, SUB_BLOCK))
    h = EXACT_BLOCK if exact else SUB_BLOCK
    in_blocks = (_blocks(x, h) for x in (q, k, G, E))
    A = _Exact.apply(*in_blocks) if exact else _sub_blocks(*in_blocks)  # [.., C / h, h, h]
    while h < C:
        qI, EI = (_halves(x, h)[1] for x in (q, E))
        kJ, GJ = (_halves(x, h)[0] for x in (k, G))
        R = GJ[..., -1:, :]
        IJ = (qI * clamped_exp(EI - R)) @ (kJ * clamped_exp(R - GJ)).transpose(-1, -2)
        JJ, II = A.unflatten(-3, (-1, 2)).unbind(-3)
        A = torch.cat([F.pad(JJ, (0, h)), torch.cat([IJ, II], dim=-1)], dim=-2)
        h *= 2
    A = A.squeeze(-3).tril(diagonal)
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


def _sub_blocks(q: Tensor, k: Tensor, G: Tensor, E: Tensor) -> Tensor:
    """A inside sub-blocks [.., m, c, c] by factors around the middle; anything above the diagonal."""
    M = G[..., G.shape[-2] // 2, :].unsqueeze(-2)
    return (q * (E - M).exp()) @ (k * (M - G).exp()).transpose(-1, -2)


class _Exact(torch.autograd.Function):
    """A inside sub-blocks [.., m, c, c] by differences, 0 above the diagonal. A column at a time, forward and
    backward: all differences at once, [.., c, c, K], would be the op's largest tensors by far.

    With P_ijd = dA_ij q_id k_jd exp(E_id - G_jd): dE_i = sum_j P_ij = q_i * dq_i, and dG_j = -k_j * dk_j.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, G: Tensor, E: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, G, E)
        A = q.new_zeros(*q.shape[:-1], q.shape[-2])
        for j in range(q.shape[-2]):
            product = q[..., j:, :] * k[..., j : j + 1, :]
            A[..., j:, j] = product.mul_(_column(G, E, j)).sum(-1)
        return A

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dA: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        q, k, G, E = ctx.saved_tensors
        dq, dk = torch.zeros_like(q), torch.empty_like(k)
        for j in range(q.shape[-2]):
            weight = dA[..., j:, j : j + 1] * _column(G, E, j)
            dq[..., j:, :].addcmul_(weight, k[..., j : j + 1, :])
            dk[..., j, :] = weight.mul_(q[..., j:, :]).sum(-2)
        return dq, dk, (-k * dk).sum_to_size(G.shape), (q * dq).sum_to_size(E.shape)


def _column(G: Tensor, E: Tensor, j: int) -> Tensor:
    """exp(E_i - G_j) of the steps i >= j."""
    return clamped_exp(E[..., j:, :] - G[..., j : j + 1, :])


def _halves(x: Tensor, h: int) -> tuple[Tensor, Tensor]:
    """[.., C, D] -> the first and the second halves of blocks of 2 h, [.., C / 2h, h, D] each."""
    first, second = x.unflatten(-2, (-1, 2, h)).unbind(-3)
    return first, second


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
    nor lose digits, those of the backward pass, which forms squares, included: 40 in float32, 300 in float64.
    """
    bound = 300.0 if G.dtype == torch.float64 else 40.0
    with torch.no_grad():
        M = G[..., G.shape[-2] // 2, :]
        return bool((E[..., 0, :] - M).max() <= bound) and bool((M - G[..., -1, :]).max() <= bound)
