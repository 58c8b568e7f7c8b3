"""Autograd for Top-1 chunk selection: the router and the attention, each around a backend's two parts.

The router gives the chosen chunk and its probability rp. The attention takes both; its output does not depend
on rp, whose gradient is what a factor of value 1 on the chosen part of o would pass on:

    gate:    1 + rp - stopgrad(rp)      drp_i = dO_i . (chosen part of o_i)
    scaled:  rp / stopgrad(rp)          drp_i = dO_i . (chosen part of o_i) / rp_i
"""

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from seqarch.ops.top1_chunk import grouped, routing
from seqarch.ops.top1_chunk.grouped import Attention, Gradients
from seqarch.ops.top1_chunk.routing import Route


class Parts(Protocol):
    """What a backend computes; the arguments are those of `grouped` and `routing`."""

    def attention_forward(
        self, q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, C: int, scale: float, always: bool
    ) -> Attention: ...

    def attention_backward(
        self,
        do: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        chosen: Tensor,
        forward: Attention,
        C: int,
        scale: float,
        always: bool,
    ) -> Gradients: ...

    def approx_forward(
        self,
        q: Tensor,
        summary: Tensor,
        own: Tensor | None,
        first_chunk: Tensor,
        C: int,
        scale: float,
        forced: Tensor | None,
    ) -> Route: ...

    def approx_backward(
        self,
        drp: Tensor,
        q: Tensor,
        summary: Tensor,
        own: Tensor | None,
        first_chunk: Tensor,
        route: Route,
        C: int,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor | None]: ...

    def exact_forward(
        self,
        q: Tensor,
        k: Tensor,
        own: Tensor | None,
        first_chunk: Tensor,
        C: int,
        scale: float,
        tau_r: float,
        shared: bool,
        forced: Tensor | None,
    ) -> Route: ...

    def exact_backward(
        self,
        drp: Tensor,
        q: Tensor,
        k: Tensor,
        own: Tensor | None,
        first_chunk: Tensor,
        route: Route,
        C: int,
        scale: float,
        tau_r: float,
        shared: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]: ...


class PyTorch:
    """The backend of CPUs, and of what the kernels can't do."""

    attention_forward = staticmethod(grouped.attention_forward)
    attention_backward = staticmethod(grouped.attention_backward)
    approx_forward = staticmethod(routing.approx_forward)
    approx_backward = staticmethod(routing.approx_backward)
    exact_forward = staticmethod(routing.exact_forward)
    exact_backward = staticmethod(routing.exact_backward)


class Size(NamedTuple):
    """Constants of a call: chunk length, inner scale (with 1 / tau), router scale (with 1 / tau_r for
    approx).
    """

    C: int
    scale: float
    router_scale: float
    tau_r: float
    always: bool
    router_grad: str
    shared: bool


class ApproxRouter(torch.autograd.Function):
    """(q, summary, own score) -> chosen, rp."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        summary: Tensor,
        own: Tensor | None,
        first_chunk: Tensor,
        size: Size,
        parts: Parts,
        forced: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        route = parts.approx_forward(q, summary, own, first_chunk, size.C, size.router_scale, forced)
        ctx.save_for_backward(q, summary, own, first_chunk, *route)
        ctx.size, ctx.parts = size, parts
        ctx.mark_non_differentiable(route.chosen)
        return route.chosen, route.rp

    @staticmethod
    def backward(ctx: Any, _: Tensor, drp: Tensor) -> tuple[Tensor | None, ...]:
        q, summary, own, first_chunk, *route = ctx.saved_tensors
        size = ctx.size
        dq, dsummary, down = ctx.parts.approx_backward(
            drp, q, summary, own, first_chunk, Route(*route), size.C, size.router_scale
        )
        return dq, dsummary, down, None, None, None, None


class ExactRouter(torch.autograd.Function):
    """(q, k, own score) -> chosen, rp."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        own: Tensor | None,
        first_chunk: Tensor,
        size: Size,
        parts: Parts,
        forced: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        route = parts.exact_forward(
            q, k, own, first_chunk, size.C, size.router_scale, size.tau_r, size.shared, forced
        )
        ctx.save_for_backward(q, k, own, first_chunk, *route)
        ctx.size, ctx.parts = size, parts
        ctx.mark_non_differentiable(route.chosen)
        return route.chosen, route.rp

    @staticmethod
    def backward(ctx: Any, _: Tensor, drp: Tensor) -> tuple[Tensor | None, ...]:
        q, k, own, first_chunk, *route = ctx.saved_tensors
        size = ctx.size
        dq, dk, down = ctx.parts.exact_backward(
            drp, q, k, own, first_chunk, Route(*route), size.C, size.router_scale, size.tau_r, size.shared
        )
        return dq, dk, down, None, None, None, None


class ChunkAttention(torch.autograd.Function):
    """(q, k, v, rp) -> o. chosen int64 [B, H, L], -1 for the own chunk alone; rp [B, R, L] carries a gradient
    only.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, rp: Tensor, chosen: Tensor, size: Size, parts: Parts
    ) -> Tensor:
        o, lse = parts.attention_forward(q, k, v, chosen, size.C, size.scale, size.always)
        o = o.masked_fill(rp.isnan().transpose(1, 2).unsqueeze(-1), torch.nan)  # no choice between NaNs
        ctx.save_for_backward(q, k, v, rp, chosen, o, lse)
        ctx.size, ctx.parts = size, parts
        return o

    @staticmethod
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, rp, chosen, o, lse = ctx.saved_tensors
        size = ctx.size
        dq, dk, dv, part = ctx.parts.attention_backward(
            do, q, k, v, chosen, Attention(o, lse), size.C, size.scale, size.always
        )
        drp = None
        if size.router_grad != "none":
            drp = part.sum(1, keepdim=True) if rp.shape[1] < part.shape[1] else part
            drp = drp / rp if size.router_grad == "scaled" else drp
        return dq, dk, dv, drp, None, None, None
