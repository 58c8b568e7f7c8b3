"""The delta rule, gated (arXiv 2412.06464) or not (arXiv 2406.06484)."""

import torch
from torch import Tensor

from seqarch.ops import backend as backends
from seqarch.ops import fla_adapter
from seqarch.ops.common import accumulation_dtype, outside_autocast
from seqarch.ops.delta_rule.chunked import default_chunk_size
from seqarch.ops.delta_rule.reference import delta_rule_chunked, delta_rule_recurrent

OP = "delta_rule"


@outside_autocast("q", "k", "v")
def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor | None = None,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    segment_ids: Tensor | None = None,
    chunk_size: int | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor | None]:
    """S' = exp(g_t) S_{t-1} ;  S_t = S' + k_t (β_t (v_t - S'ᵀ k_t))ᵀ ;  o_t = scale S_tᵀ q_t.

    The decay acts before the error is read. Keys are expected to have unit length.

    Args:
        q, k: [B, T, H, K]; v: [B, T, H, V].
        beta: [B, T, H] step sizes, 0 to 1 (to 2 for negative eigenvalues).
        g: [B, T, H] log decays <= 0; None: no decay.
        scale: multiplies the query; default K^-1/2.
        initial_state: [B, H, K, V]; it belongs to the first document.
        segment_ids: int [B, T], non-decreasing: the state is zero where a document starts.
        chunk_size: steps computed in parallel; None: chosen for speed.
        backend: "auto", "reference" or "fla".

    Returns: o [B, T, H, V] in v's dtype; the state [B, H, K, V] of the last document (float32, or float64 for
        float64 inputs), or None.
    """
    _check(q, k, v, beta, g, initial_state)
    chosen = backends.choose(
        OP, q, backend=backend, candidates={"fla": lambda: _fla_refuses(q, v, g is not None)}
    )
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if chosen == "fla" and q.shape[1] > 1:
        o, final = fla_adapter.delta_rule(
            q, k, v, beta, g, scale=scale, initial_state=initial_state, segment_ids=segment_ids
        )
        return o, final if return_state else None
    acc, dtype = accumulation_dtype(q, k, v, beta, g, initial_state), v.dtype
    state = q.new_zeros(q.shape[0], *q.shape[2:], v.shape[-1]) if initial_state is None else initial_state
    q, k, v, beta, state = (x.to(acc) for x in (q, k, v, beta, state))
    g = None if g is None else g.to(acc)
    if q.shape[1] == 1:
        o, state = delta_rule_recurrent(q, k, v, beta, g, scale, state)
    else:
        C = chunk_size or default_chunk_size(q.shape[1], q.shape[-1])
        o, state = delta_rule_chunked(q, k, v, beta, g, scale, state, segment_ids, C)
    return o.to(dtype), state if return_state else None


def _fla_refuses(q: Tensor, v: Tensor, gated: bool) -> str | None:
    return fla_adapter.unsupported(
        "gated_delta_rule" if gated else OP,
        q.device,
        q.dtype,
        K=q.shape[-1],
        V=v.shape[-1],
        needs_grad=torch.is_grad_enabled(),
    )


def _check(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor | None, initial_state: Tensor | None
) -> None:
    if v.dim() != 4 or q.dim() != 4 or 0 in v.shape or 0 in q.shape:
        raise ValueError(
            f"{OP}: expected q [B, T, H, K] and v [B, T, H, V] without empty dimensions, "
            f"got {list(q.shape)} and {list(v.shape)}"
        )
    B, T, H, V = v.shape
    K = q.shape[-1]
    expected = {"q": (q, [B, T, H, K]), "k": (k, [B, T, H, K]), "beta": (beta, [B, T, H])}
    if g is not None:
        expected["g"] = (g, [B, T, H])
    if initial_state is not None:
        expected["initial_state"] = (initial_state, [B, H, K, V])
    for name, (x, shape) in expected.items():
        if list(x.shape) != shape:
            raise ValueError(f"{OP}: expected {name} {shape}, got {list(x.shape)}")
