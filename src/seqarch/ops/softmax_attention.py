"""Causal softmax attention: full or windowed, with temperature and ALiBi, over torch's fused attention."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from seqarch.ops import backend as backends
from seqarch.ops.common import shortened
from seqarch.ops.segments import in_last_document


class KeyValueCache(NamedTuple):
    """The keys and values a later query may see, oldest first.

    Attributes:
        k: [B, S, H, K].
        v: [B, S, H, V].
        valid: bool [B, S], False for entries of an earlier document; None: all are valid.
    """

    k: Tensor
    v: Tensor
    valid: Tensor | None = None


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    temperature: float = 1.0,
    window: int | None = None,
    alibi_slopes: Tensor | None = None,
    initial_state: KeyValueCache | None = None,
    return_state: bool = False,
    segment_ids: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, KeyValueCache | None]:
    """o_i = sum_j p_ij v_j, p_i = softmax_j(scale <q_i, k_j> / temperature - m_h (i - j)) over the visible j
    <= i.

    Args:
        q: [B, T, H, K]; k: [B, T, H_kv, K]; v: [B, T, H_kv, V]; H_kv divides H.
        scale: default K^-1/2.
        temperature: divides the scores; below 1 it sharpens.
        window: key j is visible iff 0 <= i - j < window (the query's own key counts).
        alibi_slopes: m_h [H] (arXiv 2108.12409).
        initial_state: earlier keys and values, which the queries also see.
        segment_ids: int [B, T]; the initial state belongs to the first document.

    Returns: o [B, T, H, V], and with `return_state` the keys and values the next query can see.
    """
    backends.choose("softmax_attention", q, backend=backend)
    if q.shape[1] == 0:
        raise ValueError("softmax_attention: expected at least one time step, got T = 0")
    if window is not None and window < 1:
        raise ValueError(f"softmax_attention: expected window >= 1, got {window}")
    scale = (q.shape[-1] ** -0.5 if scale is None else scale) / temperature
    T = q.shape[1]
    full = initial_state is None and segment_ids is None and alibi_slopes is None
    if full and (window is None or window >= T):
        o = _sdpa(q, k, v, scale=scale, causal=True)
    elif window is not None and initial_state is None and alibi_slopes is None and 4 * window < T:
        o = _blocks(q, k, v, scale, window, segment_ids)
    else:
        o = _masked(q, k, v, scale, window, alibi_slopes, initial_state, segment_ids)
    return o, _next_state(k, v, window, initial_state, segment_ids) if return_state else None


def _sdpa(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """torch's attention in our layout [B, T, H, D]."""
    o = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=mask,
        is_causal=causal,
        scale=scale,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return o.transpose(1, 2)


def _masked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    window: int | None,
    alibi_slopes: Tensor | None,
    past: KeyValueCache | None,
    segment_ids: Tensor | None,
) -> Tensor:
    """The general form: an explicit [T, S + T] mask, aligned at the bottom right for S past keys."""
    T, S = q.shape[1], 0
    if past is not None:
        S = past.k.shape[1]
        k, v = torch.cat([past.k.to(k.dtype), k], 1), torch.cat([past.v.to(v.dtype), v], 1)
    distance = torch.arange(S, S + T, device=q.device)[:, None] - torch.arange(
        S + T, device=q.device
    )  # i - j
    visible = distance >= 0
    if window is not None:
        visible = visible & (distance < window)
    visible = visible[None, None]  # [B or 1, 1, T, S + T]
    if segment_ids is not None:
        ids = torch.cat([segment_ids[:, :1].expand(-1, S), segment_ids], dim=1)
        visible = visible & (segment_ids[:, None, :, None] == ids[:, None, None, :])
    if past is not None and past.valid is not None:
        visible = visible & F.pad(past.valid, (0, T), value=True)[:, None, None, :]
    if alibi_slopes is None:
        return _sdpa(q, k, v, scale=scale, mask=visible)
    bias = -alibi_slopes.to(q.dtype)[:, None, None] * distance.to(q.dtype)  # [H, T, S + T]
    return _sdpa(q, k, v, scale=scale, mask=bias[None].masked_fill(~visible, float("-inf")))


def _blocks(q: Tensor, k: Tensor, v: Tensor, scale: float, w: int, segment_ids: Tensor | None) -> Tensor:
    """Window w over T > 4w: queries of block b of length w see keys of blocks b-1 and b; cost 2w per token,
    not T.
    """
    B, T = q.shape[:2]
    missing = -T % w
    pad = (0, 0, 0, 0, 0, missing)
    N = (T + missing) // w

    def with_previous(x: Tensor) -> Tensor:  # [B, T, H, D] -> [B, N, 2w, H, D]
        blocks = F.pad(x, (0, 0, 0, 0, w, missing)).unflatten(1, (N + 1, w))
        return torch.cat([blocks[:, :-1], blocks[:, 1:]], dim=2)

    distance = torch.arange(w, 2 * w, device=q.device)[:, None] - torch.arange(2 * w, device=q.device)
    visible = ((distance >= 0) & (distance < w)).expand(N, w, 2 * w).clone()
    visible[0, :, :w] = False  # before the first token
    visible = visible[None].expand(B, N, w, 2 * w)
    if segment_ids is not None:
        last = segment_ids[:, -1:].expand(-1, missing)
        ids = torch.cat([segment_ids[:, :1].expand(-1, w), segment_ids, last], dim=1).unflatten(1, (N + 1, w))
        key_ids = torch.cat([ids[:, :-1], ids[:, 1:]], dim=2)
        visible = visible & (ids[:, 1:, :, None] == key_ids[:, :, None, :])
    o = _sdpa(
        F.pad(q, pad).unflatten(1, (N, w)).flatten(0, 1),
        with_previous(k).flatten(0, 1),
        with_previous(v).flatten(0, 1),
        scale=scale,
        mask=visible.reshape(B * N, 1, w, 2 * w),
    )
    return shortened(o.unflatten(0, (B, N)).flatten(1, 2), T)


def _next_state(
    k: Tensor, v: Tensor, window: int | None, past: KeyValueCache | None, segment_ids: Tensor | None
) -> KeyValueCache:
    """Append; keep what a window can still see (the next query is one further: w - 1 past keys)."""
    B, T = k.shape[:2]
    valid = None if segment_ids is None else in_last_document(segment_ids)
    if past is not None:
        S = past.k.shape[1]
        if past.valid is not None or valid is not None:
            before = past.valid if past.valid is not None else k.new_ones(B, S, dtype=torch.bool)
            if segment_ids is not None:  # the past belongs to the first document
                before = before & (segment_ids[:, :1] == segment_ids[:, -1:])
            now = valid if valid is not None else k.new_ones(B, T, dtype=torch.bool)
            valid = torch.cat([before, now], dim=1)
        k, v = torch.cat([past.k.to(k.dtype), k], dim=1), torch.cat([past.v.to(v.dtype), v], dim=1)
    if window is not None:
        first = max(0, k.shape[1] - (window - 1))
        k, v, valid = k[:, first:], v[:, first:], None if valid is None else valid[:, first:]
    return KeyValueCache(k, v, valid)
