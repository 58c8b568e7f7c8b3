"""The delta rule with a diagonal-plus-low-rank transition (RWKV-7, arXiv 2503.14456)."""

import torch
from torch import Tensor

from seqarch.ops import backend as backends
from seqarch.ops import fla_adapter
from seqarch.ops.common import accumulation_dtype, outside_autocast
from seqarch.ops.delta_rule.chunked import default_chunk_size
from seqarch.ops.dplr_rule.reference import dplr_rule_chunked, dplr_rule_recurrent

OP = "dplr_rule"


@outside_autocast("q", "k", "v", "a", "b")
def dplr_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    g: Tensor,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    segment_ids: Tensor | None = None,
    chunk_size: int | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor | None]:
    """z_t = S_{t-1}ᵀ a_t ;  S_t = diag(exp g_t) S_{t-1} + k_t v_tᵀ + b_t z_tᵀ ;  o_t = scale S_tᵀ q_t.

    Args:
        q, k, a, b: [B, T, H, K]; v: [B, T, H, V]. a reads the state before its decay.
        g: [B, T, H, K] log decays <= 0, of any size.
        scale: multiplies the query; default K^-1/2 (RWKV-7 passes 1).
        initial_state: [B, H, K, V]; it belongs to the first document.
        segment_ids: int [B, T], non-decreasing: the state is zero where a document starts.
        chunk_size: steps computed in parallel; None: chosen for speed.
        backend: "auto", "reference" or "fla".

    Returns: o [B, T, H, V] in v's dtype; the state [B, H, K, V] of the last document (float32, or float64 for
        float64 inputs), or None.
    """
    _check(q, k, v, a, b, g, initial_state)
    chosen = backends.choose(OP, q, backend=backend, candidates={"fla": lambda: _fla_refuses(q, v)})
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if chosen == "fla" and q.shape[1] > 1:
        o, final = fla_adapter.dplr_rule(
            q, k, v, a, b, g, scale=scale, initial_state=initial_state, segment_ids=segment_ids
        )
        return o, final if return_state else None
    acc, dtype = accumulation_dtype(q, k, v, a, b, g, initial_state), v.dtype
    state = q.new_zeros(q.shape[0], *q.shape[2:], v.shape[-1]) if initial_state is None else initial_state
    q, k, v, a, b, g, state = (x.to(acc) for x in (q, k, v, a, b, g, state))
    if q.shape[1] == 1:
        o, state = dplr_rule_recurrent(q, k, v, a, b, g, scale, state)
    else:
        C = chunk_size or default_chunk_size(q.shape[1], q.shape[-1])
        o, state = dplr_rule_chunked(q, k, v, a, b, g, scale, state, segment_ids, C)
    return o.to(dtype), state if return_state else None


def _fla_refuses(q: Tensor, v: Tensor) -> str | None:
    return fla_adapter.unsupported(
        OP,
        q.device,
        q.dtype,
        K=q.shape[-1],
        V=v.shape[-1],
        needs_grad=torch.is_grad_enabled(),
    )


def _check(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, g: Tensor, initial_state: Tensor | None
) -> None:
    if v.dim() != 4 or q.dim() != 4 or 0 in v.shape or 0 in q.shape:
        raise ValueError(
            f"{OP}: expected q [B, T, H, K] and v [B, T, H, V] without empty dimensions, "
            f"got {list(q.shape)} and {list(v.shape)}"
        )
    B, T, H, V = v.shape
    K = q.shape[-1]
    for name, x in {"q": q, "k": k, "a": a, "b": b, "g": g}.items():
        if list(x.shape) != [B, T, H, K]:
            raise ValueError(f"{OP}: expected {name} {[B, T, H, K]}, got {list(x.shape)}")
    if initial_state is not None and list(initial_state.shape) != [B, H, K, V]:
        raise ValueError(f"{OP}: expected initial_state {[B, H, K, V]}, got {list(initial_state.shape)}")
