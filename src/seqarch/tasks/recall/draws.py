"""Random draws that are equal on every machine and with every version of numpy.

A stream of draws is named by a key. Its words are those of Philox 4x64 (Salmon et al., SC 2011), whose output
numpy keeps stable; what is made of the words is computed here.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from seqarch.files import canonical_json

Ints = NDArray[np.int64]


class Draws:
    """Draws in a fixed order. Another key gives another, independent stream.

    Args:
        key: numbers and texts.
    """

    def __init__(self, *key: int | str) -> None:
        digest = hashlib.sha256(canonical_json(key).encode()).digest()
        self.key = key
        self._words = np.random.Philox(key=int.from_bytes(digest[:16], "little"))

    def named(self, name: str) -> "Draws":
        """A stream of its own below this one: what is drawn from it changes nothing here."""
        return Draws(*self.key, name)

    def uniform(self, *shape: int) -> NDArray[np.float64]:
        """In (0, 1)."""
        return ((self._words.random_raw(shape) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53

    def below(self, n: int, *shape: int) -> Ints:
        """In 0 … n - 1. n is small beside 2^53: the rounding's bias is below 1e-9."""
        return (self.uniform(*shape) * n).astype(np.int64)

    def distinct(self, n: int, k: int, rows: int) -> Ints:
        """k different numbers of 0 … n - 1 in each row [rows, k], all orders alike."""
        return np.argsort(self.uniform(rows, n), axis=1, kind="stable")[:, :k]

    def weighted(self, weights: NDArray[np.float64], k: int, rows: int) -> Ints:
        """k different indices in each row [rows, k], drawn one after the other in proportion to `weights`.

        As the first k of independent exponential times with these rates (Efraimidis and Spirakis, 2006).
        """
        times = -np.log(self.uniform(rows, len(weights))) / weights
        return np.argsort(times, axis=1, kind="stable")[:, :k]
