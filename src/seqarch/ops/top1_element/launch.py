"""Top-1 element selection on the kernels: launches, autograd, block sizes. Import it only where Triton is."""

from typing import Any

import torch
import triton
from torch import Tensor

from seqarch.ops.top1_element import kernels
from seqarch.ops.top1_element.reference import Rule, Visible


def block_sizes(dtype: torch.dtype, width: int) -> dict[str, int]:
    """Tile of queries and of keys, warps, pipeline stages, for heads of `width` channels (a power of two).

    Chosen so that every kernel fits the shared memory of sm_80; the compile test holds that.
    """
    if dtype == torch.float32:
        M, N = {256: (16, 16), 128: (32, 32)}.get(width, (64, 32))
        return {"BLOCK_M": M, "BLOCK_N": N, "num_warps": 4, "num_stages": 1}
    M, N = {256: (64, 32), 128: (64, 64)}.get(width, (128, 64))
    return {"BLOCK_M": M, "BLOCK_N": N, "num_warps": 8 if width == 256 else 4, "num_stages": 2}


def padded_widths(q: Tensor, v: Tensor) -> dict[str, int]:
    """The kernels' constants for the channels of q and v, and the powers of two that hold them."""
    K, V = q.shape[3], v.shape[3]
    return {"K": K, "V": V, "BLOCK_K": triton.next_power_of_2(K), "BLOCK_V": triton.next_power_of_2(V)}


def select(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Visible,
    rule: Rule,
    slopes: Tensor | None = None,
    force_index: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As `reference.select`."""
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    lo, hi = visible.lo.int().contiguous(), visible.hi.int().contiguous()
    slopes = None if slopes is None else slopes.float().contiguous()
    forced = None if force_index is None else force_index.int().contiguous()
    o, index = _Top1Element.apply(q, k, v, lo, hi, visible.offset, rule, slopes, forced)
    return o, index.long()


class _Top1Element(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        lo: Tensor,
        hi: Tensor,
        offset: int,
        rule: Rule,
        slopes: Tensor | None,
        forced: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        trains = any(x.requires_grad for x in (q, k, v))
        soft = trains and rule.st == "softmax"
        o, o_soft, index, lse, p = forward(
            q, k, v, lo, hi, offset, rule.scale, rule.tau, soft, slopes, forced
        )
        ctx.save_for_backward(q, k, v, lo, hi, slopes, index, lse, p, o_soft if soft else o)
        ctx.offset, ctx.rule = offset, rule
        ctx.mark_non_differentiable(index)
        return o, index

    @staticmethod
    def backward(ctx: Any, do: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, lo, hi, slopes, index, lse, p, o = ctx.saved_tensors
        rule = ctx.rule
        do = do if do.stride(-1) == 1 else do.contiguous()
        # dO . (what p weighs): the soft output for `softmax`; for the others g_i at the chosen key, times p
        delta = (do.float() * o.float()).sum(-1)
        g = delta / p if rule.st == "scaled" else delta
        if rule.st == "gate":
            delta = delta * p
        site = rule.st == "softmax" and rule.st_site == "output"
        dq, dk, dv = backward(
            do, q, k, v, lo, hi, index, lse, delta, g, ctx.offset, rule.scale, rule.tau, rule.st, site, slopes
        )
        return dq, dk, dv, None, None, None, None, None, None


@torch.library.custom_op("seqarch::top1_element_forward", mutates_args=())
def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lo: Tensor,
    hi: Tensor,
    offset: int,
    scale: float,
    tau: float,
    soft: bool,
    slopes: Tensor | None,
    forced: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """o, soft output (empty unless `soft`), index int32, lse, p of the chosen key: [B, T, H, ...]."""
    B, T, H, _ = q.shape
    o, o_soft, index, lse, p = _forward_outputs(q, v, soft)
    sizes = block_sizes(q.dtype, max(padded_widths(q, v)["BLOCK_K"], padded_widths(q, v)["BLOCK_V"]))
    kernels.forward[(B * H, triton.cdiv(T, sizes["BLOCK_M"]))](
        *(q, k, v, lo, hi, lo if slopes is None else slopes, lo if forced is None else forced),
        *(o, o_soft, index, lse, p),
        *(*q.stride()[:3], *k.stride()[:3], *v.stride()[:3]),
        *(H, T, k.shape[1], offset, scale, 1 / tau),
        ALIBI=slopes is not None,
        FORCED=forced is not None,
        SOFT=soft,
        **padded_widths(q, v),
        **sizes,
    )
    return o, o_soft, index, lse, p


def _forward_outputs(q: Tensor, v: Tensor, soft: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    rows = q.shape[:3]
    o = v.new_empty(*rows, v.shape[3])
    o_soft = torch.empty_like(o) if soft else v.new_empty(0)
    index = torch.empty(rows, dtype=torch.int32, device=q.device)
    lse, p = (torch.empty(rows, dtype=torch.float32, device=q.device) for _ in range(2))
    return o, o_soft, index, lse, p


@forward.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lo: Tensor,
    hi: Tensor,
    offset: int,
    scale: float,
    tau: float,
    soft: bool,
    slopes: Tensor | None,
    forced: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _forward_outputs(q, v, soft)


@torch.library.custom_op("seqarch::top1_element_backward", mutates_args=())
def backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lo: Tensor,
    hi: Tensor,
    index: Tensor,
    lse: Tensor,
    delta: Tensor,
    g: Tensor,
    offset: int,
    scale: float,
    tau: float,
    st: str,
    soft_values: bool,
    slopes: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk, dv: contiguous, shaped as q, k, v."""
    (B, T, H, _), S = q.shape, k.shape[1]
    dq, dk, dv = _backward_outputs(q, k, v)
    widths = padded_widths(q, v)
    sizes = block_sizes(q.dtype, max(widths["BLOCK_K"], widths["BLOCK_V"]))
    inputs = (q, k, v, do, lo, hi, lo if slopes is None else slopes, index, lse, delta, g)
    strides = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *do.stride()[:3])
    scalars = (H, T, S, offset, scale, 1 / tau)
    switches = {"ALIBI": slopes is not None, "DENSE": st == "softmax", **widths, **sizes}
    kernels.backward_keys[(B * H, triton.cdiv(S, sizes["BLOCK_N"]))](
        *inputs, dk, dv, *strides, *scalars, SCORES=st != "none", SOFT_VALUES=soft_values, **switches
    )
    if st == "none":
        dq.zero_()
    else:
        kernels.backward_queries[(B * H, triton.cdiv(T, sizes["BLOCK_M"]))](
            *inputs, dq, *strides, *scalars, **switches
        )
    return dq, dk, dv


def _backward_outputs(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    return dq, dk, dv


@backward.register_fake
def _(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lo: Tensor,
    hi: Tensor,
    index: Tensor,
    lse: Tensor,
    delta: Tensor,
    g: Tensor,
    offset: int,
    scale: float,
    tau: float,
    st: str,
    soft_values: bool,
    slopes: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    return _backward_outputs(q, k, v)
