"""The sampler: each window once an epoch, weights, and no state."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqarch.tokens import sampler
from seqarch.tokens.sampler import Sampler, SamplerError, Windows
from seqarch.tokens.store import TokenSet

T = 16


@pytest.fixture(scope="module")
def manifests(chain: Any) -> dict[str, Path]:
    return {domain: chain.manifest("train", domain) for domain in ("news", "code")}


def test_windows_are_slices_that_share_one_token(chain: Any) -> None:
    windows = Windows(TokenSet(chain.manifest("train", "news")), T)
    first, second = windows.tokens.files
    n_first = (first.n_tokens - 1) // T
    assert windows.read(0).tolist() == first.ids[: T + 1].tolist()
    assert windows.read(1)[0] == windows.read(0)[-1]
    assert windows.read(n_first - 1).tolist() == first.ids[(n_first - 1) * T : n_first * T + 1].tolist()
    assert windows.read(n_first).tolist() == second.ids[: T + 1].tolist()  # never across shards
    for outside in (-1, windows.n_windows):
        with pytest.raises(IndexError):
            windows.read(outside)


def test_every_target_is_counted_in_a_window_or_left_over(chain: Any) -> None:
    for length in (1, 7, T, 333, 10**6):
        windows = Windows(TokenSet(chain.manifest("train", "code")), length)
        targets = sum(file.n_tokens - 1 for file in windows.tokens.files)
        assert windows.n_windows * length + windows.n_leftover == targets
        assert 0 <= windows.n_leftover < 2 * length or windows.n_windows == 0


def test_an_epoch_is_every_window_once(manifests: dict[str, Path]) -> None:
    """Without weights: one epoch of all, in proportion to the tokens, then the next in another order."""
    data = Sampler(manifests, None, T, seed=3)
    sizes = {name: windows.n_windows for name, windows in data.windows.items()}
    n = sum(sizes.values())
    first, second = [data.locate(g) for g in range(n)], [data.locate(g) for g in range(n, 2 * n)]
    for epoch in (first, second):
        assert Counter(epoch) == {(name, window): 1 for name, size in sizes.items() for window in range(size)}
    assert first != second
    assert data.epochs(n) == {"news": 1.0, "code": 1.0}


def test_weights(manifests: dict[str, Path]) -> None:
    data = Sampler(manifests, {"news": 3.0, "code": 1.0}, T, seed=0)
    counts: Counter[str] = Counter()
    for g in range(500):
        counts[data.locate(g)[0]] += 1
        assert abs(counts["news"] - 0.75 * (g + 1)) <= 1
    assert data.epochs(500)["news"] == counts["news"] / data.windows["news"].n_windows
    assert data.describe()["news"]["share"] == 0.75


def test_a_weight_of_zero_is_not_drawn(manifests: dict[str, Path]) -> None:
    data = Sampler(manifests, {"news": 0.0, "code": 0.2}, T, seed=0)
    assert {data.locate(g)[0] for g in range(50)} == {"code"}
    assert data.describe()["news"]["share"] == 0


def test_weights_of_none_are_no_weights(manifests: dict[str, Path]) -> None:
    given, none = (Sampler(manifests, w, T, 0) for w in ({"news": None, "code": None}, None))
    assert [given.locate(g) for g in range(100)] == [none.locate(g) for g in range(100)]


def test_the_order_is_stateless(manifests: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Backwards, in a fresh object, and with other blocks: the same windows."""
    monkeypatch.setattr(sampler, "BLOCK", 7)
    data = Sampler(manifests, {"news": 2.0, "code": 1.0}, T, seed=5)
    n = 3 * data.windows["news"].n_windows
    forwards = [data.locate(g) for g in range(n)]
    monkeypatch.setattr(sampler, "BLOCK", 4096)
    fresh = Sampler(manifests, {"news": 2.0, "code": 1.0}, T, seed=5)
    assert [fresh.locate(g) for g in reversed(range(n))] == forwards[::-1]
    assert np.array_equal(fresh.read(n - 1), data.windows[forwards[-1][0]].read(forwards[-1][1]))


def test_a_domain_s_order_depends_on_seed_and_epoch_and_not_on_the_others(manifests: dict[str, Path]) -> None:
    def order(data: Sampler, skip: int = 0) -> list[int]:
        n = data.windows["news"].n_windows
        draws = [data.locate(g) for g in range(6 * n)]
        return [window for name, window in draws if name == "news"][skip : skip + n]

    both, other_seed = Sampler(manifests, {"news": 1.0, "code": 1.0}, T, 0), Sampler(manifests, None, T, 1)
    alone = Sampler({"news": manifests["news"]}, None, T, 0)
    assert order(both) == order(alone)
    assert order(alone) != order(other_seed)
    assert order(alone) != order(alone, skip=alone.windows["news"].n_windows)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"news": 1.0}, "name the same"),
        ({"news": 1.0, "code": 1.0, "book": 1.0}, "name the same"),
        ({"news": 1.0, "code": None}, "for every domain or for none"),
        ({"news": -1.0, "code": 2.0}, "at least 0"),
        ({"news": 0.0, "code": 0.0}, "at least 0 and one above"),
        ({"news": float("nan"), "code": 1.0}, "at least 0 and one above"),
        ({"news": float("inf"), "code": 1.0}, "at least 0 and one above"),
    ],
)
def test_bad_weights(manifests: dict[str, Path], weights: dict[str, float | None], message: str) -> None:
    with pytest.raises(SamplerError, match=message):
        Sampler(manifests, weights, T, 0)


def test_too_little_data_is_an_error(manifests: dict[str, Path]) -> None:
    with pytest.raises(SamplerError, match="not one window of 1000001"):
        Sampler(manifests, None, 1_000_000, 0)
    with pytest.raises(SamplerError, match="at least one domain"):
        Sampler({}, None, T, 0)


def test_one_tokenizer_for_all(manifests: dict[str, Path], new_chain: Callable[..., Any], texts: Any) -> None:
    other = new_chain(texts).run({"kind": "bpe", "vocab_size": 290})
    with pytest.raises(SamplerError, match="different tokenizers"):
        Sampler(manifests | {"code": other.manifest("train", "code")}, None, T, 0)
