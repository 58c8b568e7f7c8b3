"""The delta rule with a diagonal-plus-low-rank transition (DPLR) in plain PyTorch, by chunks.

    z_t = S_{t-1}ᵀ a_t ;   S_t = diag(exp g_t) S_{t-1} + k_t v_tᵀ + b_t z_tᵀ ;   o_t = scale S_tᵀ q_t

a reads the state before its decay. RWKV-7 (Peng et al. 2025, arXiv 2503.14456) is a = -κ, b = κ ∘ α.
Inside a chunk, with G_i = Σ_{l<=i} g_l, E_i = G_{i-1} and the four decayed products of `products.py`:

    [U | X] = (I - A_ab)⁻¹ [A_ak V | a exp(E)] ;   Z_n = U_n + X_n S_n
    S_{n+1} = diag(exp G_C) S_n + (K exp(G_C - G))ᵀ V + (B exp(G_C - G))ᵀ Z_n
    (the walk over the chunks)
    O = scale (A_qk V + A_qb Z + (Q exp G) S_n)                                     (all chunks at once)
"""

import torch
from torch import Tensor

from seqarch.ops.common import uncompiled
from seqarch.ops.delta_rule.chunked import SolveUnitLower, WalkChunks, join_time, read_chunks, split_time
from seqarch.ops.dplr_rule.products import Decayed, decay_all
from seqarch.ops.segments import chunk_masks, starts


def dplr_rule_recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    g: Tensor,
    scale: float,
    S: Tensor,
    segment_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The recurrence, one step at a time: for decoding and as an oracle. Shapes as in `dplr_rule`, S [B,
    H, K, V].
    """
    first = None if segment_ids is None else starts(segment_ids)
    outputs = []
    for t in range(q.shape[1]):
        if first is not None:
            S = S.masked_fill(first[:, t, None, None, None], 0)
        q_t, k_t, a_t, b_t, decay = (x[:, t].unsqueeze(-1) for x in (q, k, a, b, g.exp()))
        z = (S * a_t).sum(-2, keepdim=True)
        S = decay * S + k_t * v[:, t].unsqueeze(-2) + b_t * z
        outputs.append(scale * (S * q_t).sum(-2))
    return torch.stack(outputs, 1), S


@uncompiled
def dplr_rule_chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    g: Tensor,
    scale: float,
    S_0: Tensor,
    segment_ids: Tensor | None,
    chunk_size: int,
) -> tuple[Tensor, Tensor]:
    """o [B, T, H, V] and the final state [B, H, K, V]. Shapes as in `dplr_rule`."""
    T = q.shape[1]
    q = q if scale == 1 else q * scale
    q, k, v, a, b, g = (split_time(x, chunk_size) for x in (q, k, v, a, b, g))
    x = decay_all(q, k, a, b, g)
    if segment_ids is not None:
        x = _within_documents(x, segment_ids, chunk_size)
    U, X = SolveUnitLower.apply(-x.ab, x.ak @ v, x.a_read)
    Z, S, S_N = WalkChunks.apply(U, X, x.b_write, x.decay.unsqueeze(-1), x.k_write.mT @ v, S_0, 1)
    return join_time(read_chunks((x.qk, v), (x.qb, Z), (x.q_read, S)), T), S_N


def _within_documents(x: Decayed, segment_ids: Tensor, chunk_size: int) -> Decayed:
    same, read, write, keep = (mask.movedim(2, 0) for mask in chunk_masks(segment_ids, chunk_size))
    read, write = read.unsqueeze(-1), write.unsqueeze(-1)
    qk, qb, ak, ab = (matrix.masked_fill(~same, 0) for matrix in (x.qk, x.qb, x.ak, x.ab))
    return Decayed(
        qk,
        qb,
        ak,
        ab,
        q_read=x.q_read * read,
        a_read=x.a_read * read,
        k_write=x.k_write * write,
        b_write=x.b_write * write,
        decay=x.decay * keep.unsqueeze(-1),
    )
