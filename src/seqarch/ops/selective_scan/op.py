"""The selective scan of Mamba-1 (arXiv 2312.00752, section 3.2)."""

import torch
from torch import Tensor

from seqarch.ops import backend as backends
from seqarch.ops.common import accumulation_dtype
from seqarch.ops.segments import starts
from seqarch.ops.selective_scan.reference import (
    CHUNK_SIZE,
    selective_scan_chunked,
    selective_scan_recurrent,
)

OP = "selective_scan"


def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    segment_ids: Tensor | None = None,
    chunk_size: int | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor | None]:
    """h_t = exp(Δ_t A) ∘ h_{t-1} + (Δ_t u_t) B_tᵀ ;  y_t = h_t C_t.

    Args:
        u: [B, T, D] inputs.
        delta: [B, T, D] step sizes, >= 0.
        A: [D, S], negative.
        B, C: [B, T, S] input and output maps, shared by the channels.
        initial_state: [B, D, S]; it belongs to the first document.
        segment_ids: int [B, T], non-decreasing: the state is zero where a document starts.
        chunk_size: positions that run one after another in the reference; None: chosen for speed.
        backend: "auto", "reference" or "triton".

    Returns: y [B, T, D] in u's dtype; the state [B, D, S] of the last document (float32, or float64 for
        float64
        inputs), or None.
    """
    _check(u, delta, A, B, C, initial_state)
    chosen = backends.choose(OP, u, backend=backend, candidates={"triton": lambda: _triton_refuses(u, A)})
    acc = accumulation_dtype(u, delta, A, B, C, initial_state)
    first = None if segment_ids is None else starts(segment_ids)
    u_, delta_, A_, B_, C_ = (z.to(acc) for z in (u, delta, A, B, C))
    state = None if initial_state is None else initial_state.to(acc)
    if chosen == "triton":
        from seqarch.ops.selective_scan.triton_op import selective_scan_triton

        y, final = selective_scan_triton(u, delta, A_, B, C, state, first)
    elif u.shape[1] == 1 and not torch.is_grad_enabled():
        y, final = selective_scan_recurrent(u_, delta_, A_, B_, C_, initial_state=state, starts=first)
    else:
        y, final = selective_scan_chunked(u_, delta_, A_, B_, C_, state, first, chunk_size or CHUNK_SIZE)
    return y.to(u.dtype), final if return_state else None


def _triton_refuses(u: Tensor, A: Tensor) -> str | None:
    from seqarch.ops.selective_scan.triton_op import unsupported

    return unsupported(u, A)


def _check(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, initial_state: Tensor | None) -> None:
    if u.dim() != 3 or 0 in u.shape:
        raise ValueError(f"{OP}: expected u [B, T, D] without empty dimensions, got {tuple(u.shape)}")
    batch, T, D = u.shape
    S = A.shape[-1]
    expected = {
        "delta": (delta, (batch, T, D)),
        "A": (A, (D, S)),
        "B": (B, (batch, T, S)),
        "C": (C, (batch, T, S)),
    }
    if initial_state is not None:
        expected["initial_state"] = (initial_state, (batch, D, S))
    for name, (z, shape) in expected.items():
        if z.shape != shape:
            raise ValueError(f"{OP}: expected {name} {list(shape)}, got {list(z.shape)}")
