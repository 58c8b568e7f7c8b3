"""Linear attention with decay: one call for every gate kind and backend.

    inclusive read:  S_t = diag(exp g_t) S_{t-1} + k_t v_tᵀ ;  o_t = scale S_tᵀ q_t
    bonus read:      o_t = scale (S_{t-1} + diag(u) k_t v_tᵀ)ᵀ q_t ;  S_t as above        (RWKV-5, RWKV-6)

Chunkwise parallel form: arXiv 2312.06635 (GLA), section 4; arXiv 2405.21060 (Mamba-2), section 6.
"""

import torch
from torch import Tensor

from seqarch.ops import backend as backends
from seqarch.ops import fla_adapter
from seqarch.ops.common import accumulation_dtype, outside_autocast
from seqarch.ops.linear_attention.recurrent import linear_attention_recurrent
from seqarch.ops.linear_attention.scalar import scalar_decay
from seqarch.ops.linear_attention.vector import vector_decay


@outside_autocast("q", "k", "v")
def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    *,
    bonus: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    segment_ids: Tensor | None = None,
    chunk_size: int | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor | None]:
    """The recurrence above over [B, T, H, D].

    Args:
        q, k: [B, T, H, K], or one head [B, T, 1, K] that all heads of v share (Mamba-2).
        v: [B, T, H, V].
        g: log decay <= 0: None (no decay), [H] or [H, K] (constant), [B, T, H] (scalar), [B, T, H, K]
            (vector).
        bonus: u [H, K], switches to the bonus read.
        scale: multiplies the query; default K^-1/2.
        initial_state: [B, H, K, V], of the first document.
        segment_ids: int [B, T], non-decreasing; the state is reset where it changes.
        chunk_size: steps computed in parallel; None chooses.
        backend: "auto", "reference" or "fla"; a single step is always the reference's recurrence.

    Returns: o [B, T, H, V] in v's dtype; with `return_state` the state [B, H, K, V] in float32 (float64 if
        any input is) after the last token.
    """
    _check(q, k, v, g, bonus, initial_state)
    if q.shape[1] > 1 and _choose(q, v, g, bonus, backend) == "fla":
        if g is not None and g.dim() == 1 and g.requires_grad:
            g = g.expand(v.shape[:3])  # fla has no gradient for a constant gate
        o, final = fla_adapter.linear_attention(
            q,
            k,
            v,
            g,
            bonus=bonus,
            scale=q.shape[-1] ** -0.5 if scale is None else scale,
            initial_state=initial_state,
            segment_ids=segment_ids,
        )
        return o, final if return_state else None
    acc = accumulation_dtype(q, k, v, g, initial_state)
    out_dtype, scale = v.dtype, q.shape[-1] ** -0.5 if scale is None else scale
    q, k, v = q.to(acc), k.to(acc), v.to(acc)
    g, bonus, state = (None if x is None else x.to(acc) for x in (g, bonus, initial_state))
    vector = g is not None and (g.dim() == 4 or g.dim() == 2)
    S: Tensor | None
    if q.shape[1] == 1:
        o, S = linear_attention_recurrent(q, k, v, g, bonus=bonus, scale=scale, initial_state=state)
    elif vector or bonus is not None:
        o, S = vector_decay(
            q if scale == 1.0 else q * scale, k, v, g, bonus, state, segment_ids, chunk_size, return_state
        )
    else:
        o, S = scalar_decay(q, k, v, g, state, segment_ids, chunk_size, scale, return_state)
    return o.to(out_dtype), S if return_state else None


def _choose(q: Tensor, v: Tensor, g: Tensor | None, bonus: Tensor | None, backend: str) -> str:
    def refuses() -> str | None:
        return fla_adapter.unsupported(
            fla_adapter.linear_attention_kernel(g, bonus),
            q.device,
            v.dtype,
            K=q.shape[-1],
            V=v.shape[-1],
            needs_grad=torch.is_grad_enabled(),
        )

    return backends.choose("linear_attention", q, backend=backend, candidates={"fla": refuses})


def _check(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, bonus: Tensor | None, initial_state: Tensor | None
) -> None:
    B, T, H, V = v.shape
    K = q.shape[-1]
    if 0 in v.shape or K == 0:
        raise ValueError(
            f"linear_attention: expected no empty dimension, got q {list(q.shape)}, v {list(v.shape)}"
        )
    if q.shape != k.shape or q.shape[:2] != (B, T) or q.shape[2] not in (1, H):
        raise ValueError(
            f"linear_attention: expected q and k [{B}, {T}, {H} or 1, K] for v {list(v.shape)}, "
            f"got q {list(q.shape)}, k {list(k.shape)}"
        )
    gates = ([H], [H, K], [B, T, H], [B, T, H, K])
    if g is not None and list(g.shape) not in gates:
        raise ValueError(
            f"linear_attention: expected g of shape {' or '.join(map(str, gates))}, got {list(g.shape)}"
        )
    if bonus is not None and list(bonus.shape) != [H, K]:
        raise ValueError(f"linear_attention: expected bonus [{H}, {K}], got {list(bonus.shape)}")
    if initial_state is not None and list(initial_state.shape) != [B, H, K, V]:
        raise ValueError(
            f"linear_attention: expected initial_state [{B}, {H}, {K}, {V}], got {list(initial_state.shape)}"
        )
