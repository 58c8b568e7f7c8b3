"""The gated delta rule in plain PyTorch, by chunks.

    S' = exp(g_t) S_{t-1} ;  e_t = β_t (v_t - S'ᵀ k_t) ;  S_t = S' + k_t e_tᵀ ;  o_t = scale S_tᵀ q_t

The decay acts before the error is read. Yang et al. 2024, arXiv 2412.06464, section 3; without g DeltaNet,
arXiv 2406.06484. Inside a chunk, with G_i = Σ_{l<=i} g_l and D_ij = exp(G_i - G_j) for j <= i (the WY form):

    L_ij = β_i <k_i, k_j> D_ij  (j < i) ;   [U | W] = (I + L)⁻¹ [β V | β exp(G) K]
    Z_n = U_n - W_n S_n ;   S_{n+1} = exp(G_C) S_n + (K exp(G_C - G))ᵀ Z_n
    (the walk over the chunks)
    O = scale ((Q exp G) S_n + ((Q Kᵀ) ∘ D) Z)                                      (all chunks at once)
"""

import torch
from torch import Tensor

from seqarch.ops.common import clamped_exp, uncompiled
from seqarch.ops.delta_rule.chunked import SolveUnitLower, WalkChunks, join_time, read_chunks, split_time
from seqarch.ops.segments import chunk_masks, starts


def delta_rule_recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor | None,
    scale: float,
    S: Tensor,
    segment_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The recurrence, one step at a time: for decoding and as an oracle. Shapes as in `delta_rule`, S [B,
    H, K, V].
    """
    first = None if segment_ids is None else starts(segment_ids)
    outputs = []
    for t in range(q.shape[1]):
        if g is not None:
            S = S * g[:, t].exp()[..., None, None]
        if first is not None:
            S = S.masked_fill(first[:, t, None, None, None], 0)
        k_t = k[:, t].unsqueeze(-1)
        error = beta[:, t, :, None] * (v[:, t] - (S * k_t).sum(-2))
        S = S + k_t * error.unsqueeze(-2)
        outputs.append(scale * (S * q[:, t].unsqueeze(-1)).sum(-2))
    return torch.stack(outputs, 1), S


@uncompiled
def delta_rule_chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor | None,
    scale: float,
    S_0: Tensor,
    segment_ids: Tensor | None,
    chunk_size: int,
) -> tuple[Tensor, Tensor]:
    """o [B, T, H, V] and the final state [B, H, K, V]. Shapes as in `delta_rule`."""
    T = q.shape[1]
    q, k, v, beta = (split_time(x, chunk_size) for x in (q * scale, k, v, beta.unsqueeze(-1)))
    masks = None if segment_ids is None else [m.movedim(2, 0) for m in chunk_masks(segment_ids, chunk_size)]

    k_beta = k * beta
    L, A = k_beta @ k.mT, q @ k.mT  # [N, B, H, C, C]
    read, write, decay = k_beta, k, None
    if g is not None:
        # Sums of strong decays lose the low digits of the weak ones after them, hence float64 for these
        # few numbers.
        G = split_time(g.double(), chunk_size).cumsum(-1)
        D = clamped_exp((G.unsqueeze(-1) - G.unsqueeze(-2)).to(q.dtype))  # 1 above the diagonal
        L, A = L * D, A * D
        since_start = clamped_exp(G.to(q.dtype)).unsqueeze(-1)
        to_end = clamped_exp((G[..., -1:] - G).to(q.dtype)).unsqueeze(-1)
        read, q, write = k_beta * since_start, q * since_start, k * to_end
        decay = since_start[..., -1:, :]
    if masks is not None:
        same, can_read, can_write, keep = masks
        L, A = L.masked_fill(~same, 0), A.masked_fill(~same, 0)
        read, q = read * can_read.unsqueeze(-1), q * can_read.unsqueeze(-1)
        write = write * can_write.unsqueeze(-1)
        keep = keep[..., None, None].to(q.dtype)
        decay = keep.expand(-1, -1, q.shape[2], -1, -1) if decay is None else decay * keep
    U, W = SolveUnitLower.apply(L, v * beta, read)
    Z, S, S_N = WalkChunks.apply(U, W, write, decay, None, S_0, -1)
    return join_time(read_chunks((q, S), (A.tril_(), Z)), T), S_N
