"""Linear attention in chunks: matrix products inside chunks, a loop over chunks that carries the state.

With G_i the sum of the log decays from the chunk's start to i, and E_i = G_i (inclusive read) or G_{i-1}
(bonus):

    A_ij  = sum_d q_id k_jd exp(E_id - G_jd)      j <= i (inclusive), j < i (bonus)
    KV_n  = sum_j (k_j * exp(G_C - G_j)) v_jᵀ
    S_n+1 = diag(exp G_C) S_n + KV_n
    o_i   = sum_j A_ij v_j + (q_i * exp E_i)ᵀ S_n                        bonus: + (sum_d q_id u_d k_id) v_i

Every exponent that is kept is <= 0. Document boundaries multiply A, the reads, the writes and the carried
state by the masks of `seqarch.ops.segments`. Inputs are in the accumulation dtype, the scale is already in q.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from seqarch.ops.common import clamped_exp, from_chunks, pick_chunk_size, to_chunks
from seqarch.ops.segments import ChunkMasks, chunk_masks

SUB_BLOCK, EXACT_BLOCK = 16, 8


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
    """No decay, a constant per head, or a scalar per step and head: one [C, C] decay mask a head."""
    T = q.shape[1]
    C = chunk_size or pick_chunk_size(T)
    masks = None if segment_ids is None else chunk_masks(segment_ids, C)
    q, k, v = (to_chunks(x, C).contiguous() for x in (q, k, v))
    G = None if g is None else to_chunks(_over_time(g, T, C), C).cumsum(-1)  # [B or 1, H, N or 1, C]

    A = q @ k.transpose(-1, -2)  # one product for all heads where they share q and k
    A = A.tril() if G is None else A * clamped_exp(G.unsqueeze(-1) - G.unsqueeze(-2)).tril()
    if masks is not None:
        A = A * masks.same
    o = A.expand(-1, v.shape[1], -1, -1, -1) @ v

    N = v.shape[2]
    if N == 1 and state is None and not return_state:
        return from_chunks(o, T), None
    write = None if G is None else clamped_exp(G[..., -1:] - G)
    write = _masked(write, None if masks is None else masks.write, q.dtype)
    # heads that share k: the decay goes to v, and one product serves all
    KV = k.transpose(-1, -2) @ (v if write is None else v * write.unsqueeze(-1))
    decay = _masked(
        None if G is None else clamped_exp(G[..., -1]), None if masks is None else masks.keep, q.dtype
    )
    states, state = carry(KV, None if decay is None else decay[..., None, None], state)
    if states is not None:
        inter = q @ states
        read = _masked(None if G is None else clamped_exp(G), None if masks is None else masks.read, q.dtype)
        o = o + (inter if read is None else inter * read.unsqueeze(-1))
    return from_chunks(o, T), state


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
    """A decay for each key channel. The tier is chosen once per call from the range of the decays:

    1. `_centred`: two factors around the chunk's middle, if their exponents stay within the dtype's range;
    2. `_blocked` with sub-blocks of 16, each diagonal block by centred factors, if those stay in range;
    3. `_blocked` with sub-blocks of 8 and exact differences on the diagonal: always finite.
    """
    B, T, H, K = v.shape[0], q.shape[1], v.shape[2], q.shape[3]
    if g is None:
        g = q.new_zeros(1, K).expand(H, K)
    elif g.dim() in (1, 3):
        g = g.unsqueeze(-1).expand(*g.shape, K)
    if q.shape[2] != H:
        q, k = q.expand(B, T, H, K), k.expand(B, T, H, K)
    C = chunk_size or pick_chunk_size(T)
    E, G = _cumulative(g, T, C, exclusive=bonus is not None)
    if _in_range(E, G):
        tier = _centred
    else:
        tier, C = _blocked, SUB_BLOCK * -(-min(C, 64) // SUB_BLOCK)
        E, G = _cumulative(g, T, C, exclusive=bonus is not None)
    masks = None if segment_ids is None else chunk_masks(segment_ids, C)
    q, k, v = (to_chunks(x, C).contiguous() for x in (q, k, v))
    A, inter, KV = tier(q, k, v, G, E, masks)
    A = A.tril(0 if bonus is None else -1)
    if masks is not None:
        A = A * masks.same
    o = A @ v
    if bonus is not None:
        o = o + (q * bonus[None, :, None, None] * k).sum(-1, keepdim=True) * v
    if v.shape[2] == 1 and state is None and not return_state:
        return from_chunks(o, T), None
    decay = clamped_exp(G[..., -1, :])
    if masks is not None:
        decay = decay * masks.keep.unsqueeze(-1)
    states, state = carry(KV(), decay.unsqueeze(-1), state)
    if states is not None:
        o = o + inter(states)
    return from_chunks(o, T), state


# A tier returns the unmasked A [.., C, C], the read of carried states, and the chunk's own contribution to
# the state.
Tier = tuple[Tensor, Callable[[Tensor], Tensor], Callable[[], Tensor]]


def _centred(q: Tensor, k: Tensor, v: Tensor, G: Tensor, E: Tensor, masks: ChunkMasks | None) -> Tier:
    """A = (q exp(E - M)) (k exp(M - G))ᵀ with M = G in the chunk's middle; products above the diagonal may
    overflow and are removed by selection. The state's rows take the rest of the decay: exp(M) and exp(G_C -
    M)."""
    M = G[..., G.shape[-2] // 2, :].unsqueeze(-2)
    qe, ke = q * (E - M).exp(), k * (M - G).exp()

    def inter(states: Tensor) -> Tensor:
        o = qe @ (states * clamped_exp(M).transpose(-1, -2))
        return o if masks is None else o * masks.read.unsqueeze(-1)

    def KV() -> Tensor:
        written = ke if masks is None else ke * masks.write.unsqueeze(-1)
        return (written.transpose(-1, -2) @ v) * (G[..., -1:, :] - M).exp().transpose(-1, -2)

    return qe @ ke.transpose(-1, -2), inter, KV


def _blocked(q: Tensor, k: Tensor, v: Tensor, G: Tensor, E: Tensor, masks: ChunkMasks | None) -> Tier:
    """Sub-blocks of c: a pair I > J goes through R = G just before sub-block I, where both exponents are <=
    0; the diagonal blocks by `_centred` factors or by exact differences."""
    C = q.shape[-2]
    c = SUB_BLOCK if _in_range(_blocks(E, SUB_BLOCK), _blocks(G, SUB_BLOCK)) else EXACT_BLOCK
    m = C // c
    diagonal = _diagonal(*(_blocks(x, c) for x in (q, k, G, E)), exact=c == EXACT_BLOCK)  # [.., m, c, c]
    rows = [F.pad(diagonal[..., 0, :, :], (0, C - c))]
    for i in range(1, m):
        R = G[..., i * c - 1 : i * c, :]
        rows_i = slice(i * c, (i + 1) * c)
        qi = q[..., rows_i, :] * clamped_exp(E[..., rows_i, :] - R)
        kj = k[..., : i * c, :] * clamped_exp(R - G[..., : i * c, :])
        row = torch.cat([qi @ kj.transpose(-1, -2), diagonal[..., i, :, :]], dim=-1)
        rows.append(F.pad(row, (0, C - (i + 1) * c)))

    def inter(states: Tensor) -> Tensor:
        o = (q * clamped_exp(E)) @ states
        return o if masks is None else o * masks.read.unsqueeze(-1)

    def KV() -> Tensor:
        written = k * clamped_exp(G[..., -1:, :] - G)
        written = written if masks is None else written * masks.write.unsqueeze(-1)
        return written.transpose(-1, -2) @ v

    return torch.cat(rows, dim=-2), inter, KV


def _diagonal(q: Tensor, k: Tensor, G: Tensor, E: Tensor, exact: bool) -> Tensor:
    """A inside sub-blocks [.., m, c, c]."""
    if exact:
        D = clamped_exp(E.unsqueeze(-2) - G.unsqueeze(-3))  # [.., c, c, K]
        return (q.unsqueeze(-2) * k.unsqueeze(-3) * D).sum(-1)
    M = G[..., G.shape[-2] // 2, :].unsqueeze(-2)
    return (q * (E - M).exp()) @ (k * (M - G).exp()).transpose(-1, -2)


def _blocks(x: Tensor, c: int) -> Tensor:
    """[.., C, D] -> [.., C / c, c, D]."""
    return x.unflatten(-2, (-1, c))


def carry(KV: Tensor, decay: Tensor | None, state: Tensor | None) -> tuple[Tensor | None, Tensor]:
    """S_n+1 = decay_n S_n + KV_n over chunks: the states before each chunk [B, H, N, K, V] and the last one.

    The states are None if all are zero (a single chunk without an initial state).
    """
    if KV.shape[2] == 1 and state is None:
        return None, KV[:, :, 0]
    if decay is None and state is None:
        sums = KV.cumsum(2)
        return F.pad(sums[:, :, :-1], (0, 0, 0, 0, 1, 0)), sums[:, :, -1]
    S = torch.zeros_like(KV[:, :, 0]) if state is None else state
    decays = None if decay is None else decay.expand(-1, -1, KV.shape[2], -1, -1).unbind(2)
    states = []
    for n, kv in enumerate(KV.unbind(2)):  # indexing in a loop would make the backward pass quadratic
        states.append(S)
        S = S + kv if decays is None else torch.addcmul(kv, decays[n], S)
    return torch.stack(states, 2), S


def _over_time(g: Tensor, T: int, C: int) -> Tensor:
    """A constant gate as [1, time, ...]: one chunk stands for all when T is a multiple of C, else T steps,
    because padding must not decay."""
    if g.dim() >= 3:
        return g
    return g[None, None].expand(1, C if T % C == 0 else T, *g.shape)


def _cumulative(g: Tensor, T: int, C: int, exclusive: bool) -> tuple[Tensor, Tensor]:
    """E and G [B or 1, H, N or 1, C, K] of a vector gate."""
    g = to_chunks(_over_time(g, T, C) if g.dim() == 2 else g, C)
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


def _masked(factor: Tensor | None, mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """factor * mask, where either may be absent."""
    if mask is None:
        return factor
    return mask.to(dtype) if factor is None else factor * mask
