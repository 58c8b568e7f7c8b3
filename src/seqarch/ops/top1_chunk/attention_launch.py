"""Launches of the attention kernels of Top-1 chunk selection, as custom ops. Import it only where Triton is.

Signatures and results are those of `grouped`. The fakes tell torch.compile the shapes.
"""

import torch
import triton
from torch import Tensor

from seqarch.ops.top1_chunk import kernels
from seqarch.ops.top1_chunk.tiling import block_sizes, rows, schedule, strides


def _attention_constants(q: Tensor, v: Tensor, C: int) -> dict[str, int]:
    K, V = q.shape[3], v.shape[3]
    widths = {"BLOCK_K": triton.next_power_of_2(K), "BLOCK_V": triton.next_power_of_2(V)}
    return {"C": C, "K": K, "V": V, **widths, **block_sizes(q.dtype, max(widths.values()), C)}


@torch.library.custom_op("seqarch::top1_chunk_attention_forward", mutates_args=())
def attention_forward(
    q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, C: int, scale: float, always: bool
) -> tuple[Tensor, Tensor]:
    """o [B, L, H, V] in v's dtype, lse [B, H, L]."""
    q, k, v = rows(q, k, v)
    (B, L, H, _), N = q.shape, k.shape[1] // C
    o = torch.empty(B, L, H, v.shape[3], dtype=torch.float32, device=q.device)  # merged before it is rounded
    lse = torch.empty(B, H, L, dtype=torch.float32, device=q.device)
    constants = _attention_constants(q, v, C)
    kernels.local_forward[(B * H, L // constants["BLOCK_M"])](
        q, k, v, o, lse, *strides(q, k, v), H, L, N * C - L, scale, **constants
    )
    plan = schedule(chosen, N, constants["BLOCK_M"])
    n_tiles = plan.tile_chunk.shape[1]
    kernels.chosen_forward[(B * H, n_tiles)](
        q, k, v, o, lse, *plan, *strides(q, k, v), H, L, N, n_tiles, scale, **constants, ALWAYS=always
    )
    return o if v.dtype == torch.float32 else o.to(v.dtype), lse


@attention_forward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, C: int, scale: float, always: bool
) -> tuple[Tensor, Tensor]:
    return v.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(chosen.shape, dtype=torch.float32)


@torch.library.custom_op("seqarch::top1_chunk_attention_backward", mutates_args=())
def attention_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    chosen: Tensor,
    o: Tensor,
    lse: Tensor,
    C: int,
    scale: float,
    always: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dq, dk, dv and part [B, H, L]."""
    do, q, k, v = rows(do, q, k, v)
    (B, L, H, _), N = q.shape, k.shape[1] // C
    delta = (do.float() * o.float()).sum(-1).transpose(1, 2).contiguous()  # [B, H, L]
    dq = torch.empty(q.shape, dtype=torch.float32, device=q.device)
    dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (k, v))
    part = torch.zeros_like(delta)
    constants = _attention_constants(q, v, C)
    plan = schedule(chosen, N, constants["BLOCK_M"])
    n_tiles = plan.tile_chunk.shape[1]
    chosen = chosen.int().contiguous()
    inputs, steps = (q, k, v, do, lse, delta), strides(q, k, v, do)
    kernels.local_backward_queries[(B * H, L // constants["BLOCK_M"])](
        *inputs, chosen, dq, *steps, H, L, N * C - L, scale, **constants, ALWAYS=always
    )
    kernels.chosen_backward_queries[(B * H, n_tiles)](
        *inputs, dq, part, *plan, *steps, H, L, N, n_tiles, scale, **constants
    )
    kernels.backward_keys[(B * H, N * C // constants["BLOCK_N"])](
        *(*inputs, chosen, plan.order, plan.offsets, dk, dv),
        *(*steps, H, L, N, N * C - L, scale),
        **constants,
        ALWAYS=always,
    )
    return dq if q.dtype == torch.float32 else dq.to(q.dtype), dk, dv, part if always else delta


@attention_backward.register_fake
def _(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    chosen: Tensor,
    o: Tensor,
    lse: Tensor,
    C: int,
    scale: float,
    always: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    return dq, dk, dv, torch.empty_like(lse)
