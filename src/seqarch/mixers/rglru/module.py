"""Griffin's recurrent block and the RG-LRU (arXiv 2402.19427, section 2.4):

    u = conv4(W_x x + b_x);   r, i = sigmoid(block-diagonal maps of u)
    a = exp(-8 r softplus(Lambda));   h_t = a_t h_{t-1} + sqrt(1 - a_t²) (i_t u_t)
    y = W_out (h * gelu(W_y x + b_y)) + b_out

At the first token of a document nothing is carried over and the factor sqrt(1 - a²) is 1, as in
RecurrentGemma.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqarch.mixers.layer import Mixer as Layer
from seqarch.mixers.layer import ShortConvolution, State, no_weight_decay
from seqarch.mixers.rglru.config import Config
from seqarch.ops.diag_scan.op import diag_scan
from seqarch.ops.segments import starts

GATE_POWER = 8.0  # the paper's c
A_MIN, A_MAX = 0.9, 0.999
MAX_SLOPE = 1000.0


class Mixer(Layer):
    """State: `h` [B, R], `conv` [B, 3, R]."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = c = config
        self.projection = nn.Linear(c.d_model, (2 if c.gate else 1) * c.width)  # W_x | W_y
        self.conv = ShortConvolution(c.width, bias=True, silu=False) if c.conv else None
        blocks = c.width // c.block_width
        self.gates = nn.Parameter(torch.empty(c.n_gates, blocks, c.block_width, c.block_width))  # i, r
        self.input_bias = nn.Parameter(torch.empty(c.width))
        self.recurrence_bias = nn.Parameter(torch.empty(c.width)) if c.decay != "none" else None
        self.Lambda = no_weight_decay(nn.Parameter(torch.empty(c.width))) if c.decay != "none" else None
        self.output = nn.Linear(c.width, c.d_model)

    def init_weights(self) -> None:
        super().init_weights()
        nn.init.normal_(self.gates, std=self.config.block_width**-0.5)
        nn.init.zeros_(self.input_bias)
        if self.recurrence_bias is not None and self.Lambda is not None:
            nn.init.zeros_(self.recurrence_bias)
            with torch.no_grad():
                a = torch.empty_like(self.Lambda).uniform_(A_MIN**2, A_MAX**2).sqrt()
                self.Lambda.copy_((1 / a - 1).log())  # softplus(Lambda) = -log a

    def forward(
        self,
        x: Tensor,
        state: State | None = None,
        segment_ids: Tensor | None = None,
        positions: Tensor | None = None,
        shared: dict[str, Any] | None = None,
        return_state: bool = True,
    ) -> tuple[Tensor, State | None]:
        c, before = self.config, state or {}
        after: State = {}
        u, *branch = self.projection(x).split(c.width, dim=-1)
        if self.conv is not None:
            u, after["conv"] = self.conv(u, before.get("conv"), segment_ids)
        a, inputs = self._recurrence(u, _first_tokens(x, segment_ids, fresh="h" not in before))
        h, last = diag_scan(
            a, inputs, initial_state=before.get("h"), return_state=return_state, segment_ids=segment_ids
        )
        y = self.output(h * F.gelu(branch[0], approximate="tanh") if branch else h)
        return y, None if last is None else after | {"h": last}

    def _recurrence(self, u: Tensor, first: Tensor | None) -> tuple[Tensor, Tensor]:
        """Decays a and inputs [B, T, R]; `first` bool [B, T] marks the first tokens of documents."""
        blocks = u.unflatten(-1, self.gates.shape[1:3])  # [B, T, blocks, width]
        maps = torch.einsum("btni,gnij->gbtnj", blocks, self.gates).flatten(-2)
        inputs = torch.sigmoid(maps[0] + self.input_bias) * u
        if self.recurrence_bias is None or self.Lambda is None:
            return torch.ones_like(inputs), inputs
        logits = self.recurrence_bias.expand_as(u)
        r = torch.sigmoid(maps[1] + logits if self.config.decay == "data" else logits)
        log_a = -GATE_POWER * r * F.softplus(self.Lambda)
        factor = BoundedSqrt.apply(-torch.expm1(2 * log_a))
        if first is not None:
            factor = factor.masked_fill(first.unsqueeze(-1), 1)
        return log_a.exp(), factor * inputs


def _first_tokens(x: Tensor, segment_ids: Tensor | None, fresh: bool) -> Tensor | None:
    """bool [B, T]: True where a document starts; without a state (`fresh`) the first token also starts
    one.
    """
    if segment_ids is None and not fresh:
        return None
    if segment_ids is None:
        first = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
    else:
        first = starts(segment_ids)
    if fresh:
        first[:, 0] = True
    return first


class BoundedSqrt(torch.autograd.Function):
    """sqrt(x) whose slope is held at 1000, which it passes near 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        root = x.sqrt()
        ctx.save_for_backward(root)
        return root

    @staticmethod
    def backward(ctx: Any, d_root: Tensor) -> Tensor:
        (root,) = ctx.saved_tensors
        return d_root / (2 * root).clamp(min=1 / MAX_SLOPE)
