"""Softmax attention, causal convolution, token shift, rotation, positions: against their definitions."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from seqarch.ops.causal_conv1d import causal_conv1d, token_shift
from seqarch.ops.rope import rope_table, rotate
from seqarch.ops.segments import document_positions
from seqarch.ops.softmax_attention import KeyValueCache, softmax_attention


def by_definition(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    window: int | None,
    slopes: Tensor | None,
    segment_ids: Tensor | None,
    temperature: float,
) -> Tensor:
    """o_i row by row."""
    B, T, H, K = q.shape
    k, v = (x.repeat_interleave(H // x.shape[2], dim=2) for x in (k, v))
    o = torch.empty(B, T, H, v.shape[-1], dtype=q.dtype)
    for b in range(B):
        for h in range(H):
            for i in range(T):
                seen = [
                    j
                    for j in range(i + 1)
                    if (window is None or i - j < window)
                    and (segment_ids is None or segment_ids[b, i] == segment_ids[b, j])
                ]
                scores = k[b, seen, h] @ q[b, i, h] / math.sqrt(K) / temperature
                if slopes is not None:
                    scores = scores - slopes[h] * (i - torch.tensor(seen))
                o[b, i, h] = scores.softmax(0) @ v[b, seen, h]
    return o


@pytest.mark.parametrize("window", [None, 1, 5, 16, 100])
@pytest.mark.parametrize(
    ("alibi", "packed", "kv_heads", "temperature"),
    [(False, False, 2, 1.0), (True, False, 2, 0.5), (False, True, 1, 2.0), (True, True, 2, 1.0)],
)
def test_attention(window: int | None, alibi: bool, packed: bool, kv_heads: int, temperature: float) -> None:
    """In one call, and split at any place with the cache passed on."""
    torch.manual_seed(0)
    B, T, H, K, V = 2, 45, 2, 4, 3
    q, k, v = (torch.randn(B, T, h, d).double() for h, d in ((H, K), (kv_heads, K), (kv_heads, V)))
    slopes = torch.tensor([0.5, 0.1]).double() if alibi else None
    segment_ids = torch.randint(0, 4, (B, T)).sort(dim=1).values if packed else None
    expected = by_definition(q, k, v, window, slopes, segment_ids, temperature)
    options = {"window": window, "alibi_slopes": slopes, "temperature": temperature}
    o, _ = softmax_attention(q, k, v, segment_ids=segment_ids, **options)
    torch.testing.assert_close(o, expected, rtol=0, atol=1e-12)
    for split in (1, 20, 44):
        cache: KeyValueCache | None = None
        parts = []
        for part in (slice(0, split), slice(split, T)):
            ids = None if segment_ids is None else segment_ids[:, part]
            if cache is not None and segment_ids is not None:
                continued = segment_ids[:, split] == segment_ids[:, split - 1]
                if not continued.all():  # a cache belongs to the first document of a call
                    break
            o, cache = softmax_attention(
                q[:, part],
                k[:, part],
                v[:, part],
                segment_ids=ids,
                initial_state=cache,
                return_state=True,
                **options,
            )
            parts.append(o)
        else:
            torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=0, atol=1e-12)
            assert cache is not None
            assert cache.k.shape[1] == (T if window is None else min(T, window - 1))


@pytest.mark.parametrize("window", [None, 3])
def test_attention_gradients(window: int | None) -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(1, 13, 2, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    assert torch.autograd.gradcheck(lambda q, k, v: softmax_attention(q, k, v, window=window)[0], tensors)


def test_attention_is_causal_to_the_bit() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 200, 2, 16) for _ in range(3))
    for window in (None, 16):
        before, _ = softmax_attention(q, k, v, window=window)
        changed = [x.clone() for x in (q, k, v)]
        for x in changed:
            x[:, 101:] *= 0.5
        after, _ = softmax_attention(*changed, window=window)
        assert torch.equal(before[:, :101], after[:, :101])
        assert not torch.equal(before[:, 101:], after[:, 101:])


@pytest.mark.parametrize("T", [1, 2, 3, 4, 17])
@pytest.mark.parametrize("packed", [False, True])
def test_convolution(T: int, packed: bool) -> None:
    """Against conv1d of each document, shorter than the taps too; gradients; state."""
    torch.manual_seed(0)
    B, D, W = 2, 3, 4
    x = torch.randn(B, T, D, dtype=torch.float64, requires_grad=True)
    weight, bias = (torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in ((W, D), (D,)))
    before = torch.randn(B, W - 1, D, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(0, 3, (B, T)).sort(dim=1).values if packed else None
    y, state = causal_conv1d(x, weight, bias, initial_state=before, segment_ids=ids)

    def whole(row: Tensor, past: Tensor) -> Tensor:  # [T, D]
        padded = torch.cat([past, row]).T[None]
        return F.conv1d(padded, weight.flip(0).T[:, None], bias, groups=D)[0].T

    for b in range(B):
        lengths = [T] if ids is None else torch.unique_consecutive(ids[b], return_counts=True)[1].tolist()
        outputs, past = [], before[b]
        for row in x[b].split(lengths):
            outputs.append(whole(row, past))
            last, past = torch.cat([past, row])[-(W - 1) :], torch.zeros_like(past)
        torch.testing.assert_close(y[b], torch.cat(outputs), rtol=0, atol=1e-12)
        torch.testing.assert_close(state[b], last, rtol=0, atol=0)
    assert torch.autograd.gradcheck(
        lambda *inputs: causal_conv1d(
            inputs[0], inputs[1], inputs[2], initial_state=inputs[3], segment_ids=ids
        ),
        (x, weight, bias, before),
    )


def test_token_shift() -> None:
    x = torch.arange(1.0, 7.0).reshape(1, 6, 1)
    ids = torch.tensor([[0, 0, 1, 1, 1, 2]])
    previous, state = token_shift(x, initial_state=torch.full((1, 1, 1), 9.0), segment_ids=ids)
    assert previous.flatten().tolist() == [9, 1, 0, 3, 4, 0]
    assert state.flatten().tolist() == [6]


def test_rotation_depends_on_distance_alone() -> None:
    """Against complex numbers; scores are unchanged when both positions move; the rest of a head stays."""
    torch.manual_seed(0)
    x = torch.randn(1, 9, 2, 8, dtype=torch.float64)
    positions = torch.arange(9)
    turned = rotate(x, rope_table(positions, 8, 10000.0, torch.float64))
    frequency = 10000.0 ** (-torch.arange(4).double() / 4)
    unit = torch.polar(torch.ones(9, 4).double(), positions[:, None] * frequency)[None, :, None]
    expected = torch.complex(x[..., :4], x[..., 4:]) * unit
    torch.testing.assert_close(turned, torch.cat([expected.real, expected.imag], -1))
    moved = rotate(x, rope_table(positions + 100, 8, 10000.0, torch.float64))
    scores = [torch.einsum("bihd,bjhd->bhij", y, y) for y in (turned, moved)]
    torch.testing.assert_close(*scores)
    part = rotate(x, rope_table(positions, 4, 10000.0, torch.float64))
    assert torch.equal(part[..., 4:], x[..., 4:])


def test_positions_restart_at_documents() -> None:
    ids = torch.tensor([[3, 3, 5, 5, 5, 6], [0, 0, 0, 0, 0, 0]])
    assert document_positions(ids).tolist() == [[0, 1, 0, 1, 2, 0], [0, 1, 2, 3, 4, 5]]
    offset = torch.tensor([10, 20])
    assert document_positions(ids, offset).tolist() == [[10, 11, 0, 1, 2, 0], [20, 21, 22, 23, 24, 25]]
