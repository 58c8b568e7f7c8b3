"""The selective scan's Triton kernels as a custom op, with its gradient. Imports triton."""

import os
from typing import Any

import torch
import triton
from torch import Tensor

from seqarch.ops.selective_scan.kernels import selective_scan_backward, selective_scan_forward

BT = 16  # steps of a tile
TILE = 256  # channels times states of a program: a tile [BT, BD, S] has to fit in the registers
WARPS = 8
MAX_STATES = 64


def unsupported(u: Tensor, A: Tensor) -> str | None:
    """Why the kernels can't serve this call, or None if they can."""
    if u.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"the kernels need a GPU, the inputs are on {u.device.type}"
    if u.dtype == torch.float64:
        return "float64 is for the reference"
    if A.shape[1] > MAX_STATES:
        return f"{A.shape[1]} states a channel are more than {MAX_STATES}"
    return None


def blocking(S: int) -> dict[str, int]:
    """Steps, channels and (padded) states of a program's tile."""
    BS = triton.next_power_of_2(S)
    return {"BT": BT, "BD": max(1, TILE // BS), "BS": BS}


def selective_scan_triton(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    initial_state: Tensor | None,
    starts: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """y [B, T, D] in u's dtype and the final state [B, D, S] float32; shapes as in `selective_scan`."""
    keep = None if starts is None else (~starts).float()
    y, final, _ = _forward(u, delta, A, B, C, initial_state, keep)
    return y, final


@torch.library.custom_op("seqarch::selective_scan", mutates_args=())
def _forward(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    initial_state: Tensor | None,
    keep: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """y, the final state, and the state before each tile [B, tiles, D, S]."""
    u, delta, A, B, C = (x.contiguous() for x in (u, delta, A, B, C))
    batch, T, D = u.shape
    S = A.shape[1]
    tile = blocking(S)
    y, final, tiles = _forward_outputs(u, A)
    selective_scan_forward[(batch * triton.cdiv(D, tile["BD"]),)](
        u,
        delta,
        A,
        B,
        C,
        u if keep is None else keep.contiguous(),
        u if initial_state is None else initial_state.contiguous(),
        y,
        tiles,
        final,
        T,
        D=D,
        S=S,
        **tile,
        HAS_INITIAL=initial_state is not None,
        HAS_KEEP=keep is not None,
        num_warps=WARPS,
    )
    return y, final, tiles


def _forward_outputs(u: Tensor, A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    batch, T, D = u.shape
    S, wide = A.shape[1], torch.float32
    return (
        torch.empty_like(u, memory_format=torch.contiguous_format),
        u.new_empty(batch, D, S, dtype=wide),
        u.new_empty(batch, -(-T // BT), D, S, dtype=wide),
    )


@_forward.register_fake
def _(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    initial_state: Tensor | None,
    keep: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    return _forward_outputs(u, A)


@torch.library.custom_op("seqarch::selective_scan_backward", mutates_args=())
def _backward(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    keep: Tensor | None,
    tiles: Tensor,
    dy: Tensor,
    d_final: Tensor,
) -> list[Tensor]:
    """du, d_delta, dA, dB, dC, d_initial."""
    u, delta, A, B, C, dy, d_final = (x.contiguous() for x in (u, delta, A, B, C, dy, d_final))
    batch, T, D = u.shape
    S = A.shape[1]
    tile = blocking(S)
    blocks = triton.cdiv(D, tile["BD"])
    du, d_delta = torch.empty_like(u), torch.empty_like(delta)
    dA, d_initial = torch.empty_like(d_final), torch.empty_like(d_final)
    dB, dC = u.new_empty(2, blocks, batch, T, S, dtype=torch.float32).unbind(0)
    selective_scan_backward[(batch * blocks,)](
        u,
        delta,
        A,
        B,
        C,
        u if keep is None else keep.contiguous(),
        tiles,
        dy,
        d_final,
        du,
        d_delta,
        dA,
        dB,
        dC,
        d_initial,
        T,
        D=D,
        S=S,
        **tile,
        HAS_KEEP=keep is not None,
        num_warps=WARPS,
    )
    return [du, d_delta, dA.sum(0).to(A.dtype), dB.sum(0).to(B.dtype), dC.sum(0).to(C.dtype), d_initial]


@_backward.register_fake
def _(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    keep: Tensor | None,
    tiles: Tensor,
    dy: Tensor,
    d_final: Tensor,
) -> list[Tensor]:
    return [torch.empty_like(x) for x in (u, delta, A, B, C, d_final)]


def _save(ctx: Any, inputs: tuple[Tensor | None, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    u, delta, A, B, C, initial_state, keep = inputs
    ctx.save_for_backward(u, delta, A, B, C, keep, output[2])
    ctx.has_initial_state = initial_state is not None


def _gradients(ctx: Any, dy: Tensor, d_final: Tensor, _d_tiles: Tensor) -> tuple[Tensor | None, ...]:
    u, delta, A, B, C, keep, tiles = ctx.saved_tensors
    *grads, d_initial = _backward(u, delta, A, B, C, keep, tiles, dy, d_final)
    return (*grads, d_initial if ctx.has_initial_state else None, None)


_forward.register_autograd(_gradients, setup_context=_save)
