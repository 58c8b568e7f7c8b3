"""From token files to windows in a fixed random order: a pure function of the seed and the sample's number.

Window i of a shard is its tokens iT … iT + T (T + 1 of them: T inputs and, one further, T targets), so that
neighbours share one token, a target is predicted once an epoch, and no window crosses shards. Sample g is

    domain, k = interleave(g)                 # the k-th draw from that domain
    epoch, i  = divmod(k, windows of the domain)
    window    = permutation(seed, domain, epoch)(i)

An epoch uses each window of its domain once; domains run out, and begin their next epoch, on their own.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seqarch.errors import SeqarchError
from seqarch.tokens.interleave import Interleave, round_weights
from seqarch.tokens.permutation import Permutation
from seqarch.tokens.store import TokenSet

log = logging.getLogger(__name__)

BLOCK = 4096  # entries of a permutation that are computed at a time: alone, one takes as long as all of them


class SamplerError(SeqarchError):
    """The data cannot be sampled as asked."""


class Windows:
    """The windows of T + 1 tokens of one token set, numbered through its shards.

    Attributes:
        n_windows: how many there are.
        n_leftover: targets at the ends of shards that fill no window and are never predicted.
    """

    def __init__(self, tokens: TokenSet, sequence_length: int) -> None:
        if sequence_length < 1:
            raise SamplerError(f"sequence_length {sequence_length}: expected at least 1")
        self.tokens = tokens
        self.length = sequence_length
        counts = [(file.n_tokens - 1) // sequence_length for file in tokens.files]
        self._ends = np.cumsum(counts, dtype=np.int64)  # windows up to and including each shard
        self.n_windows = int(self._ends[-1]) if counts else 0
        self.n_leftover = tokens.n_tokens - len(counts) - self.n_windows * sequence_length

    def read(self, window: int) -> NDArray[np.int64]:
        """int64 [T + 1]."""
        if not 0 <= window < self.n_windows:
            raise IndexError(f"window {window} of {self.n_windows}")
        shard = int(np.searchsorted(self._ends, window, side="right"))
        start = (window - int(self._ends[shard - 1] if shard else 0)) * self.length
        return self.tokens.files[shard].ids[start : start + self.length + 1].astype(np.int64)


class Sampler:
    """Windows of several token sets in the order of one seed.

    Args:
        manifests: domain -> manifest of its token set; one tokenizer for all.
        weights: domain -> share of the samples, any positive scale (0: not drawn); None, or None for every
            domain: in proportion to the domains' windows, that is, to their tokens.
        sequence_length: T, tokens.
        seed: another seed is another order of the same data.

    Raises:
        SamplerError: weights and manifests name different domains, a weight is bad, tokenizers differ, or a
            domain with a weight has not one window.
    """

    def __init__(
        self,
        manifests: Mapping[str, Path],
        weights: Mapping[str, float | None] | None,
        sequence_length: int,
        seed: int,
    ) -> None:
        self.sequence_length, self.seed = sequence_length, seed
        self.windows = open_windows(manifests, sequence_length)
        first = next(iter(self.windows.values())).tokens
        self.vocab_size, self.bos_id = first.vocab_size, first.bos_id
        self.interleave = Interleave(round_weights(self._weights(weights)))
        # domain -> epoch, block, and the windows that the block's entries are
        self._blocks: dict[str, tuple[int, int, NDArray[np.int64]]] = {}

    def _weights(self, given: Mapping[str, float | None] | None) -> dict[str, float]:
        sizes = {name: float(windows.n_windows) for name, windows in self.windows.items()}
        if given is not None and set(given) != set(sizes):
            raise SamplerError(
                f"weights are for {sorted(given)}, token sets for {sorted(sizes)}: name the same"
            )
        numbers = {name: weight for name, weight in (given or {}).items() if weight is not None}
        if numbers and len(numbers) < len(sizes):
            raise SamplerError(f"weights: a number for every domain or for none; given {dict(given or {})}")
        weights = numbers or sizes
        for name, windows in self.windows.items():
            if windows.n_windows == 0 and (weights[name] > 0 or not numbers):
                raise SamplerError(
                    f"domain {name!r} has {windows.tokens.n_tokens} tokens in {len(windows.tokens.files)} "
                    f"shards, not one window of {self.sequence_length + 1}: give it more text, use fewer "
                    "shards or a smaller sequence_length, or leave it out"
                )
        if min(weights.values()) < 0 or not 0 < sum(weights.values()) < float("inf"):
            raise SamplerError(f"weights must be at least 0 and one above: {weights}")
        return weights

    def read(self, sample: int) -> NDArray[np.int64]:
        """Sample `sample` of the run, counted from 0: int64 [T + 1]."""
        name, window = self.locate(sample)
        return self.windows[name].read(window)

    def locate(self, sample: int) -> tuple[str, int]:
        """The domain and the number of the window that sample `sample` is."""
        domain, draw = self.interleave(sample)
        name = self.interleave.names[int(domain)]
        epoch, index = divmod(int(draw), self.windows[name].n_windows)
        return name, self._permuted(name, epoch, index)

    def epochs(self, n_samples: int) -> dict[str, float]:
        """How many times each domain's windows have been used after `n_samples`."""
        return {
            name: n / self.windows[name].n_windows for name, n in self.interleave.drawn(n_samples).items()
        }

    def describe(self) -> dict[str, dict[str, float]]:
        """For the record of a run: per domain its windows, targets left over, share of the samples."""
        shares = dict(
            zip(self.interleave.names, self.interleave.counts / self.interleave.period, strict=True)
        )
        return {
            name: {
                "n_windows": windows.n_windows,
                "n_leftover": windows.n_leftover,
                "share": float(shares.get(name, 0.0)),
            }
            for name, windows in self.windows.items()
        }

    def _permuted(self, name: str, epoch: int, index: int) -> int:
        """Entry `index` of the domain's permutation of this epoch."""
        block, place = divmod(index, BLOCK)
        if name not in self._blocks or self._blocks[name][:2] != (epoch, block):
            n = self.windows[name].n_windows
            permutation = Permutation(n, permutation_key(self.seed, name, epoch))
            entries = permutation(np.arange(block * BLOCK, min(n, (block + 1) * BLOCK)))
            self._blocks[name] = (epoch, block, entries)
        return int(self._blocks[name][2][place])


def permutation_key(seed: int, domain: str, epoch: int) -> str:
    return f"seqarch windows {seed} {epoch} {domain}"


def open_windows(manifests: Mapping[str, Path], sequence_length: int) -> dict[str, Windows]:
    """The windows of each domain, in the order of their names.

    Raises SamplerError if there is no domain, or the token sets were made by different tokenizers.
    """
    if not manifests:
        raise SamplerError("no token set to sample from: name at least one domain")
    windows = {name: Windows(TokenSet(path), sequence_length) for name, path in sorted(manifests.items())}
    tokenizers = {each.tokens.tokenizer_sha256 for each in windows.values()}
    if len(tokenizers) > 1:
        raise SamplerError(f"token sets of different tokenizers: {sorted(tokenizers)}; tokenize them again")
    for name, each in windows.items():
        log.info(
            "%s: %d tokens, %d windows of %d, %d targets left over at the ends of shards",
            *(name, each.tokens.n_tokens, each.n_windows, sequence_length + 1, each.n_leftover),
        )
    return windows
