"""The state of Top-1 chunk selection: keys, values and summaries of the running document, from chunk 0 on.

k, v      [B, P, H, .]: keys and values so far
length    int64 [B], only where rows differ (after packed documents): how many of the P are there
summary   [B, ceil(P / C), H, K], for router = approx: of each chunk; the last one, so far
k_router  [B, P, H, K], only where the router has keys of its own
q_sum     [B, H, K], only for granularity = query_block: sum of the open chunk's queries
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from seqarch.ops.top1_chunk import summary
from seqarch.ops.top1_chunk.layout import Grid
from seqarch.ops.top1_chunk.options import Call, Options

State = dict[str, Tensor]


def lengths(state: State) -> Tensor:
    """int64 [B]: tokens of each row so far."""
    k = state["k"]
    return state["length"] if "length" in state else torch.full((k.shape[0],), k.shape[1], device=k.device)


def append(call: Call, options: Options) -> State:
    """The state with the one token of this call."""
    assert call.state is not None
    old, C = call.state, options.chunk_size
    past = lengths(old)
    new = {"k": _append(old["k"], call.k, old), "v": _append(old["v"], call.v, old)}
    if "length" in old:
        new["length"] = past + 1
    if call.k_router is not None:
        new["k_router"] = _append(old["k_router"], call.k_router, old)
    if options.router == "approx":
        slots = F.pad(old["summary"], (0, 0, 0, 0, 0, -(-new["k"].shape[1] // C) - old["summary"].shape[1]))
        slot = (past // C)[:, None, None, None].expand(-1, 1, *slots.shape[2:])
        key = call.router_keys[:, 0].to(slots.dtype)
        longer = summary.extend(slots.gather(1, slot)[:, 0], key, past % C, options.summary, call.table, C)
        new["summary"] = slots.scatter(1, slot, longer.unsqueeze(1))
    if options.granularity == "query_block":
        kept = torch.where((past % C == 0)[:, None, None], 0, old["q_sum"])
        new["q_sum"] = kept + call.router_queries[:, 0]
    return new


def _append(buffer: Tensor, x: Tensor, state: State) -> Tensor:
    """buffer [B, P, H, D] with x [B, 1, H, D] at the end of each row's tokens."""
    if "length" not in state:
        return torch.cat([buffer, x], dim=1)
    place = state["length"][:, None, None, None].expand_as(x)
    return F.pad(buffer, (0, 0, 0, 0, 0, 1)).scatter(1, place, x)


def after(
    call: Call,
    grid: Grid,
    keys: Tensor,
    values: Tensor,
    router_keys: Tensor,
    q_router: Tensor,
    options: Options,
) -> State:
    """The state after a parallel call, from what lies on its grid (q_router [B, T, H, K]: the block means, if
    any).
    """
    C, last = grid.chunk_size, grid.places(call.q)[:, -1]
    first = grid.first_chunk.long().gather(1, (last // C)[:, None])[:, 0]  # of the running document
    inside = last % C
    whole = options.router == "approx"
    if grid.place is None:
        P = grid.offset + call.q.shape[1]
        state = {"k": keys[:, :P], "v": values[:, :P]}
    else:
        length = last - first * C + 1
        P = int(length.max())
        state = {
            "k": _take(keys, first * C, length, P),
            "v": _take(values, first * C, length, P),
            "length": length,
        }
    if call.k_router is not None:
        state["k_router"] = _take(router_keys, first * C, lengths(state), P)
    if whole:
        sums = summary.whole(router_keys, C, options.summary, call.table)
        sums = _take(sums, first, last // C - first + 1, -(-P // C))
        open_keys = _take(router_keys, last // C * C, inside + 1, C)
        so_far = summary.prefix(open_keys, C, options.summary, call.table)
        newest = so_far.gather(1, inside[:, None, None, None].expand(-1, 1, *so_far.shape[2:]))
        slot = (last // C - first)[:, None, None, None].expand_as(newest)
        state["summary"] = sums.scatter(1, slot, newest)
    if options.granularity == "query_block":
        state["q_sum"] = q_router[:, -1] * (inside + 1)[:, None, None]
    return state


def _take(x: Tensor, begin: Tensor, length: Tensor, n: int) -> Tensor:
    """x [B, L, ...] -> [B, n, ...]: each row's `length` entries from `begin` on, then zeros."""
    place = torch.arange(n, device=x.device)
    index = (begin[:, None] + place).clamp(max=x.shape[1] - 1)
    shape = (*index.shape, *([1] * (x.dim() - 2)))
    taken = x.gather(1, index.view(shape).expand(-1, -1, *x.shape[2:]))
    return torch.where((place < length[:, None]).view(shape), taken, 0)


def block_means(q: Tensor, grid: Grid, past: State) -> Tensor:
    """q [B, T, H, K] -> at each token the mean of its chunk's queries so far (granularity = query_block)."""
    C = grid.chunk_size
    on_grid = grid.queries(q)
    if "q_sum" in past:  # the sum of an open chunk stands in for its first query
        length = lengths(past)
        opened = (length % C != 0)[:, None, None]
        row = ((length // C - grid.n_past) * C).clamp(max=on_grid.shape[1] - 1)
        index = row[:, None, None, None].expand(-1, 1, *q.shape[2:])
        on_grid = on_grid.scatter_add(1, index, torch.where(opened, past["q_sum"], 0).unsqueeze(1))
    count = torch.arange(1, C + 1, device=q.device).view(-1, 1, 1)
    means = on_grid.unflatten(1, (-1, C)).cumsum(2) / count
    return grid.collect(means.flatten(1, 2), q.shape[1])
