"""The elementwise linear recurrence h_t = a_t h_{t-1} + x_t in plain PyTorch.

Square-root decomposition: time is cut into N chunks of C positions. One loop over the positions scans all
chunks at once from zero and multiplies up the decay since the chunk's start; one loop over the chunks
carries the state; then every position adds (its decay) * (the state before its chunk). About 2 sqrt(T)
steps of Python for T of time, no division by running products (so their underflow to 0 is harmless),
nothing larger than the inputs.

The backward pass is the same scan from the end, d_t = dL/dh_t:

    d_t = dy_t + a_{t+1} d_{t+1} ;   dx_t = d_t ;   da_t = d_t h_{t-1} ;   dh_0 = a_1 d_1
"""

from typing import Any

import torch
from torch import Tensor

from seqarch.ops.common import pad_time, uncompiled

CHUNK_SIZE = 32


def diag_scan_recurrent(a: Tensor, x: Tensor, *, initial_state: Tensor | None = None) -> Tensor:
    """The recurrence, one step at a time: h [B, T, ...]. For decoding and as an oracle."""
    h = torch.zeros_like(x[:, 0]) if initial_state is None else initial_state
    outputs = []
    for a_t, x_t in zip(a.unbind(1), x.unbind(1), strict=True):
        h = a_t * h + x_t
        outputs.append(h)
    return torch.stack(outputs, 1)


class DiagScan(torch.autograd.Function):
    """(a, x, initial_state, chunk_size) -> h, all [B, T, D] (initial state [B, D])."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, x: Tensor, initial_state: Tensor | None, chunk_size: int) -> Tensor:
        h = _scan(a, x, initial_state, chunk_size)
        ctx.save_for_backward(a, h, initial_state)
        ctx.chunk_size = chunk_size
        return h

    @staticmethod
    def backward(ctx: Any, dh: Tensor) -> tuple[Tensor | None, ...]:
        a, h, initial_state = ctx.saved_tensors
        following = torch.cat([a[:, 1:], torch.zeros_like(a[:, :1])], dim=1)  # a_{t+1}
        d = _scan(following, dh, None, ctx.chunk_size, reverse=True)
        da = torch.empty_like(a)
        torch.mul(d[:, 1:], h[:, :-1], out=da[:, 1:])
        if initial_state is None:
            da[:, 0] = 0
            return da, d, None, None
        torch.mul(d[:, 0], initial_state, out=da[:, 0])
        return da, d, a[:, 0] * d[:, 0], None


@uncompiled
def diag_scan_chunked(a: Tensor, x: Tensor, initial_state: Tensor | None, chunk_size: int) -> Tensor:
    """h [B, T, D] of the recurrence, a and x alike, initial state [B, D]."""
    return DiagScan.apply(a, x, initial_state, chunk_size)


def _scan(a: Tensor, x: Tensor, state: Tensor | None, chunk_size: int, reverse: bool = False) -> Tensor:
    """h_t = a_t h_{t-1} + x_t from `state` (None: zero); reverse: h_t = a_t h_{t+1} + x_t from zero at the
    end.
    """
    T = x.shape[1]
    C = min(chunk_size, T)
    # padded with a = 1, x = 0; [B, N, C, D], in memory that is ours to write to
    h = torch.cat([x, x.new_zeros(x.shape[0], -T % C, x.shape[2])], dim=1).unflatten(1, (-1, C))
    a = pad_time(a, C, value=1.0).unflatten(1, (-1, C))
    decay = torch.empty_like(h)  # from the side where the chunk is entered, through this position
    # one view a position, made once: indexing inside the loop would cost as much as short rows' arithmetic
    order = slice(None, None, -1) if reverse else slice(None)
    h_at, a_at, decay_at = h.unbind(2)[order], a.unbind(2)[order], decay.unbind(2)[order]
    decay_at[0].copy_(a_at[0])
    for i in range(1, C):
        h_at[i].addcmul_(a_at[i], h_at[i - 1])
        torch.mul(a_at[i], decay_at[i - 1], out=decay_at[i])

    entering = torch.empty_like(h_at[0])  # the state before each chunk [B, N, D]
    carry = torch.zeros_like(entering[:, 0]) if state is None else state
    chunks = zip(entering.unbind(1), h_at[-1].unbind(1), decay_at[-1].unbind(1), strict=True)
    for entering_n, end_n, decay_n in list(chunks)[order]:
        entering_n.copy_(carry)
        carry = torch.addcmul(end_n, decay_n, carry)
    return h.addcmul_(decay, entering.unsqueeze(2)).flatten(1, 2)[:, :T]
