"""The Mamba-2 layer: linear attention with q = C, k = B, v = dt x and log decay -exp(A_log) dt.

    [z, x, B, C, dt] = W_in u;  [x, B, C] = silu(conv4([x, B, C]));  dt = softplus(dt + dt_bias)
    y = W_out RMSNorm((SSD(C, B, dt x, -exp(A_log) dt) + D x) * silu(z))

Initial A: uniform in [1, 16], as published (transformers starts from A = 1..H instead).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqarch.mixers.layer import Mixer as Layer
from seqarch.mixers.layer import RMSNorm, ShortConvolution, State, no_weight_decay, split_heads, turn
from seqarch.mixers.mamba2.config import Config
from seqarch.mixers.step_size import init_dt_bias
from seqarch.ops.linear_attention.op import linear_attention


class Mixer(Layer):
    """State: `S` [B, H, N, P], `conv` [B, 3, channels]."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = config
        self.widths = [config.inner if config.gate else 0, config.conv_channels, config.n_heads]
        self.projection = nn.Linear(config.d_model, sum(self.widths), bias=False)  # z | x, B, C | dt
        self.conv = ShortConvolution(config.conv_channels, bias=True) if config.conv else None
        self.dt_bias = no_weight_decay(nn.Parameter(torch.empty(config.n_heads)))
        self.A_log = None
        if config.decay != "none":
            self.A_log = no_weight_decay(nn.Parameter(torch.empty(config.n_heads)))
        self.D = no_weight_decay(nn.Parameter(torch.ones(config.n_heads)))
        self.norm = RMSNorm(config.inner) if config.out_norm else nn.Identity()
        self.output = nn.Linear(config.inner, config.d_model, bias=False)

    def init_weights(self) -> None:
        super().init_weights()
        with torch.no_grad():
            init_dt_bias(self.dt_bias)
            if self.A_log is not None:
                self.A_log.copy_(torch.empty_like(self.A_log).uniform_(1, 16).log())
            self.D.fill_(1)

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
        z, xBC, dt = self.projection(x).split(self.widths, dim=-1)
        if self.conv is None:
            xBC = F.silu(xBC)
        else:
            xBC, after["conv"] = self.conv(xBC, before.get("conv"), segment_ids)
        u, BC = xBC.split([c.inner, 2 * c.d_state], dim=-1)
        u, BC = split_heads(u, c.n_heads), split_heads(BC, 2)  # [B, T, H, P], [B, T, 2, N]
        if c.position == "rope":
            BC = turn(BC, before, after, segment_ids, positions, shared)
        B, C = BC.split(1, dim=2)
        dt = F.softplus(dt + self.dt_bias)  # [B, T, H]
        o, S = linear_attention(
            C,
            B,
            u * dt.unsqueeze(-1),
            self._log_decay(dt),
            scale=1.0,
            initial_state=before.get("S"),
            return_state=return_state,
            segment_ids=segment_ids,
        )
        y = torch.addcmul(o, u, self.D.unsqueeze(-1)).flatten(2)
        y = self.output(self.norm(y * F.silu(z) if c.gate else y))
        return y, None if S is None else after | {"S": S}

    def _log_decay(self, dt: Tensor) -> Tensor | None:
        """-exp(A_log) dt [B, T, H], the same with the bias's step size [H], or None."""
        if self.A_log is None:
            return None
        return -self.A_log.exp() * (dt if self.config.decay == "data" else F.softplus(self.dt_bias))
