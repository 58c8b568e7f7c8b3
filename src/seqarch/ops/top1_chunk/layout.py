"""The chunk grid: where each token lies when every document begins a chunk of its own.

A row's documents are laid one after the other, each padded to whole chunks: [B, T, ...] -> [B, N C, ...]. On
that grid chunk membership is place // C, a document is a range of chunks, and every chunk before a query's
own is complete. A state is the grid of its document, so that new tokens go on where it ends.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from seqarch.ops.segments import starts


class Grid(NamedTuple):
    """Where the T tokens of a call lie.

    Attributes:
        chunk_size: C.
        n_chunks: N, with those of the state.
        n_past: chunks before the first new token's, which hold no query (0 where rows differ).
        offset: place of the first new token, where all rows agree.
        place: int64 [B, T], or None: offset + t in every row.
        first_chunk: int32 [B, N]: the first chunk of each chunk's document.
    """

    chunk_size: int
    n_chunks: int
    n_past: int
    offset: int
    place: Tensor | None
    first_chunk: Tensor

    @property
    def length(self) -> int:
        return self.n_chunks * self.chunk_size

    def places(self, x: Tensor) -> Tensor:
        """int64 [B, T]: the places of the tokens of x [B, T, ...]."""
        if self.place is not None:
            return self.place
        return torch.arange(self.offset, self.offset + x.shape[1], device=x.device).expand(x.shape[:2])

    def spread(self, x: Tensor, past: Tensor | None = None) -> Tensor:
        """x [B, T, ...], past [B, P, ...] -> [B, N C, ...], zeros elsewhere. A view of x where nothing
        moves.
        """
        if self.place is None:
            parts = x if past is None else torch.cat([past, x], dim=1)
            before = 0 if past is not None else self.offset
            after = self.length - before - parts.shape[1]
            return F.pad(parts, (0, 0) * (x.dim() - 2) + (before, after)) if before or after else parts
        base = x.new_zeros(x.shape[0], self.length, *x.shape[2:])
        if past is not None:
            base = torch.cat([past, base[:, past.shape[1] :]], dim=1)
        row = torch.arange(x.shape[0], device=x.device)[:, None] * self.length
        flat = base.flatten(0, 1).index_copy(0, (row + self.place).flatten(), x.flatten(0, 1))
        return flat.unflatten(0, (x.shape[0], self.length))

    def queries(self, x: Tensor) -> Tensor:
        """x [B, T, ...] -> [B, (N - n_past) C, ...]: only chunks that hold new tokens."""
        if self.place is not None:
            return self.spread(x)
        before = self.offset - self.n_past * self.chunk_size
        after = self.length - self.offset - x.shape[1]
        return F.pad(x, (0, 0) * (x.dim() - 2) + (before, after)) if before or after else x

    def collect(self, y: Tensor, T: int) -> Tensor:
        """The inverse of `queries`: y [B, (N - n_past) C, ...] -> [B, T, ...]."""
        if self.place is None:
            return y.narrow(1, self.offset - self.n_past * self.chunk_size, T)
        row = torch.arange(y.shape[0], device=y.device)[:, None] * y.shape[1]
        return y.flatten(0, 1).index_select(0, (row + self.place).flatten()).unflatten(0, (y.shape[0], T))


def make_grid(
    B: int,
    T: int,
    chunk_size: int,
    device: torch.device,
    segment_ids: Tensor | None,
    state: dict[str, Tensor] | None,
) -> Grid:
    """The grid of a call. A state holds `k` [B, P, ...] and, where rows differ, their `length` int64 [B]."""
    P = 0 if state is None else state["k"].shape[1]
    ragged = state is not None and "length" in state
    if segment_ids is None and not ragged:
        n_chunks = -(-(P + T) // chunk_size)
        first = torch.zeros(B, n_chunks, dtype=torch.int32, device=device)
        return Grid(chunk_size, n_chunks, P // chunk_size, P, None, first)
    ids = torch.zeros(B, T, dtype=torch.int64, device=device) if segment_ids is None else segment_ids
    past = torch.full((B,), P, device=device) if state is None or not ragged else state["length"]
    place, first_of_token = _document_places(ids, past, chunk_size)
    n_chunks = max(int(place.max()) // chunk_size + 1, -(-P // chunk_size))
    first = torch.zeros(B, n_chunks, dtype=torch.int64, device=device)
    first = first.scatter_reduce(1, place // chunk_size, first_of_token, "amax")
    return Grid(chunk_size, n_chunks, 0, 0, place, first.to(torch.int32))


def _document_places(ids: Tensor, past: Tensor, C: int) -> tuple[Tensor, Tensor]:
    """Places of tokens on the grid and the first chunk of each token's document, both int64 [B, T].

    A document that starts at token t lies one shift further than its predecessor: the shift that rounds the
    end of what came before up to a whole chunk. Shifts depend on each other, so they are summed document by
    document, for all rows at once.
    """
    start = starts(ids)
    B, T = ids.shape
    token = torch.arange(T, device=ids.device).expand(B, T)
    document = start.cumsum(1)  # 0 = the first
    lengths = torch.zeros(B, int(document.max()) + 1, dtype=torch.int64, device=ids.device)
    lengths.scatter_add_(1, document, torch.ones_like(token))
    with_past = torch.cat([lengths[:, :1] + past[:, None], lengths[:, 1:]], dim=1)
    chunks = (with_past + C - 1) // C
    first_chunk = chunks.cumsum(1) - chunks
    begin = lengths.cumsum(1) - lengths  # token at which a document starts in this call
    inside = token - begin.gather(1, document) + torch.where(document == 0, past[:, None], 0)
    first_of_token = first_chunk.gather(1, document)
    return first_of_token * C + inside, first_of_token
