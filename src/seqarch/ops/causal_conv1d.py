"""Short depthwise causal convolution and the token shift, its width-2 relative."""

import torch
import torch.nn.functional as F
from torch import Tensor

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
    W, T = weight.shape[0], x.shape[1]
    if initial_state is None:
        padded = F.pad(x, (0, 0, W - 1, 0))
    else:
        padded = torch.cat([initial_state.to(x.dtype), x], dim=1)
    if segment_ids is None:
        y = padded[:, W - 1 :] * weight[0]
        for i in range(1, W):
            y = torch.addcmul(y, padded[:, W - 1 - i : W - 1 - i + T], weight[i])
        state = padded[:, T:]
        return (y if bias is None else y + bias), state
    # an initial state belongs to the first document
    ids = torch.cat([segment_ids[:, :1].expand(-1, W - 1), segment_ids], dim=1)
    y = x * weight[0]
    for i in range(1, W):
        window = slice(W - 1 - i, W - 1 - i + T)
        same = (ids[:, window] == segment_ids).unsqueeze(-1)
        y = torch.addcmul(y, padded[:, window] * same, weight[i])
    state = padded[:, T:] * in_last_document(ids)[:, T:].unsqueeze(-1)
    return (y if bias is None else y + bias), state


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
