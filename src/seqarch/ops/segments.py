"""Document boundaries: nothing may pass between tokens of different `segment_ids` (int [B, T],
non-decreasing).

Resets are masks, never huge negative log decays: those cost the cumulative sums their low digits.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


def starts(segment_ids: Tensor) -> Tensor:
    """bool [B, T]: True at the first token of each document but the first, which may continue a given
    state.
    """
    changed = segment_ids[:, 1:] != segment_ids[:, :-1]
    return F.pad(changed, (1, 0), value=False)


def in_last_document(segment_ids: Tensor) -> Tensor:
    """bool [B, T]: True for the tokens of each row's last document, to which the returned state belongs."""
    return segment_ids == segment_ids[:, -1:]


def document_positions(segment_ids: Tensor, offset: Tensor | None = None) -> Tensor:
    """int [B, T]: places within the document; the first document counts on from `offset` [B]."""
    place = torch.arange(segment_ids.shape[1], device=segment_ids.device).expand_as(segment_ids)
    first = torch.where(starts(segment_ids), place, 0).cummax(dim=1).values
    positions = place - first
    return positions if offset is None else positions + torch.where(first == 0, offset[:, None], 0)


def token_positions(x: Tensor, segment_ids: Tensor | None, offset: Tensor | None = None) -> Tensor:
    """Places in the document of the tokens of x [B, T, ...]: int [T], or [B, T] where rows differ.

    Counted on from `offset` [B] (what a state has seen), restarting at each document.
    """
    if segment_ids is not None:
        return document_positions(segment_ids, offset)
    place = torch.arange(x.shape[1], device=x.device)
    return place if offset is None else offset[:, None] + place


class ChunkMasks(NamedTuple):
    """bool masks of one chunk length; s_1..s_C are a chunk's ids, `prev` the last id before it.

    Attributes:
        same: [B, 1, N, C, C], s_i == s_j: multiplies every matrix inside a chunk.
        read: [B, 1, N, C], s_i == prev: multiplies every read of the carried state.
        write: [B, 1, N, C], s_j == s_C: multiplies every write into the outgoing state.
        keep: [B, 1, N], s_C == prev: multiplies the decay of the carried state.
    """

    same: Tensor
    read: Tensor
    write: Tensor
    keep: Tensor


def chunk_masks(segment_ids: Tensor, chunk_size: int) -> ChunkMasks:
    """The four masks; padding at the end belongs to the last document, an initial state to the first."""
    missing = -segment_ids.shape[1] % chunk_size
    padded = torch.cat([segment_ids, segment_ids[:, -1:].expand(-1, missing)], dim=1)
    ids = padded.unflatten(1, (-1, chunk_size)).unsqueeze(1)  # [B, 1, N, C]
    end = ids[..., -1]
    prev = torch.cat([ids[:, :, :1, 0], end[:, :, :-1]], dim=2)
    return ChunkMasks(
        same=ids.unsqueeze(-1) == ids.unsqueeze(-2),
        read=ids == prev.unsqueeze(-1),
        write=ids == end.unsqueeze(-1),
        keep=end == prev,
    )
