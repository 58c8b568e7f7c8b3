"""Next-token prediction on windows of packed documents.

With `document_mask` a sequence holds several documents that do not see each other: `segment_ids` count the
BOS up to and including each token, `positions` restart at each. The targets are the same with and without it.
In particular the token after a document's last one is BOS in both, and predicting it means "the document ends
here", which needs only the document itself; so both losses are means over the same tokens.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from seqarch.tasks.batch import Batch
from seqarch.tokens.permutation import Permutation
from seqarch.tokens.sampler import Sampler, SamplerError, open_windows, permutation_key


class LanguageModelling:
    """Training batches, a pure function of (seed, step, rank, world size).

    Args:
        manifests: domain -> manifest of its training tokens.
        weights: domain -> share of the sequences; None, alone or for every domain: by tokens.
        sequence_length: T.
        batch_sequences: B, sequences of one global batch, whatever the world size.
        seed: of the data order.
        document_mask: whether documents of a sequence are kept apart.

    Raises:
        SamplerError, TokenStoreError: see `seqarch.tokens.sampler` and `store`.
    """

    def __init__(
        self,
        manifests: Mapping[str, Path],
        weights: Mapping[str, float | None] | None,
        sequence_length: int,
        batch_sequences: int,
        seed: int,
        document_mask: bool = False,
    ) -> None:
        if batch_sequences < 1:
            raise SamplerError(f"batch_sequences {batch_sequences}: expected at least 1")
        self.sampler = Sampler(manifests, weights, sequence_length, seed)
        self.batch_sequences = batch_sequences
        self.document_mask = document_mask

    @property
    def vocab_size(self) -> int:
        return self.sampler.vocab_size

    def batch(self, step: int, rank: int = 0, world_size: int = 1) -> Batch:
        """The rows of `rank` in the global batch of `step` (both from 0), [B / world_size, T].

        The batches of all ranks, one below the other, are the same rows in the same order for every world
        size.
        """
        if step < 0 or not 0 <= rank < world_size or self.batch_sequences % world_size:
            raise SamplerError(
                f"step {step}, rank {rank} of {world_size}, {self.batch_sequences} sequences: expected "
                "step ≥ 0, rank < world size, and a batch that the world size divides"
            )
        rows = self.batch_sequences // world_size
        first = step * self.batch_sequences + rank * rows
        windows = np.stack([self.sampler.read(sample) for sample in range(first, first + rows)])
        return make_batch(windows, self.sampler.bos_id if self.document_mask else None)

    def epochs(self, step: int) -> dict[str, float]:
        """How many times each domain's data have been used before `step`."""
        return self.sampler.epochs(step * self.batch_sequences)

    def describe(self) -> dict[str, Any]:
        """Per domain: windows, targets left over at the ends of shards, share of the sequences."""
        return self.sampler.describe()


class Validation:
    """A fixed set of windows with as many from each domain: the mean over its targets is the macro average.

    Windows are spread over each domain's documents by a permutation that depends on no run's seed; all
    architectures, settings and seeds see the same.

    Args:
        manifests: domain -> manifest of its validation tokens.
        n_tokens: targets, at most; fewer where the smallest domain has not its share.
        sequence_length, batch_sequences, document_mask: as in training; the last batch may have fewer rows.

    Raises:
        SamplerError: not one window for each domain.

    Attributes:
        n_tokens: targets in all batches together.
    """

    def __init__(
        self,
        manifests: Mapping[str, Path],
        n_tokens: int,
        sequence_length: int,
        batch_sequences: int,
        document_mask: bool = False,
    ) -> None:
        self._windows = open_windows(manifests, sequence_length)
        smallest = min(self._windows, key=lambda name: self._windows[name].n_windows)
        wanted = n_tokens // (len(self._windows) * sequence_length)
        self._rows = min(wanted, self._windows[smallest].n_windows)
        if self._rows < 1:
            available = self._windows[smallest].n_windows
            raise SamplerError(
                f"{n_tokens} validation tokens of {len(self._windows)} domains in windows of "
                f"{sequence_length + 1}: not one window each; the smallest, {smallest!r}, has {available}. "
                "Raise the number of tokens, or the share of text that is split off for validation"
            )
        self.batch_sequences, self.document_mask = batch_sequences, document_mask
        self.n_tokens = self._rows * len(self._windows) * sequence_length
        self._bos_id = next(iter(self._windows.values())).tokens.bos_id

    def __iter__(self) -> Iterator[Batch]:
        order = {
            name: Permutation(each.n_windows, permutation_key(0, name, 0))(np.arange(self._rows))
            for name, each in self._windows.items()
        }
        places = [(name, int(order[name][row])) for row in range(self._rows) for name in order]
        for start in range(0, len(places), self.batch_sequences):
            chosen = places[start : start + self.batch_sequences]
            windows = np.stack([self._windows[name].read(window) for name, window in chosen])
            yield make_batch(windows, self._bos_id if self.document_mask else None)


def make_batch(windows: NDArray[np.int64], mask_bos: int | None = None) -> Batch:
    """Windows [B, T + 1] as inputs and targets; with `mask_bos`, segments and positions by that BOS."""
    inputs, targets = windows[:, :-1], windows[:, 1:]
    segments = positions = None
    if mask_bos is not None:
        starts = inputs == mask_bos
        place = np.arange(inputs.shape[1])
        segments = torch.from_numpy(np.cumsum(starts, axis=1, dtype=np.int64))
        positions = torch.from_numpy(place - np.maximum.accumulate(np.where(starts, place, 0), axis=1))
    return Batch(
        torch.from_numpy(np.ascontiguousarray(inputs)),
        torch.from_numpy(np.ascontiguousarray(targets)),
        segments,
        positions,
    )
