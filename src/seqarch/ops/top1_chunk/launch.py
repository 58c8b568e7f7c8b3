"""Top-1 chunk selection on the kernels: schedule, launches, block sizes. Import it only where Triton is.

Signatures and results are those of `grouped` and `routing`. The fakes tell torch.compile the shapes.
"""

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from seqarch.ops.top1_chunk import kernels, router_kernels
from seqarch.ops.top1_chunk.grouped import Attention, Gradients
from seqarch.ops.top1_chunk.routing import Route, own_chunk_gradient


def block_sizes(dtype: torch.dtype, width: int, C: int) -> dict[str, int]:
    """Tile of queries and of keys (both divide C), warps, pipeline stages, for heads of `width` channels.

    A chunk is streamed through tiles of keys: 128 keys and values of 256 channels would not fit the shared
    memory at once. The compile test holds that these do.
    """
    if dtype == torch.float32:
        warps = 8 if width > 64 else 4
        return {"BLOCK_M": min(32, C), "BLOCK_N": min(32, C), "num_warps": warps, "num_stages": 1}
    M, N = (64, 32) if width == 256 else (64, 64)
    return {
        "BLOCK_M": min(M, C),
        "BLOCK_N": min(N, C),
        "num_warps": 8 if width == 256 else 4,
        "num_stages": 2,
    }


class Schedule(NamedTuple):
    """The chosen stream of each head: `order` [B H, L] lists its queries by chunk (those with none last),
    `offsets` [B H, N + 1] where each chunk's begin, `tile_chunk`, `tile_start` [B H, tiles] cut the lists
    into tiles; unused tiles have chunk N. Sizes do not depend on the data, so that nothing waits for the
    device. All int32.
    """

    order: Tensor
    offsets: Tensor
    tile_chunk: Tensor
    tile_start: Tensor


def schedule(chosen: Tensor, n_chunks: int, M: int) -> Schedule:
    """Stable counting sort of chosen [B, H, L] (-1: none), deterministic."""
    flat = chosen.flatten(0, 1)
    keys, order = torch.where(flat < 0, n_chunks, flat).sort(dim=1, stable=True)
    bounds = torch.arange(n_chunks + 1, device=flat.device, dtype=keys.dtype).expand(flat.shape[0], -1)
    offsets = torch.searchsorted(keys, bounds.contiguous())
    tiles = (offsets.diff(dim=1) + M - 1) // M
    end = tiles.cumsum(1)
    tile = (
        torch.arange(flat.shape[1] // M + n_chunks, device=flat.device).expand(flat.shape[0], -1).contiguous()
    )
    chunk = torch.searchsorted(end, tile, right=True)
    inside = chunk.clamp(max=n_chunks - 1)
    start = offsets.gather(1, inside) + (tile - (end - tiles).gather(1, inside)) * M
    return Schedule(*(x.int().contiguous() for x in (order, offsets, chunk, start)))


def _rows(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors whose channels lie side by side."""
    return tuple(x if x.stride(-1) == 1 else x.contiguous() for x in tensors)


def _strides(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(stride for x in tensors for stride in x.stride()[:3])


def _attention_constants(q: Tensor, v: Tensor, C: int) -> dict[str, int]:
    K, V = q.shape[3], v.shape[3]
    widths = {"BLOCK_K": triton.next_power_of_2(K), "BLOCK_V": triton.next_power_of_2(V)}
    return {"C": C, "K": K, "V": V, **widths, **block_sizes(q.dtype, max(widths.values()), C)}


def _router_constants(q: Tensor, C: int) -> dict[str, int]:
    width = triton.next_power_of_2(q.shape[3])
    return {"C": C, "K": q.shape[3], "BLOCK_K": width, **block_sizes(q.dtype, width, C)}


# --- attention ----------------------------------------------------------------------------------------


@torch.library.custom_op("seqarch::top1_chunk_attention_forward", mutates_args=())
def attention_forward(
    q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, C: int, scale: float, always: bool
) -> tuple[Tensor, Tensor]:
    """o [B, L, H, V] in v's dtype, lse [B, H, L]."""
    q, k, v = _rows(q, k, v)
    (B, L, H, _), N = q.shape, k.shape[1] // C
    o = torch.empty(B, L, H, v.shape[3], dtype=torch.float32, device=q.device)  # merged before it is rounded
    lse = torch.empty(B, H, L, dtype=torch.float32, device=q.device)
    constants = _attention_constants(q, v, C)
    kernels.local_forward[(B * H, L // constants["BLOCK_M"])](
        q, k, v, o, lse, *_strides(q, k, v), H, L, N * C - L, scale, **constants
    )
    plan = schedule(chosen, N, constants["BLOCK_M"])
    n_tiles = plan.tile_chunk.shape[1]
    kernels.chosen_forward[(B * H, n_tiles)](
        q, k, v, o, lse, *plan, *_strides(q, k, v), H, L, N, n_tiles, scale, **constants, ALWAYS=always
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
    do, q, k, v = _rows(do, q, k, v)
    (B, L, H, _), N = q.shape, k.shape[1] // C
    delta = (do.float() * o.float()).sum(-1).transpose(1, 2).contiguous()  # [B, H, L]
    dq = torch.empty(q.shape, dtype=torch.float32, device=q.device)
    dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (k, v))
    part = torch.zeros_like(delta)
    constants = _attention_constants(q, v, C)
    plan = schedule(chosen, N, constants["BLOCK_M"])
    n_tiles = plan.tile_chunk.shape[1]
    chosen = chosen.int().contiguous()
    inputs, strides = (q, k, v, do, lse, delta), _strides(q, k, v, do)
    kernels.local_backward_queries[(B * H, L // constants["BLOCK_M"])](
        *inputs, chosen, dq, *strides, H, L, N * C - L, scale, **constants, ALWAYS=always
    )
    kernels.chosen_backward_queries[(B * H, n_tiles)](
        *inputs, dq, part, *plan, *strides, H, L, N, n_tiles, scale, **constants
    )
    kernels.backward_keys[(B * H, N * C // constants["BLOCK_N"])](
        *(*inputs, chosen, plan.order, plan.offsets, dk, dv),
        *(*strides, H, L, N, N * C - L, scale),
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


# --- router -------------------------------------------------------------------------------------------


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
    q, summary = _rows(q, summary.to(q.dtype))
    (B, L, R, _), N = q.shape, first_chunk.shape[1]
    chosen, lse, rp = _route_outputs(q, R)
    own = None if own is None else own.float().contiguous()
    forced = None if forced is None else forced.int().contiguous()
    constants = _router_constants(q, C)
    router_kernels.approx_forward[(B * R, L // constants["BLOCK_M"])](
        *(q, summary, lse if own is None else own, first_chunk, chosen if forced is None else forced),
        *(chosen, lse, rp),
        *(*_strides(q, summary), R, L, N, N - L // C, scale),
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
    q, chunks = _rows(q, summary.to(q.dtype))
    (B, L, R, _), N = q.shape, first_chunk.shape[1]
    dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    dsummary = torch.empty(summary.shape, dtype=summary.dtype, device=q.device)
    inputs = (q, chunks, first_chunk, chosen.int().contiguous(), lse, t.float().contiguous())
    scalars = (*_strides(q, chunks), R, L, N, N - L // C, scale)
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
    q, k = _rows(q, k)
    (B, L, H, _), N = q.shape, first_chunk.shape[1]
    chosen, lse, rp = _route_outputs(q, H)
    own = None if own is None else own.float().contiguous()
    forced = None if forced is None else forced.int().contiguous()
    constants = _router_constants(q, C)
    router_kernels.exact_forward[(B * H, L // constants["BLOCK_M"])](
        *(q, k, lse if own is None else own, first_chunk, chosen if forced is None else forced),
        *(chosen, lse, rp),
        *(*_strides(q, k), H, L, N, N - L // C, scale, 1 / tau_r),
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
    q, k = _rows(q, k)
    (B, L, H, _), N = q.shape, first_chunk.shape[1]
    dq, dk = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k))
    inputs = (q, k, first_chunk, chosen.int().contiguous(), lse, t.float().contiguous())
    scalars = (*_strides(q, k), H, L, N, N - L // C, scale, 1 / tau_r)
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
