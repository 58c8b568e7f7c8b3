"""Launches of the router kernels of Top-1 chunk selection, as custom ops. Import it only where Triton is.

Signatures and results are those of `routing`. The fakes tell torch.compile the shapes.
"""

import torch
import triton
from torch import Tensor

from seqarch.ops.top1_chunk import router_kernels
from seqarch.ops.top1_chunk.tiling import block_sizes, rows, strides


def _router_constants(q: Tensor, C: int) -> dict[str, int]:
    width = triton.next_power_of_2(q.shape[3])
    return {"C": C, "K": q.shape[3], "BLOCK_K": width, **block_sizes(q.dtype, width, C)}


@torch.library.custom_op("seqarch::top1_chunk_approx_forward", mutates_args=())
def approx_forward(
    q: Tensor,
    summary: Tensor,
    own: Tensor | None,
    first_chunk: Tensor,
    C: int,
    scale: float,
    forced: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """chosen int64, lse, rp [B, R, L]."""
    q, summary = rows(q, summary.to(q.dtype))
    (B, L, R, _), N = q.shape, first_chunk.shape[1]
    chosen, lse, rp = _route_outputs(q, R)
    own = None if own is None else own.float().contiguous()
    forced = None if forced is None else forced.int().contiguous()
    constants = _router_constants(q, C)
    router_kernels.approx_forward[(B * R, L // constants["BLOCK_M"])](
        *(q, summary, lse if own is None else own, first_chunk, chosen if forced is None else forced),
        *(chosen, lse, rp),
        *(*strides(q, summary), R, L, N, N - L // C, scale),
        **constants,
        FORCED=forced is not None,
        OWN=own is not None,
    )
    return chosen.long(), lse, rp


def _route_outputs(q: Tensor, R: int) -> tuple[Tensor, Tensor, Tensor]:
    shape = (q.shape[0], R, q.shape[1])
    chosen = torch.empty(shape, dtype=torch.int32, device=q.device)
    lse, rp = (torch.empty(shape, dtype=torch.float32, device=q.device) for _ in range(2))
    return chosen, lse, rp


@approx_forward.register_fake
def _(
    q: Tensor,
    summary: Tensor,
    own: Tensor | None,
    first_chunk: Tensor,
    C: int,
    scale: float,
    forced: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    chosen, lse, rp = _route_outputs(q, q.shape[2])
    return chosen.long(), lse, rp


@torch.library.custom_op("seqarch::top1_chunk_approx_backward", mutates_args=())
def approx_backward(
    t: Tensor,
    q: Tensor,
    summary: Tensor,
    first_chunk: Tensor,
    chosen: Tensor,
    lse: Tensor,
    C: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """dq, dsummary from t = rp drp [B, R, L]."""
    q, chunks = rows(q, summary.to(q.dtype))
    (B, L, R, _), N = q.shape, first_chunk.shape[1]
    dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    dsummary = torch.empty(summary.shape, dtype=summary.dtype, device=q.device)
    inputs = (q, chunks, first_chunk, chosen.int().contiguous(), lse, t.float().contiguous())
    scalars = (*strides(q, chunks), R, L, N, N - L // C, scale)
    constants = _router_constants(q, C)
    router_kernels.approx_backward_queries[(B * R, L // constants["BLOCK_M"])](
        *inputs, dq, *scalars, **constants
    )
    router_kernels.approx_backward_summaries[(B * R, triton.cdiv(N, constants["BLOCK_N"]))](
        *inputs, dsummary, *scalars, **constants
    )
    return dq, dsummary


@approx_backward.register_fake
def _(
    t: Tensor,
    q: Tensor,
    summary: Tensor,
    first_chunk: Tensor,
    chosen: Tensor,
    lse: Tensor,
    C: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), summary.new_empty(summary.shape)


@torch.library.custom_op("seqarch::top1_chunk_exact_forward", mutates_args=())
def exact_forward(
    q: Tensor,
    k: Tensor,
    own: Tensor | None,
    first_chunk: Tensor,
    C: int,
    scale: float,
    tau_r: float,
    forced: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """chosen int64, lse, rp [B, H, L]."""
    q, k = rows(q, k)
    (B, L, H, _), N = q.shape, first_chunk.shape[1]
    chosen, lse, rp = _route_outputs(q, H)
    own = None if own is None else own.float().contiguous()
    forced = None if forced is None else forced.int().contiguous()
    constants = _router_constants(q, C)
    router_kernels.exact_forward[(B * H, L // constants["BLOCK_M"])](
        *(q, k, lse if own is None else own, first_chunk, chosen if forced is None else forced),
        *(chosen, lse, rp),
        *(*strides(q, k), H, L, N, N - L // C, scale, 1 / tau_r),
        **constants,
        FORCED=forced is not None,
        OWN=own is not None,
    )
    return chosen.long(), lse, rp


@exact_forward.register_fake
def _(
    q: Tensor,
    k: Tensor,
    own: Tensor | None,
    first_chunk: Tensor,
    C: int,
    scale: float,
    tau_r: float,
    forced: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    chosen, lse, rp = _route_outputs(q, q.shape[2])
    return chosen.long(), lse, rp


@torch.library.custom_op("seqarch::top1_chunk_exact_backward", mutates_args=())
def exact_backward(
    t: Tensor,
    q: Tensor,
    k: Tensor,
    first_chunk: Tensor,
    chosen: Tensor,
    lse: Tensor,
    C: int,
    scale: float,
    tau_r: float,
) -> tuple[Tensor, Tensor]:
    """dq, dk from t = rp drp [B, H, L]."""
    q, k = rows(q, k)
    (B, L, H, _), N = q.shape, first_chunk.shape[1]
    dq, dk = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k))
    inputs = (q, k, first_chunk, chosen.int().contiguous(), lse, t.float().contiguous())
    scalars = (*strides(q, k), H, L, N, N - L // C, scale, 1 / tau_r)
    constants = _router_constants(q, C)
    router_kernels.exact_backward_queries[(B * H, L // constants["BLOCK_M"])](
        *inputs, dq, *scalars, **constants
    )
    router_kernels.exact_backward_keys[(B * H, N * C // constants["BLOCK_N"])](
        *inputs, dk, *scalars, **constants
    )
    return dq, dk


@exact_backward.register_fake
def _(
    t: Tensor,
    q: Tensor,
    k: Tensor,
    first_chunk: Tensor,
    chosen: Tensor,
    lse: Tensor,
    C: int,
    scale: float,
    tau_r: float,
) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape)
