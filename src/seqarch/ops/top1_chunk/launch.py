"""Top-1 chunk selection on the kernels. Import it only where Triton is."""

from torch import Tensor

from seqarch.ops.top1_chunk.attention_launch import attention_backward, attention_forward
from seqarch.ops.top1_chunk.grouped import Attention, Gradients
from seqarch.ops.top1_chunk.router_launch import (
    approx_backward,
    approx_forward,
    exact_backward,
    exact_forward,
)
from seqarch.ops.top1_chunk.routing import Route, own_chunk_gradient


class Kernels:
    """The Triton backend, as `functions.Parts` wants it."""

    def attention_forward(
        self, q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, C: int, scale: float, always: bool
    ) -> Attention:
        return Attention(*attention_forward(q, k, v, chosen, C, scale, always))

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
    ) -> Gradients:
        return Gradients(*attention_backward(do, q, k, v, chosen, forward.o, forward.lse, C, scale, always))

    def approx_forward(
        self,
        q: Tensor,
        summary: Tensor,
        own: Tensor | None,
        first_chunk: Tensor,
        C: int,
        scale: float,
        forced: Tensor | None,
    ) -> Route:
        return Route(*approx_forward(q, summary, own, first_chunk, C, scale, forced))

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
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        t = (route.rp * drp).masked_fill(route.chosen < 0, 0)
        dq, dsummary = approx_backward(t, q, summary, first_chunk, route.chosen, route.lse, C, scale)
        return dq, dsummary, own_chunk_gradient(own, t, route, C, first_chunk.shape[1])

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
    ) -> Route:
        return Route(*exact_forward(q, k, own, first_chunk, C, scale, tau_r, forced))

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
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        t = (route.rp * drp).masked_fill(route.chosen < 0, 0)
        dq, dk = exact_backward(t, q, k, first_chunk, route.chosen, route.lse, C, scale, tau_r)
        return dq, dk, own_chunk_gradient(own, t, route, C, first_chunk.shape[1])
