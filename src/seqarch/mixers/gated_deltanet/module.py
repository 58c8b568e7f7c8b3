"""The Gated DeltaNet layer: DeltaNet with log decay -exp(A_log) softplus(W_a x + dt_bias) and an output
gate.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqarch.mixers.gated_deltanet.config import Config
from seqarch.mixers.layer import Mixer as Layer
from seqarch.mixers.layer import (
    ShortConvolution,
    State,
    head_norm,
    no_weight_decay,
    split_heads,
    turn,
)
from seqarch.mixers.step_size import init_dt_bias
from seqarch.ops.delta_rule.op import delta_rule
from seqarch.ops.l2norm import l2norm

MAX_A = 16.0


class Mixer(Layer):
    """State: `S` [B, H, K, V], `conv` [B, 3, channels of q, k, v]; `position` [B] with rotation."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = config
        self.widths = [config.qkv_width, config.gate_width, config.scalars]
        self.projection = nn.Linear(config.d_model, sum(self.widths), bias=False)  # q, k, v | gate | beta, dt
        self.conv = ShortConvolution(config.qkv_width) if config.conv else None
        self.A_log = self.dt_bias = None
        if config.decay != "none":
            self.A_log = no_weight_decay(nn.Parameter(torch.empty(config.n_heads)))
            self.dt_bias = no_weight_decay(nn.Parameter(torch.empty(config.n_heads)))
        self.norm = head_norm(config.value_dim, config.out_norm)
        self.output = nn.Linear(config.value_width, config.d_model, bias=False)

    def init_weights(self) -> None:
        super().init_weights()
        if self.A_log is not None and self.dt_bias is not None:
            with torch.no_grad():
                uniform = torch.rand_like(self.A_log)  # [0, 1), hence 1 - uniform in (0, 1]
                self.A_log.copy_((MAX_A * (1 - uniform)).log())
                init_dt_bias(self.dt_bias)

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
        qkv, gate, scalars = self.projection(x).split(self.widths, dim=-1)
        if self.conv is None:
            qkv = F.silu(qkv)
        else:
            qkv, after["conv"] = self.conv(qkv, before.get("conv"), segment_ids)
        qk, v = qkv.split([2 * c.key_width, c.value_width], dim=-1)
        qk, v = l2norm(split_heads(qk, 2 * c.n_heads)), split_heads(v, c.n_heads)
        if c.position == "rope":
            qk = turn(qk, before, after, segment_ids, positions, shared)
        q, k = qk.chunk(2, dim=2)
        beta = torch.sigmoid(scalars[..., : c.n_heads]) * (2 if c.neg_eigval else 1)
        o, S = delta_rule(
            q,
            k,
            v,
            beta,
            self._log_decay(scalars[..., c.n_heads :], beta),
            initial_state=before.get("S"),
            return_state=return_state,
            segment_ids=segment_ids,
        )
        o = self.norm(o).flatten(2)
        y = self.output(o * F.silu(gate) if c.gate else o)
        return y, None if S is None else after | {"S": S}

    def _log_decay(self, dt: Tensor, like: Tensor) -> Tensor | None:
        """[B, T, H], or None without decay."""
        if self.A_log is None or self.dt_bias is None:
            return None
        step = F.softplus(dt + self.dt_bias if self.config.decay == "data" else self.dt_bias)
        return (-self.A_log.exp() * step).expand_as(like)
