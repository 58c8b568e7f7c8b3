"""Random streams: each sample's draws depend on (seed, task, index) and a name, never on the length.

So keys and values are the same at every length, two chunks of samples equal one, and a longer list of words,
documents or distractors extends a shorter one.
"""

import random
from collections.abc import Sequence

from seqarch.files import canonical_json, sha256_text


def sample_seed(seed: int, task: str, index: int) -> str:
    """The seed of one sample, 64 hex digits."""
    return sha256_text(canonical_json([seed, task, index]))


def stream(seed: str, name: str, n: int | None = None) -> random.Random:
    """The sample's stream of that name; with `n`, of its own for each number of units."""
    return random.Random(int(sha256_text(canonical_json([seed, name, n])), 16))


class Permutation(Sequence[int]):
    """The first entries of a random permutation of range(n), drawn as they are asked for.

    Sparse Fisher-Yates: entry i is swapped in from a uniform place in i … n-1.
    """

    def __init__(self, rng: random.Random, n: int) -> None:
        self._rng, self._n = rng, n
        self._drawn: list[int] = []
        self._moved: dict[int, int] = {}

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index):  # type: ignore[no-untyped-def]  # int | slice, as any sequence
        end = index.indices(self._n)[1] if isinstance(index, slice) else index % self._n + 1
        while len(self._drawn) < end:
            place = len(self._drawn)
            other = self._rng.randrange(place, self._n)
            self._drawn.append(self._moved.get(other, other))
            self._moved[other] = self._moved.pop(place, place)
        return self._drawn[index]
