"""The parts of Top-1 chunk selection in PyTorch, sub-quadratic in time and linear in memory. No autograd
here.

The chosen stream groups queries by the chunk they chose (stable counting sort) and cuts each group into tiles
of equal length, so that thousands of small products become a few batched ones; a chunk's keys are read once a
tile. Every part works through its rows in blocks of half a million scores, so that no T x T/C matrix is ever
whole.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from seqarch.ops.common import accumulation_dtype

Index = Tensor | slice
BLOCK_SCORES = 1 << 19  # scores held at once: 2 MB in float32


class Attention(NamedTuple):
    """o [B, L, H, V]; lse [B, H, L], over both streams."""

    o: Tensor
    lse: Tensor


class Gradients(NamedTuple):
    """dq, dk, dv as q, k, v; part [B, H, L] = dO . (the chosen chunk's part of o)."""

    dq: Tensor
    dk: Tensor
    dv: Tensor
    part: Tensor


class Tiles(NamedTuple):
    """Queries grouped by chosen chunk: chunk [n] of the flat chunks, rows [n, M] of the flat queries, valid
    [n, M].
    """

    chunk: Tensor
    rows: Tensor
    valid: Tensor


# --- attention over the own and the chosen chunk ------------------------------------------------------


def attention_forward(
    q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, C: int, scale: float, always: bool
) -> Attention:
    """One softmax over the query's own chunk (causal) and its chosen chunk, the two merged by log-sum-exp.

    Args:
        q: [B, L, H, K], the last L of the grid's places; k, v: [B, N C, H, K or V].
        chosen: int64 [B, H, L]: a chunk before the query's own, or -1: the own chunk alone.
        always: False: a query that chose a chunk does not see its own.
    """
    H = q.shape[2]
    flat = _Flat.of(q, k, v, C)
    o = flat.q.new_empty(flat.q.shape[0], v.shape[3])
    lse = flat.q.new_empty(flat.q.shape[0])
    causal = _causal_bias(C, flat.q)
    for chunks, keys in flat.local_blocks(chosen, always):
        s = torch.baddbmm(causal, flat.q.view(-1, C, q.shape[3])[chunks], flat.kt(keys), alpha=scale)
        o.view(-1, C, v.shape[3])[chunks], lse.view(-1, C)[chunks] = _softmax(s, _take(flat.v, keys))
    for tile in flat.tile_blocks(chosen):
        s = (_take(flat.q, tile.rows) @ flat.kt(tile.chunk)).mul_(scale)
        o_chosen, lse_chosen = (x[tile.valid] for x in _softmax(s, _take(flat.v, tile.chunk)))
        rows = tile.rows[tile.valid]
        if always:
            total = torch.logaddexp(lse[rows], lse_chosen)
            o_chosen *= (lse_chosen - total).exp().unsqueeze(-1)
            o_chosen += o[rows] * (lse[rows] - total).exp().unsqueeze(-1)
            lse_chosen = total
        o[rows], lse[rows] = o_chosen, lse_chosen
    o = o.view(q.shape[0], H, q.shape[1], v.shape[3]).transpose(1, 2).to(v.dtype)
    return Attention(o, lse.view(q.shape[0], H, q.shape[1]))


def attention_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    chosen: Tensor,
    forward: Attention,
    C: int,
    scale: float,
    always: bool,
) -> Gradients:
    """With p_ij = exp(s_ij - lse_i) and delta_i = dO_i . o_i: dS = p (dO V^T - delta), both streams alike."""
    (B, L, H, K), V = q.shape, v.shape[3]
    flat = _Flat.of(q, k, v, C)
    do_flat, o_flat = _heads_first(do, flat.q.dtype), _heads_first(forward.o, flat.q.dtype)
    delta = (do_flat * o_flat).sum(-1)
    lse = forward.lse.flatten()
    local_lse = (
        lse if always else lse.masked_fill(chosen.flatten() >= 0, torch.inf)
    )  # exp(s - inf) = 0: not seen
    dq = torch.zeros_like(flat.q)
    dk, dv = torch.zeros_like(flat.k), torch.zeros_like(flat.v)
    part = torch.zeros_like(delta) if always else delta.clone()
    causal = _causal_bias(C, flat.q)
    for chunks, keys in flat.local_blocks(chosen, always):
        q_block, do_block = flat.q.view(-1, C, K)[chunks], do_flat.view(-1, C, V)[chunks]
        s = torch.baddbmm(causal, q_block, flat.kt(keys), alpha=scale)
        p, ds, _ = _backward_scores(
            s, local_lse.view(-1, C)[chunks], do_block, _take(flat.v, keys), delta.view(-1, C)[chunks]
        )
        dv[keys] = p.transpose(1, 2) @ do_block
        dk[keys] = ds.transpose(1, 2) @ q_block
        dq.view(-1, C, K)[chunks] = ds @ _take(flat.k, keys)
    for tile in flat.tile_blocks(chosen):
        q_tile, do_tile = _take(flat.q, tile.rows), _take(do_flat, tile.rows)
        s = (q_tile @ flat.kt(tile.chunk)).mul_(scale)
        row_lse = _take(lse, tile.rows).masked_fill_(~tile.valid, torch.inf)
        p, ds, row_part = _backward_scores(
            s, row_lse, do_tile, _take(flat.v, tile.chunk), _take(delta, tile.rows)
        )
        dv.index_add_(0, tile.chunk, p.transpose(1, 2) @ do_tile)
        dk.index_add_(0, tile.chunk, ds.transpose(1, 2) @ q_tile)
        rows = tile.rows[tile.valid]
        dq[rows] += (ds @ _take(flat.k, tile.chunk))[tile.valid]
        if always:
            part[rows] = row_part[tile.valid]
    return Gradients(
        dq.mul_(scale).view(B, H, L, K).transpose(1, 2).to(q.dtype),
        dk.mul_(scale).view(B, H, -1, K).transpose(1, 2).to(k.dtype),
        dv.view(B, H, -1, V).transpose(1, 2).to(v.dtype),
        part.view(B, H, L),
    )


def _softmax(s: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """softmax(s) v and the log-sum-exp of s [n, M, C], which is overwritten."""
    m = s.amax(-1, keepdim=True)
    p = s.sub_(m).exp_()
    total = p.sum(-1, keepdim=True)
    return (p @ v).div_(total), (m + total.log()).squeeze(-1)


def _backward_scores(
    s: Tensor, lse: Tensor, do: Tensor, v: Tensor, delta: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """p, dS and the rows' sums of p dO V^T; s is overwritten."""
    p = s.sub_(lse.unsqueeze(-1)).exp_()
    weighted = (do @ v.transpose(1, 2)).mul_(p)
    part = weighted.sum(-1)
    return p, weighted.sub_(p * delta.unsqueeze(-1)), part


def _causal_bias(C: int, like: Tensor) -> Tensor:
    return torch.full((C, C), -torch.inf, dtype=like.dtype, device=like.device).triu(1)


def _take(x: Tensor, index: Index) -> Tensor:
    """x[index]; `index_select` is several times as fast as indexing by a tensor."""
    if isinstance(index, slice):
        return x[index]
    return x.index_select(0, index.flatten()).view(*index.shape, *x.shape[1:])


def _heads_first(x: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, L, H, D] -> [B H L, D]."""
    return x.transpose(1, 2).to(dtype).reshape(-1, x.shape[3])


class _Flat(NamedTuple):
    """Queries as rows, keys and values as chunks, heads first and in the accumulation dtype.

    Attributes:
        q: [B H L, K]; k: [B H N, C, K]; v: [B H N, C, V].
        n_query_chunks, n_chunks: chunks of one head that hold queries, and all.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    n_query_chunks: int
    n_chunks: int

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor, C: int) -> "_Flat":
        acc = accumulation_dtype(q, k, v)
        keys, values = (_heads_first(x, acc).view(-1, C, x.shape[3]) for x in (k, v))
        return cls(_heads_first(q, acc), keys, values, q.shape[1] // C, k.shape[1] // C)

    def kt(self, chunks: Tensor | slice) -> Tensor:
        return _take(self.k, chunks).transpose(1, 2)

    def local_blocks(self, chosen: Tensor, always: bool) -> Iterator[tuple[Index, Index]]:
        """Blocks of flat query chunks, and the flat key chunks that they are; only chunks whose queries see
        them.
        """
        C = self.k.shape[1]
        rows, n = self.q.shape[0] // C, max(1, BLOCK_SCORES // C**2)
        if always and self.n_query_chunks == self.n_chunks:
            blocks = [slice(begin, begin + n) for begin in range(0, rows, n)]
            yield from zip(blocks, blocks, strict=True)
            return
        index = torch.arange(rows, device=self.q.device)
        if not always:
            index = index[(chosen.reshape(rows, C) < 0).any(-1)]
        head, chunk = index // self.n_query_chunks, index % self.n_query_chunks
        keys = head * self.n_chunks + chunk + (self.n_chunks - self.n_query_chunks)
        yield from zip(index.split(n), keys.split(n), strict=True)

    def tile_blocks(self, chosen: Tensor) -> Iterator[Tiles]:
        """The tiles of the chosen stream, sorted by chunk, some at a time."""
        C = self.k.shape[1]
        M = max(1, min(C // 2, 64))
        tiles = make_tiles(chosen, self.n_chunks, M)
        n = max(1, BLOCK_SCORES // (C * M))
        yield from (Tiles(*block) for block in zip(*(x.split(n) for x in tiles), strict=True))


def make_tiles(chosen: Tensor, n_chunks: int, M: int) -> Tiles:
    """Sort the queries of chosen [B, H, L] by chunk (stable, so deterministic), cut each chunk's list into
    M's.
    """
    flat = chosen.flatten()
    rows = (flat >= 0).nonzero().squeeze(1)
    keys = rows // chosen.shape[2] * n_chunks + flat[rows]
    keys, order = keys.sort(stable=True)
    rows = rows[order]
    counts = torch.bincount(keys, minlength=chosen.shape[0] * chosen.shape[1] * n_chunks)
    begin = counts.cumsum(0) - counts
    n_tiles = (counts + M - 1) // M
    chunk = torch.arange(counts.numel(), device=chosen.device).repeat_interleave(n_tiles)
    nth = torch.arange(chunk.numel(), device=chosen.device) - (n_tiles.cumsum(0) - n_tiles)[chunk]
    slot = (begin[chunk] + nth * M).unsqueeze(1) + torch.arange(M, device=chosen.device)
    valid = slot < (begin + counts)[chunk].unsqueeze(1)
    return Tiles(chunk, rows[slot.clamp(max=max(rows.numel() - 1, 0))] if rows.numel() else slot, valid)
