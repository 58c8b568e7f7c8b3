"""The interleave: weights kept at every prefix, counts in closed form."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqarch.tokens.interleave import MAX_PERIOD, Interleave, round_weights

COUNTS = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 40), min_size=1).filter(
    lambda c: sum(c.values()) > 0
)


@given(counts=COUNTS)
@settings(max_examples=100, deadline=None)
def test_every_prefix_keeps_the_weights_within_one_sample(counts: dict[str, int]) -> None:
    interleave = Interleave(counts)
    n = 3 * interleave.period + 7
    domain, draw = interleave(np.arange(n))
    shares = interleave.counts / interleave.period
    bound = max(1 - 1 / max(1, 2 * len(interleave.names) - 2), 0)
    for d in range(len(interleave.names)):
        count = np.cumsum(domain == d)
        assert np.abs(count - shares[d] * np.arange(1, n + 1)).max() <= bound + 1e-9
        assert np.array_equal(draw[domain == d], np.arange(count[-1]))  # draws are numbered without gaps


@given(counts=COUNTS, n=st.integers(0, 500))
@settings(max_examples=100, deadline=None)
def test_drawn_counts_without_walking(counts: dict[str, int], n: int) -> None:
    interleave = Interleave(counts)
    domain, _ = interleave(np.arange(n))
    walked = {name: int((domain == d).sum()) for d, name in enumerate(interleave.names)}
    assert interleave.drawn(n) == walked


def test_paper_scale_weights_stay_exact_after_a_hundred_million_samples() -> None:
    weights = {
        "cc": 0.522,
        "c4": 0.267,
        "github": 0.052,
        "arxiv": 0.046,
        "book": 0.042,
        "wikipedia": 0.038,
        "se": 0.033,
    }
    interleave = Interleave(round_weights(weights))
    drawn = interleave.drawn(10**8)
    for d, name in enumerate(interleave.names):
        share = interleave.counts[d] / interleave.period
        assert abs(drawn[name] - share * 10**8) < 1
        assert abs(share - weights[name]) <= 1 / MAX_PERIOD


@given(weights=st.dictionaries(st.sampled_from("abcdefghi"), st.floats(1e-9, 1e9), min_size=1))
@settings(max_examples=50, deadline=None)
def test_rounding_keeps_every_domain(weights: dict[str, float]) -> None:
    counts = round_weights(weights)
    total = sum(counts.values())
    assert min(counts.values()) >= 1
    assert total <= MAX_PERIOD + len(weights)
    for name, weight in weights.items():
        assert abs(counts[name] / total - weight / sum(weights.values())) <= (len(weights) + 1) / min(
            total, MAX_PERIOD
        )


def test_whole_numbers_are_kept() -> None:
    assert round_weights({"a": 3.0, "b": 5000.0, "c": 0.0}) == {"a": 3, "b": 5000, "c": 0}


def test_golden_order() -> None:
    """Half, three tenths, a fifth. Ties go to the earlier name."""
    domain, draw = Interleave({"a": 5, "b": 3, "c": 2})(np.arange(10))
    assert "".join("abc"[d] for d in domain) == GOLDEN
    assert draw.tolist()[-3:] == [
        GOLDEN[:-3].count(GOLDEN[7]),
        GOLDEN[:-2].count(GOLDEN[8]),
        GOLDEN[:-1].count(GOLDEN[9]),
    ]


GOLDEN = "abacabacba"


@pytest.mark.parametrize("sample", [0, 123, 10**12])
def test_one_sample_is_as_many(sample: int) -> None:
    interleave = Interleave({"a": 5, "b": 3, "c": 2})
    many = interleave(np.array([sample, sample + 1]))
    assert [int(part) for part in interleave(sample)] == [int(part[0]) for part in many]
