"""Short depthwise causal convolution and the token shift, its width-2 relative."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from seqarch.ops.segments import in_last_document


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    initial_state: Tensor | None = None,
    segment_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """y_t = bias + sum_{i < W} weight_i * x_{t-i}, per channel.

    Written as W shifted multiply-adds: faster on a CPU than grouped conv1d, and a tap that crosses a document
    boundary simply reads 0.

    Args:
        x: [B, T, D].
        weight: [W, D]; weight[i] multiplies the input i steps ago.
        bias: [D].
        initial_state: [B, W-1, D], the inputs before x, oldest first; None: zeros.
        segment_ids: int [B, T].

    Returns: y [B, T, D] and the last W-1 inputs (zeros where they belong to an earlier document) [B, W-1, D].
    """
    if x.shape[1] == 0:
        raise ValueError("causal_conv1d: expected at least one time step, got T = 0")
    W, T = weight.shape[0], x.shape[1]
    if initial_state is None:
        padded = F.pad(x, (0, 0, W - 1, 0))
    else:
        padded = torch.cat([initial_state.to(x.dtype), x], dim=1)
    ids = None
    if segment_ids is not None:  # an initial state belongs to the first document
        ids = torch.cat([segment_ids[:, :1].expand(-1, W - 1), segment_ids], dim=1)
    if T == 1 and ids is None and not torch.is_grad_enabled():  # decoding: fewer, smaller operations
        y = (padded * weight.flip(0)).sum(1, keepdim=True)
    else:
        y = _ShiftedSum.apply(padded, weight, ids)
    state = padded[:, T:]
    if ids is not None:
        state = state * in_last_document(ids)[:, T:].unsqueeze(-1)
    return (y if bias is None else y + bias), state


class _ShiftedSum(torch.autograd.Function):
    """y_t = sum_i weight_i x_{t+W-1-i} * [same document], x [B, W-1+T, D]. Own backward: that of slicing
    would fill a tensor of x's size for every tap."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, ids: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight, ids)
        W = weight.shape[0]
        y = x[:, W - 1 :] * weight[0]
        for i in range(1, W):
            y.addcmul_(_tap(x, i, W), _visible(weight[i], ids, i, W))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, ids = ctx.saved_tensors
        W = weight.shape[0]
        dx, dw = torch.zeros_like(x), []
        for i in range(W):
            _tap(dx, i, W).addcmul_(dy, _visible(weight[i], ids, i, W))
            product = dy * _tap(x, i, W)
            dw.append((product if ids is None else product * _visible(None, ids, i, W)).sum((0, 1)))
        return dx, torch.stack(dw), None


def _tap(x: Tensor, i: int, W: int) -> Tensor:
    """The inputs i steps before each output: a view [B, T, D] of [B, W-1+T, D]."""
    return x[:, W - 1 - i : x.shape[1] - i]


def _visible(weight: Tensor | None, ids: Tensor | None, i: int, W: int) -> Tensor:
    """The weight [D] of tap i, set to 0 where the tap lies in another document ([B, T, D], or [B, T, 1]
    without weight).
    """
    if ids is None:
        assert weight is not None
        return weight
    same = (ids[:, W - 1 - i : ids.shape[1] - i] == ids[:, W - 1 :]).unsqueeze(-1)
    return same if weight is None else weight * same


def token_shift(
    x: Tensor, *, initial_state: Tensor | None = None, segment_ids: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The previous token's x [B, T, D] (0 at the start of a document), and the last x [B, 1, D] as state."""
    first = x.new_zeros(x.shape[0], 1, x.shape[2]) if initial_state is None else initial_state.to(x.dtype)
    previous = torch.cat([first, x[:, :-1]], dim=1)
    if segment_ids is not None:
        crossing = F.pad(segment_ids[:, 1:] != segment_ids[:, :-1], (1, 0), value=False)
        previous = previous.masked_fill(crossing.unsqueeze(-1), 0)
    return previous, x[:, -1:]
