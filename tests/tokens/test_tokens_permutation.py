"""The keyed permutation: a bijection, well mixed, and the same for ever."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqarch.tokens.permutation import Permutation

# Data order is part of a result: no library's release and no edit may change it.
GOLDEN_10 = [7, 2, 9, 5, 8, 6, 3, 1, 4, 0]
GOLDEN_MILLION = [437046, 530897, 93710, 846473]
GOLDEN_WIDE = [3972588217369990194, 3826419024677047557]


def by_hand(n: int, key: str, index: int) -> int:
    """The permutation as its module documents it, in Python's own integers."""
    half = max(3, ((n - 1).bit_length() + 1) // 2)
    digest = hashlib.sha512(key.encode()).digest()
    keys = [int.from_bytes(digest[8 * r : 8 * r + 8], "little") for r in range(8)]
    while True:
        left, right = index >> half, index % (1 << half)
        for word in keys:
            x = (right + word) % 2**64
            x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
            x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
            x ^= x >> 31
            left, right = right, left ^ (x % (1 << half))
        index = (left << half) | right
        if index < n:
            return index


@given(n=st.integers(1, 5000), key=st.text(max_size=8))
@settings(max_examples=60, deadline=None)
def test_it_is_a_bijection(n: int, key: str) -> None:
    assert np.array_equal(np.sort(Permutation(n, key)(np.arange(n))), np.arange(n))


@given(n=st.integers(1, 2**62), data=st.data())
@settings(max_examples=60, deadline=None)
def test_entries_do_not_depend_on_what_is_asked_with_them(n: int, data: st.DataObject) -> None:
    index = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=5))
    permutation = Permutation(n, "key")
    together = permutation(index)
    assert [int(permutation(i)) for i in index] == together.tolist()
    assert ((together >= 0) & (together < n)).all()


@given(n=st.integers(1, 2**62), key=st.text(max_size=5), data=st.data())
@settings(max_examples=60, deadline=None)
def test_it_is_what_its_documentation_says(n: int, key: str, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, n - 1))
    assert int(Permutation(n, key)(index)) == by_hand(n, key, index)


def test_golden_values() -> None:
    assert Permutation(10, "a")(np.arange(10)).tolist() == GOLDEN_10
    assert Permutation(10**6, "seqarch windows 0 0 news")([0, 1, 2, 999_999]).tolist() == GOLDEN_MILLION
    assert Permutation(2**62, "wide")([0, 2**62 - 1]).tolist() == GOLDEN_WIDE


@pytest.mark.parametrize("n", [8, 40, 1000])
def test_all_places_are_equally_likely(n: int) -> None:
    """Over 800 keys, where the first and the last index go is uniform (chi-squared over 8 bins, far tail)."""
    orders = np.array([Permutation(n, f"{key}")([0, n - 1]) for key in range(800)])
    for places in orders.T:
        counts = np.bincount(places * 8 // n, minlength=8)
        assert ((counts - 100.0) ** 2 / 100).sum() < 7 + 5 * 14**0.5


def test_neighbours_do_not_stay_neighbours() -> None:
    """The serial correlation of 10,000 entries is that of noise (SD 0.01)."""
    values = Permutation(10_000, "x")(np.arange(10_000)).astype(float)
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.05
    assert abs(np.corrcoef(values, np.arange(10_000))[0, 1]) < 0.05


def test_keys_give_different_orders() -> None:
    orders = {
        tuple(Permutation(50, key)(np.arange(50)).tolist()) for key in ("0 0 a", "1 0 a", "0 1 a", "0 0 b")
    }
    assert len(orders) == 4


@pytest.mark.parametrize("index", [-1, 5])
def test_outside_is_an_error(index: int) -> None:
    with pytest.raises(IndexError, match="outside 0 … 4"):
        Permutation(5, "x")(index)
