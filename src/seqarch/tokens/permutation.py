"""A keyed permutation of 0 … n − 1 that is computed, not stored: any entry in O(1), in any order.

A balanced Feistel network (Luby and Rackoff, SIAM J. Comput. 17(2), 1988) permutes the numbers of 2h bits:

    (L, R) -> (R, L xor F(R, key_r))       for r = 1 … ROUNDS

and cycle walking (Black and Rogaway, CT-RSA 2002) restricts it to [0, n): apply it again until the value
falls below n. Since 2^2h ≤ 4n above the smallest width, that takes at most 4 applications on average.

F is the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) of R + key, cut to h bits; the round
keys are the words of SHA-512(key text). Nothing but 64-bit integer arithmetic: the values depend on no
library's generator.
"""

import hashlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

ROUNDS = 8  # = the 64-bit words of a SHA-512
MIN_HALF_BITS = 3  # narrower halves reach few of the permutations of a small set

_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)
_MULTIPLY_1, _MULTIPLY_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class Permutation:
    """`Permutation(n, key)(i)`: where index i goes, for integers or arrays of them.

    Args:
        n: the size of the permuted set, at most 2**62.
        key: a text; another key is another permutation.
    """

    def __init__(self, n: int, key: str) -> None:
        if not 0 < n <= 2**62:
            raise ValueError(f"cannot permute {n} things: expected 1 to 2**62")
        self.n = n
        self._bits = max(MIN_HALF_BITS, ((n - 1).bit_length() + 1) // 2)
        self._keys = np.frombuffer(hashlib.sha512(key.encode()).digest(), dtype="<u8").astype(np.uint64)

    def __call__(self, index: ArrayLike) -> NDArray[np.int64]:
        """int64 array of the index's shape. Raises IndexError outside 0 … n − 1."""
        given = np.asarray(index, dtype=np.int64)
        if given.size and (given.min() < 0 or given.max() >= self.n):
            raise IndexError(f"index outside 0 … {self.n - 1}: {given.min()} to {given.max()}")
        value = self._network(given.reshape(-1).astype(np.uint64))
        outside = np.flatnonzero(value >= self.n)
        while len(outside):
            value[outside] = self._network(value[outside])
            outside = outside[value[outside] >= self.n]
        return value.astype(np.int64).reshape(given.shape)

    def _network(self, value: NDArray[np.uint64]) -> NDArray[np.uint64]:
        bits, mask = np.uint64(self._bits), np.uint64((1 << self._bits) - 1)
        left, right = value >> bits, value & mask
        for key in self._keys:
            left, right = right, left ^ (_mix(right + key) & mask)
        return (left << bits) | right


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser; products wrap modulo 2^64."""
    x = (x ^ (x >> _SHIFT_1)) * _MULTIPLY_1
    x = (x ^ (x >> _SHIFT_2)) * _MULTIPLY_2
    return x ^ (x >> _SHIFT_3)
