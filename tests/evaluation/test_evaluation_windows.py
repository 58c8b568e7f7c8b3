"""Each token is scored once, in windows that begin with the prefix."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqarch.errors import ConfigError
from seqarch.evaluation.score import passages
from seqarch.evaluation.windows import complete, plan, positions, with_ends

MODES = ("disjoint", "sliding")
BOS = 99


def scored(windows):
    return np.concatenate(
        [np.zeros(0, int), *(np.arange(e - s, e) for e, s in zip(windows.end, windows.scored, strict=True))]
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("width", [2, 8])
def test_every_length_scores_each_token_once(mode, width):
    for n in range(3 * width + 1):
        windows = plan([n], width, mode)
        assert sorted(scored(windows)) == list(range(n))
        assert (windows.length <= width).all()
        assert (windows.scored >= 1).all()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 40), max_size=8), st.sampled_from([2, 4, 10]), st.sampled_from(MODES))
def test_windows_stay_inside_their_document(lengths, width, mode):
    windows = plan(lengths, width, mode)
    stops = np.cumsum(lengths)
    assert sorted(scored(windows)) == list(range(sum(lengths)))
    for d, end, length in zip(windows.document, windows.end, windows.length, strict=True):
        assert stops[d] - lengths[d] <= end - length
        assert end <= stops[d]


def test_the_windows_of_the_protocol():
    tokens = np.arange(10)
    disjoint = passages(tokens, plan([10], 4, "disjoint"), BOS, 4)
    assert [p.inputs[0].tolist() for p in disjoint] == [[BOS, 0, 1, 2], [BOS, 4, 5, 6], [BOS, 8]]
    assert [p.targets.tolist() for p in disjoint] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    sliding = passages(np.arange(9), plan([9], 4, "sliding"), BOS, 4)
    assert [p.inputs[0].tolist() for p in sliding] == [
        [BOS, 0, 1, 2],
        [BOS, 2, 3, 4],
        [BOS, 4, 5, 6],
        [BOS, 5, 6, 7],
    ]
    assert [p.targets.tolist() for p in sliding] == [[0, 1, 2, 3], [4, 5], [6, 7], [8]]


@pytest.mark.parametrize("mode", MODES)
def test_every_window_starts_with_the_prefix_and_targets_are_the_tokens(mode):
    lengths = [0, 1, 5, 23, 8]
    tokens = np.random.default_rng(0).integers(0, 50, sum(lengths))
    seen = []
    for batch in passages(tokens, plan(lengths, 8, mode), BOS, 24):
        assert (batch.inputs[:, 0] == BOS).all()
        assert batch.inputs.numel() <= 24
        assert (tokens[batch.index] == batch.targets.numpy()).all()
        # the input before a scored prediction is the token before it, or the prefix at a window's start
        before = batch.inputs.reshape(-1)[batch.scored].numpy()
        at_start = batch.scored.numpy() % batch.inputs.shape[1] == 0
        assert (before[at_start] == BOS).all()
        assert (before[~at_start] == tokens[batch.index[~at_start] - 1]).all()
        seen += batch.index.tolist()
    assert sorted(seen) == list(range(len(tokens)))


def test_sliding_needs_an_even_width():
    with pytest.raises(ConfigError, match="odd"):
        plan([10], 5, "sliding")


def test_positions_count_from_the_reset():
    assert positions(plan([6], 4, "disjoint"), 6).tolist() == [0, 1, 2, 3, 0, 1]
    assert positions(plan([7], 4, "sliding"), 7).tolist() == [0, 1, 2, 3, 2, 3, 3]
    assert complete(plan([6], 4, "disjoint"), 6, 4).tolist() == [True] * 4 + [False] * 2
    assert complete(plan([8], 4, "sliding"), 8, 4).tolist() == [True] * 4 + [False] * 4


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 40), max_size=8), st.sampled_from([2, 4, 10]), st.sampled_from(MODES))
def test_ends_count_once_and_tokens_read_what_they_read(lengths, width, mode):
    plain = plan(lengths, width, mode)
    windows = with_ends(plain, lengths, width)
    place = np.cumsum([0, *(n + 1 for n in lengths)])  # of each document with its end
    counted = [i for n, start in zip(lengths, place, strict=False) if n for i in range(start, start + n + 1)]
    assert sorted(scored(windows)) == counted
    assert (windows.length <= width).all()
    starts = np.cumsum([0, *lengths])[plain.document]
    first = plain.end - plain.length - starts  # where a window begins in its document
    shifted = windows.end[: len(plain)] - windows.length[: len(plain)] - place[plain.document]
    assert (first == shifted).all()
    for d, end, length in zip(windows.document, windows.end, windows.length, strict=True):
        assert place[d] <= end - length
        assert end <= place[d + 1]
