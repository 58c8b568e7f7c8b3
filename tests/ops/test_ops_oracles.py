"""Our ops against code that others wrote: fla's naive functions, forward and gradients."""

import pytest
import torch
from torch import Tensor

from seqarch.ops.linear_attention.op import linear_attention
from seqarch.ops.softmax_attention import softmax_attention

pytest.importorskip("fla", reason="fla-core is an extra")
B, T, H, K, V = 2, 70, 3, 16, 8


def leaves(*shapes: tuple[int, ...]) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def assert_same(ours: Tensor, theirs: Tensor, inputs: list[Tensor]) -> None:
    weight = torch.randn(ours.shape)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * theirs.abs().max().item())
    got, wanted = (torch.autograd.grad((o * weight).sum(), inputs, retain_graph=True) for o in (ours, theirs))
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5 * b.abs().max().item())


def test_scalar_decay() -> None:
    from fla.ops.simple_gla.naive import naive_recurrent_simple_gla

    q, k, v, x = leaves((B, T, H, K), (B, T, H, K), (B, T, H, V), (B, T, H))
    g = torch.nn.functional.logsigmoid(x)
    ours, S = linear_attention(q, k, v, g, return_state=True)
    theirs, their_S = naive_recurrent_simple_gla(q, k, v, g, output_final_state=True)
    assert_same(ours, theirs, [q, k, v, x])
    torch.testing.assert_close(S, their_S, rtol=1e-5, atol=1e-5)


def test_vector_decay() -> None:
    from fla.ops.gla.naive import naive_recurrent_gla

    q, k, v, x = leaves((B, T, H, K), (B, T, H, K), (B, T, H, V), (B, T, H, K))
    g = torch.nn.functional.logsigmoid(x)
    ours, S = linear_attention(q, k, v, g, return_state=True)
    theirs, their_S = naive_recurrent_gla(q, k, v, g, output_final_state=True)
    assert_same(ours, theirs, [q, k, v, x])
    torch.testing.assert_close(S, their_S, rtol=1e-5, atol=1e-5)


def test_retention() -> None:
    from fla.ops.retention.naive import naive_retention

    q, k, v = leaves((B, T, H, K), (B, T, H, K), (B, T, H, V))
    g = torch.log1p(-(2.0 ** (-5.0 - torch.arange(H))))
    theirs = naive_retention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)
    assert_same(linear_attention(q, k, v, g)[0], theirs, [q, k, v])


def test_no_decay() -> None:
    from fla.ops.linear_attn.naive import naive_recurrent_linear_attn

    q, k, v = leaves((B, T, H, K), (B, T, H, K), (B, T, H, V))
    theirs, _ = naive_recurrent_linear_attn(q, k, v)
    assert_same(linear_attention(q, k, v)[0], theirs, [q, k, v])


def test_bonus_read() -> None:
    from fla.ops.rwkv6.recurrent_naive import naive_recurrent_rwkv6

    q, k, v, x, u = leaves((B, T, H, K), (B, T, H, K), (B, T, H, V), (B, T, H, K), (H, K))
    g = torch.nn.functional.logsigmoid(x)
    theirs, _ = naive_recurrent_rwkv6(*(y.transpose(1, 2) for y in (q, k, v, g)), u, scale=1.0)
    assert_same(linear_attention(q, k, v, g, bonus=u, scale=1.0)[0], theirs.transpose(1, 2), [q, k, v, x, u])


def test_softmax_attention() -> None:
    from fla.ops.attn.naive import naive_parallel_attn

    q, k, v = leaves((B, T, H, K), (B, T, H, K), (B, T, H, V))
    for window in (None, 5):
        theirs, _ = naive_parallel_attn(q, k, v, window_size=window)
        assert_same(softmax_attention(q, k, v, window=window)[0], theirs, [q, k, v])
