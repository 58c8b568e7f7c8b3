"""The elementwise linear recurrence (RG-LRU, arXiv 2402.19427, equation 4; HGRN, arXiv 2311.04823)."""

import torch
from torch import Tensor

from seqarch.ops import backend as backends
from seqarch.ops import fla_adapter
from seqarch.ops.common import accumulation_dtype
from seqarch.ops.diag_scan.reference import CHUNK_SIZE, diag_scan_chunked
from seqarch.ops.segments import starts

OP = "diag_scan"


def diag_scan(
    a: Tensor,
    x: Tensor,
    *,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    segment_ids: Tensor | None = None,
    chunk_size: int | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor | None]:
    """h_t = a_t ∘ h_{t-1} + x_t.

    Args:
        a: [B, T, ...] decays, 0 <= a <= 1 (given as they are, not as logs: a reset is a = 0).
        x: [B, T, ...] inputs.
        initial_state: [B, ...]; it belongs to the first document.
        segment_ids: int [B, T], non-decreasing: h starts from x where a document starts.
        chunk_size: positions that run one after another in the reference; None: chosen for speed.
        backend: "auto", "reference" or "fla".

    Returns: h [B, T, ...] in x's dtype; the last h [B, ...] (float32, or float64 for float64 inputs), or
        None.
    """
    _check(a, x, initial_state)
    chosen = backends.choose(
        OP,
        x,
        backend=backend,
        candidates={
            "fla": lambda: fla_adapter.unsupported(OP, x.device, x.dtype, resets=segment_ids is not None)
        },
    )
    acc = accumulation_dtype(a, x, initial_state)
    state = None if initial_state is None else initial_state.to(acc).flatten(1)
    a_, x_ = a.to(acc).flatten(2), x.to(acc).flatten(2)
    if segment_ids is not None:
        a_ = a_.masked_fill(starts(segment_ids).unsqueeze(-1), 0)
    if chosen == "fla":
        h = fla_adapter.diag_scan(a_, x_, state)
    elif x.shape[1] == 1:
        h = x_ if state is None else torch.addcmul(x_, a_, state.unsqueeze(1))
    else:
        h = diag_scan_chunked(a_, x_, state, chunk_size or CHUNK_SIZE)
    final = h[:, -1].reshape(x.shape[:1] + x.shape[2:]) if return_state else None
    return h.reshape(x.shape).to(x.dtype), final


def _check(a: Tensor, x: Tensor, initial_state: Tensor | None) -> None:
    if x.dim() < 3 or 0 in x.shape or a.shape != x.shape:
        raise ValueError(
            f"{OP}: expected a and x [B, T, ...] of one shape without empty dimensions, "
            f"got {list(a.shape)} and {list(x.shape)}"
        )
    if initial_state is not None and initial_state.shape != x.shape[:1] + x.shape[2:]:
        raise ValueError(
            f"{OP}: expected initial_state {list(x.shape[:1] + x.shape[2:])}, got {list(initial_state.shape)}"
        )
