"""The router in PyTorch: which earlier chunk a query takes, and the gradient of its probability. No autograd
here.

    r_ic: a score per candidate;  c*_i the lowest best one;  rp_i = exp(r_{ic*} - logsumexp_c r_ic)
    dr_ic = rp_ic ([c = c*] - rp_{ic*}) drp_i

Scores are streamed, a few chunks of queries at a time: the largest matrix is a block of rows by N.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from seqarch.ops.common import accumulation_dtype
from seqarch.ops.top1_chunk.grouped import BLOCK_SCORES
from seqarch.ops.top1_element.reference import first_argmax


class Route(NamedTuple):
    """All [B, R, L], R = H or 1: chosen int64 (-1 without candidates), lse of the scores, rp (1 without)."""

    chosen: Tensor
    lse: Tensor
    rp: Tensor


class _Block(NamedTuple):
    """Rows of some query chunks: `rows` of the queries, `seen` chunks before the last of them, candidates
    mask.
    """

    rows: slice
    seen: int
    candidate: Tensor


def _blocks(first_chunk: Tensor, n_rows: int, n_heads: int, C: int) -> Iterator[_Block]:
    """Blocks of whole query chunks with bounded scores; candidate bool [B, 1, rows, seen]."""
    B, N = first_chunk.shape
    per_block = max(1, BLOCK_SCORES // (B * n_heads * C * N))
    n_past = N - n_rows // C
    chunk = torch.arange(N, device=first_chunk.device)
    for begin in range(n_past, N, per_block):
        end = min(begin + per_block, N)
        own = chunk[begin:end, None]
        candidate = (chunk[: end - 1] < own) & (chunk[: end - 1] >= first_chunk[:, begin:end, None])
        rows = slice((begin - n_past) * C, (end - n_past) * C)
        yield _Block(rows, end - 1, candidate.repeat_interleave(C, 1).unsqueeze(1))


def _choose(r: Tensor, own: Tensor | None, own_chunk: Tensor, forced: Tensor | None) -> Route:
    """From scores r [B, R, M, n], -inf where no candidate, and the own chunk's score [B, R, M], which comes
    last.
    """
    if own is not None:
        r = torch.cat([r, own.unsqueeze(-1)], dim=-1)
    if r.shape[-1] == 0:
        empty = r.new_zeros(r.shape[:3])
        return Route(torch.full_like(empty, -1, dtype=torch.int64), empty, torch.ones_like(empty))
    best = r.amax(-1)
    none = best == -torch.inf
    column = first_argmax(r)
    if forced is not None:
        asked = torch.where((forced == own_chunk) & (own is not None), r.shape[-1] - 1, forced)
        column = torch.where(forced < 0, column, asked.clamp(max=r.shape[-1] - 1))
    lse = r.logsumexp(-1).masked_fill(none, 0)  # finite, so that exp(-inf - lse) = 0 below
    rp = (r.gather(-1, column.unsqueeze(-1)).squeeze(-1) - lse).exp().masked_fill(none, 1)
    if own is not None:
        column = torch.where(column == r.shape[-1] - 1, own_chunk, column)
    return Route(column.masked_fill(none, -1), lse, rp)


def _own_chunk(L: int, C: int, N: int, device: torch.device) -> Tensor:
    """int64 [L]: the chunk of each query row."""
    return torch.arange(L, device=device) // C + (N - L // C)


def _score_gradient(r: Tensor, t: Tensor, route: Route, rows: slice, own_chunk: Tensor) -> Tensor:
    """dr [B, R, M, n] = t ([c = c*] - rp_c), t = rp_{c*} drp; r is overwritten."""
    rp = r.sub_(route.lse[:, :, rows, None]).exp_()
    dr = rp.mul_(-t.unsqueeze(-1))
    chosen = route.chosen[:, :, rows]
    inside = (chosen >= 0) & (chosen < own_chunk[rows])  # the own chunk's score is not in r
    return dr.scatter_add_(
        -1, torch.where(inside, chosen, 0).unsqueeze(-1), torch.where(inside, t, 0).unsqueeze(-1)
    )


def own_chunk_gradient(own: Tensor | None, t: Tensor, route: Route, C: int, N: int) -> Tensor | None:
    """d of the own chunk's score, where it is a candidate: t ([own = c*] - rp_own)."""
    if own is None:
        return None
    hit = route.chosen == _own_chunk(own.shape[2], C, N, own.device)
    return (t * (hit.to(t) - (own - route.lse).exp())).to(own.dtype)


# --- approx: scores against one summary a chunk -------------------------------------------------------


def approx_forward(
    q: Tensor,
    summary: Tensor,
    own: Tensor | None,
    first_chunk: Tensor,
    C: int,
    scale: float,
    forced: Tensor | None,
) -> Route:
    """q [B, L, R, K], summary [B, N, R, K], own [B, R, L] (its score, scaled), first_chunk [B, N]."""
    acc = accumulation_dtype(q, summary)
    q, summary = (x.transpose(1, 2).to(acc) for x in (q, summary))
    own_chunk = _own_chunk(q.shape[2], C, first_chunk.shape[1], q.device)
    parts = []
    for rows, seen, candidate in _blocks(first_chunk, q.shape[2], q.shape[1], C):
        r = (q[:, :, rows] @ summary[:, :, :seen].transpose(-1, -2) * scale).masked_fill_(
            ~candidate, -torch.inf
        )
        own_rows = None if own is None else own[:, :, rows].to(acc)
        parts.append(_choose(r, own_rows, own_chunk[rows], None if forced is None else forced[:, :, rows]))
    return Route(*(torch.cat(x, dim=2) for x in zip(*parts, strict=True)))


def approx_backward(
    drp: Tensor,
    q: Tensor,
    summary: Tensor,
    own: Tensor | None,
    first_chunk: Tensor,
    route: Route,
    C: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """drp [B, R, L] -> dq, dsummary, down."""
    acc = accumulation_dtype(q, summary)
    queries, chunks = (x.transpose(1, 2).to(acc) for x in (q, summary))
    t = (route.rp * drp).masked_fill(route.chosen < 0, 0)
    own_chunk = _own_chunk(queries.shape[2], C, first_chunk.shape[1], q.device)
    dq, dsummary = torch.zeros_like(queries), torch.zeros_like(chunks)
    for rows, seen, candidate in _blocks(first_chunk, queries.shape[2], queries.shape[1], C):
        if seen == 0:
            continue
        q_rows, seen_chunks = queries[:, :, rows], chunks[:, :, :seen]
        r = (q_rows @ seen_chunks.transpose(-1, -2) * scale).masked_fill_(~candidate, -torch.inf)
        dr = _score_gradient(r, t[:, :, rows], route, rows, own_chunk).mul_(scale)
        dq[:, :, rows] = dr @ seen_chunks
        dsummary[:, :, :seen] += dr.transpose(-1, -2) @ q_rows
    down = own_chunk_gradient(own, t, route, C, first_chunk.shape[1])
    return dq.transpose(1, 2).to(q.dtype), dsummary.transpose(1, 2).to(summary.dtype), down


# --- exact: the chunk's attention mass, every key's score streamed ------------------------------------


def _masses(q_rows: Tensor, k: Tensor, block: _Block, C: int, scale: float) -> tuple[Tensor, Tensor]:
    """Scores [B, H, M, n, C] of the keys of earlier chunks and their log-sum-exp [B, H, M, n]."""
    s = (q_rows @ k[:, :, : block.seen * C].transpose(-1, -2) * scale).unflatten(-1, (block.seen, C))
    return s, s.logsumexp(-1)


def exact_forward(
    q: Tensor,
    k: Tensor,
    own: Tensor | None,
    first_chunk: Tensor,
    C: int,
    scale: float,
    tau_r: float,
    shared: bool,
    forced: Tensor | None,
) -> Route:
    """q [B, L, H, K], k [B, N C, H, K]; shared: masses summed over the heads, one choice (R = 1)."""
    acc = accumulation_dtype(q, k)
    q, k = (x.transpose(1, 2).to(acc) for x in (q, k))
    own_chunk = _own_chunk(q.shape[2], C, first_chunk.shape[1], q.device)
    parts = []
    for block in _blocks(first_chunk, q.shape[2], q.shape[1] * C, C):
        r = _masses(q[:, :, block.rows], k, block, C, scale)[1]
        r = (r.sum(1, keepdim=True) if shared else r) / tau_r
        r = r.masked_fill_(~block.candidate, -torch.inf)
        own_rows = None if own is None else own[:, :, block.rows].to(acc)
        parts.append(
            _choose(r, own_rows, own_chunk[block.rows], None if forced is None else forced[:, :, block.rows])
        )
    return Route(*(torch.cat(x, dim=2) for x in zip(*parts, strict=True)))


def exact_backward(
    drp: Tensor,
    q: Tensor,
    k: Tensor,
    own: Tensor | None,
    first_chunk: Tensor,
    route: Route,
    C: int,
    scale: float,
    tau_r: float,
    shared: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """dS_ij = dr_{i,c(j)} softmax of the chunk's scores at j / tau_r: T² work, as the forward pass."""
    acc = accumulation_dtype(q, k)
    queries, keys = (x.transpose(1, 2).to(acc) for x in (q, k))
    t = (route.rp * drp).masked_fill(route.chosen < 0, 0)
    own_chunk = _own_chunk(queries.shape[2], C, first_chunk.shape[1], q.device)
    dq, dk = torch.zeros_like(queries), torch.zeros_like(keys)
    for block in _blocks(first_chunk, queries.shape[2], queries.shape[1] * C, C):
        if block.seen == 0:
            continue
        rows, end = block.rows, block.seen * C
        s, mass = _masses(queries[:, :, rows], keys, block, C, scale)
        r = (mass.sum(1, keepdim=True) if shared else mass) / tau_r
        dr = _score_gradient(
            r.masked_fill(~block.candidate, -torch.inf), t[:, :, rows], route, rows, own_chunk
        )
        inside = s.sub_(mass.unsqueeze(-1)).exp_()
        ds = inside.mul_(dr.unsqueeze(-1) * (scale / tau_r)).flatten(-2)
        dq[:, :, rows] = ds @ keys[:, :, :end]
        dk[:, :, :end] += ds.transpose(-1, -2) @ queries[:, :, rows]
    down = own_chunk_gradient(own, t, route, C, first_chunk.shape[1])
    return dq.transpose(1, 2).to(q.dtype), dk.transpose(1, 2).to(k.dtype), down
