"""Products of decayed rows and columns inside a chunk, without overflow whatever the gates.

    A_xy[i, j] = Σ_d x_id y_jd exp(R_id - G_jd)     R = G for q, R = E (one step earlier) for a;
    j <= i, or j < i for a

All exponents that are kept are <= 0, but a matrix product needs them in two factors, exp(R - M) exp(M - G)
around some reference row M, and these may overflow. The reference, and with it the speed, is chosen once
per call:

1. M = the chunk's middle row, if both factors stay below exp(40) in float32, exp(300) in float64;
2. else sub-blocks of 16 steps: pairs of different sub-blocks use the row before the later one (both
   exponents <= 0), the diagonal ones their own middle row if that obeys the bound;
3. else sub-blocks of 8 steps with the exact [8, 8, K] differences on the diagonal.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from seqarch.ops.common import clamped_exp


class Decayed(NamedTuple):
    """What a chunk needs of q, a (rows) and k, b (columns), chunk layout.

    Attributes:
        qk, qb: [..., C, C], lower triangular. ak, ab: strictly lower.
        q_read: q exp(G), a_read: a exp(E): they read the state before the chunk.
        k_write: k exp(G_C - G), b_write: b exp(G_C - G): they write into the state after it.
        decay: exp(G_C) [..., K].
    """

    qk: Tensor
    qb: Tensor
    ak: Tensor
    ab: Tensor
    q_read: Tensor
    a_read: Tensor
    k_write: Tensor
    b_write: Tensor
    decay: Tensor


def decay_all(q: Tensor, k: Tensor, a: Tensor, b: Tensor, g: Tensor) -> Decayed:
    """Inputs [..., C, K]; g <= 0 log decays."""
    G = g.cumsum(-2)
    if _spread(G, g) <= _bound(g):
        return _centred_chunk(q, k, a, b, G)
    # Sums of strong decays lose the low digits of the weak ones after them, hence float64.
    G = g.double().cumsum(-2)
    E = G - g
    centred = max(_spread(G[..., i, :], g[..., i, :]) for i in _sub_blocks(g, 16)) <= _bound(g)
    before, upto, columns = torch.stack([a, q]), torch.stack([E, G]), torch.stack([k, b])
    (ak, ab), (qk, qb) = _by_sub_blocks(before, upto, columns, G, centred)
    end = G[..., -1:, :]
    to_end = _exp(end - G, q)
    return Decayed(
        qk.tril(),
        qb.tril(),
        ak.tril(-1),
        ab.tril(-1),
        q_read=q * _exp(G, q),
        a_read=a * _exp(E, q),
        k_write=k * to_end,
        b_write=b * to_end,
        decay=_exp(end, q).squeeze(-2),
    )


def _bound(g: Tensor) -> float:
    """Half of what a number holds: the backward pass forms squares of the factors."""
    return 300.0 if g.dtype == torch.float64 else 40.0


def _spread(G: Tensor, g: Tensor) -> float:
    """The largest exponent on either side of the middle row, over the rows of G and of E = G - g."""
    with torch.no_grad():
        middle = G[..., G.shape[-2] // 2, :]
        before = G[..., 0, :] - g[..., 0, :] - middle
        return float(torch.maximum(before, middle - G[..., -1, :]).max())


def _exp(x: Tensor, like: Tensor) -> Tensor:
    return clamped_exp(x.to(like.dtype))


def _centred_chunk(q: Tensor, k: Tensor, a: Tensor, b: Tensor, G: Tensor) -> Decayed:
    """Tier 1. One exp an element serves all: the rows of E are the rows of G one step earlier."""
    # M cancels in every product, so no gradient flows through it.
    M = G[..., G.shape[-2] // 2, :].unsqueeze(-2).detach()
    from_M = (F.pad(G, (0, 0, 1, 0)) - M).exp()  # exp(G_i - M) for i = 0..C, G_0 = 0
    to_M = from_M[..., 1:, :].reciprocal()
    q, a = q * from_M[..., 1:, :], a * from_M[..., :-1, :]
    k, b = k * to_M, b * to_M
    start, end = M.exp(), from_M[..., -1:, :]  # exp(M - G_0), exp(G_C - M)
    return Decayed(
        qk=(q @ k.mT).tril_(),
        qb=(q @ b.mT).tril_(),
        ak=(a @ k.mT).tril_(-1),
        ab=(a @ b.mT).tril_(-1),
        q_read=q * start,
        a_read=a * start,
        k_write=k * end,
        b_write=b * end,
        decay=(start * end).squeeze(-2),
    )


def _sub_blocks(x: Tensor, size: int) -> list[slice]:
    C = x.shape[-2]
    return [slice(i, min(i + size, C)) for i in range(0, C, size)]


def _by_sub_blocks(rows: Tensor, R: Tensor, columns: Tensor, G: Tensor, centred: bool) -> Tensor:
    """Tiers 2 and 3 for all pairs of rows [2, ..., C, K] (exponents R) and columns [2, ..., C, K]: [2, 2,
    ..., C, C].

    What stands above the diagonal is finite and means nothing.
    """
    rows, R = rows.unsqueeze(1), R.unsqueeze(1)
    C = rows.shape[-2]
    strips = []
    for block in _sub_blocks(rows, 16 if centred else 8):
        x, y = rows[..., block, :], columns[..., block, :]
        R_x, G_y = R[..., block, :], G[..., block, :]
        if centred:
            M = G_y[..., G_y.shape[-2] // 2, :].unsqueeze(-2)
            diagonal = (x * (R_x - M).to(x.dtype).exp()) @ (y * (M - G_y).to(x.dtype).exp()).mT
        else:
            D = _exp(R_x.unsqueeze(-2) - G_y.unsqueeze(-3), x)  # [..., c, c, K]
            diagonal = (x.unsqueeze(-2) * y.unsqueeze(-3) * D).sum(-1)
        strip = [diagonal]
        if block.start > 0:
            past = slice(0, block.start)
            M = G[..., block.start - 1, :].unsqueeze(-2)
            strip.insert(
                0, (x * _exp(R_x - M, x)) @ (columns[..., past, :] * _exp(M - G[..., past, :], x)).mT
            )
        strips.append(F.pad(torch.cat(strip, -1), (0, C - block.stop)))
    return torch.cat(strips, -2)
