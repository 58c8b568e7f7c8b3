"""What a user without a GPU would otherwise run: fla's naive functions, the PyTorch paths of transformers.

Each takes what our op takes, [B, T, H, D], and imports its package when it is called.
"""

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from timing import first
from torch import Tensor


def _head_first(function: Any, *xs: Tensor, **options: Any) -> Tensor:
    return first(function(*(x.transpose(1, 2) for x in xs), **options)).transpose(1, 2)


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _head_first(F.scaled_dot_product_attention, q, k, v, is_causal=True)


def sdpa_window(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    place = torch.arange(q.shape[1])
    distance = place[:, None] - place
    mask = (distance >= 0) & (distance < window)
    return _head_first(F.scaled_dot_product_attention, q, k, v, attn_mask=mask)


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from fla.ops.linear_attn.naive import naive_chunk_linear_attn

    return first(naive_chunk_linear_attn(q, k, v, normalize=False))


def retention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from fla.ops.retention.naive import naive_retention

    return _head_first(naive_retention, q, k, v)


def simple_gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    from fla.ops.simple_gla.naive import naive_chunk_simple_gla

    return first(naive_chunk_simple_gla(q, k, v, g, chunk_size=64))


def mamba2_scan(q: Tensor, k: Tensor, x: Tensor, dt: Tensor, A: Tensor) -> Tensor:
    """q, k [B, T, 1, S], x [B, T, H, P], dt [B, T, H], A [H]."""
    from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan

    return first(inspect.unwrap(mamba2_chunk_scan)(x, dt, A, k, q, chunk_size=256))


def gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    from fla.ops.gla.naive import naive_recurrent_gla

    return first(naive_recurrent_gla(q, k, v, g))


def rwkv6(q: Tensor, k: Tensor, v: Tensor, g: Tensor, u: Tensor) -> Tensor:
    from fla.ops.rwkv6.recurrent_naive import naive_recurrent_rwkv6

    r, k, v, g = (x.transpose(1, 2) for x in (q, k, v, g))
    return first(naive_recurrent_rwkv6(r, k, v, g, u, scale=1.0)).transpose(1, 2)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    from fla.ops.delta_rule.naive import delta_rule_chunkwise

    return _head_first(delta_rule_chunkwise, q, k, v, beta)


def gated_delta_transformers(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor) -> Tensor:
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    # the name dispatches to fla's GPU kernel
    return first(inspect.unwrap(torch_chunk_gated_delta_rule)(q, k, v, g=g, beta=beta))


def gated_delta_fla(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor) -> Tensor:
    from fla.ops.gated_delta_rule.naive import naive_chunk_gated_delta_rule

    return first(naive_chunk_gated_delta_rule(q, k, v, g, beta))


def dplr(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, g: Tensor) -> Tensor:
    from fla.ops.generalized_delta_rule.dplr.naive import dplr_chunkwise

    return _head_first(dplr_chunkwise, q, k, v, a, b, g)


def hgrn(log_a: Tensor, x: Tensor) -> Tensor:
    from fla.ops.hgrn.naive import naive_recurrent_hgrn

    return first(naive_recurrent_hgrn(x, log_a))


def selective_scan(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    from transformers.models.mamba.modeling_mamba import mamba_selective_scan

    return first(inspect.unwrap(mamba_selective_scan)(u.mT, delta.mT, A, B.mT, C.mT)).mT


def conv1d(x: Tensor, weight: Tensor) -> Tensor:
    """torch's grouped convolution; x [B, T, D], weight [W, D] as in `causal_conv1d`."""
    W, D = weight.shape
    padded = F.pad(x.mT, (W - 1, 0))
    return F.conv1d(padded, weight.flip(0).t().unsqueeze(1), groups=D).mT
