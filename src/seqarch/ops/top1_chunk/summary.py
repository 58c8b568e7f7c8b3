"""One vector for a chunk of keys, over the whole chunk or its beginning.

    mean:     (1/n) sum_j k_j                max: elementwise maximum
    learned:  sum_j w_j k_j / sum_j w_j      with w = softmax over the places of a chunk of a table [H, C]

over the first n keys of the chunk; n = C for a complete one.
"""

import torch
from torch import Tensor


def place_weights(kind: str, table: Tensor | None, C: int, like: Tensor) -> Tensor:
    """Weights of the places in a chunk, [C, H or 1, 1]."""
    if kind != "learned" or table is None:
        return like.new_ones(C, 1, 1)
    return table.to(like.dtype).softmax(-1).t().unsqueeze(-1)


def whole(k: Tensor, C: int, kind: str, table: Tensor | None) -> Tensor:
    """k [B, N C, H, K] -> summaries [B, N, H, K] of complete chunks (of an incomplete one: without
    meaning).
    """
    chunks = k.unflatten(1, (-1, C))
    if kind == "max":
        return chunks.amax(2)
    if kind == "mean":
        return chunks.mean(2)
    return (chunks * place_weights(kind, table, C, k)).sum(2)


def prefix(k: Tensor, C: int, kind: str, table: Tensor | None) -> Tensor:
    """k [B, N C, H, K] -> [B, N C, H, K]: at each place the summary of its chunk's keys up to there."""
    chunks = k.unflatten(1, (-1, C))
    if kind == "max":
        return chunks.cummax(2).values.flatten(1, 2)
    weights = place_weights(kind, table, C, k)
    return ((chunks * weights).cumsum(2) / weights.cumsum(0)).flatten(1, 2)


def extend(summary: Tensor, k: Tensor, inside: Tensor, kind: str, table: Tensor | None, C: int) -> Tensor:
    """The summary [B, H, K] of a chunk's first `inside` [B] keys, with one key k [B, H, K] more."""
    inside = inside[:, None, None]
    if kind == "max":
        return torch.where(inside == 0, k, torch.maximum(summary, k))
    weights = place_weights(kind, table, C, k)  # [C, H, 1]
    share = weights / weights.cumsum(0)  # of the newest key, 1 at place 0
    share = share[inside[:, 0, 0]]  # [B, H, 1]
    return torch.where(inside == 0, k, summary + share * (k - summary))
