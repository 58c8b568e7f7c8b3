"""The gated linear attention layer: log decay logsigmoid(W2 W1 x + b) / 16 for each head and key channel."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqarch.mixers.gla.config import Config
from seqarch.mixers.layer import Mixer as Layer
from seqarch.mixers.layer import ShortConvolution, State, head_norm, split_heads, turn
from seqarch.ops.linear_attention.op import linear_attention

DECAY_TEMPERATURE = 16.0  # the paper's tau: decays start near 1


class Mixer(Layer):
    """State: `S` [B, H, K, V]; `position` [B] with rotation; `conv` with a convolution."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = config
        self.widths = [config.qkv_width, config.gate_width, config.low_rank]
        self.projection = nn.Linear(config.d_model, sum(self.widths), bias=False)  # q, k, v | gate | W1
        self.conv = ShortConvolution(config.qkv_width) if config.conv else None
        self.decay_up = nn.Linear(config.low_rank, config.key_width, bias=False) if config.low_rank else None
        self.decay_bias = nn.Parameter(torch.zeros(config.key_width)) if config.decay != "none" else None
        self.norm = head_norm(config.value_dim, config.out_norm)
        self.output = nn.Linear(config.value_width, config.d_model, bias=False)

    def init_weights(self) -> None:
        super().init_weights()
        if self.decay_bias is not None:
            nn.init.zeros_(self.decay_bias)

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
        qkv, gate, low_rank = self.projection(x).split(self.widths, dim=-1)
        if self.conv is not None:
            qkv, after["conv"] = self.conv(qkv, before.get("conv"), segment_ids)
        qk, v = qkv.split([2 * c.key_width, c.value_width], dim=-1)
        qk, v = split_heads(qk, 2 * c.n_heads), split_heads(v, c.n_heads)
        if c.position == "rope":
            qk = turn(qk, before, after, segment_ids, positions, shared)
        q, k = qk.chunk(2, dim=2)
        o, S = linear_attention(
            q,
            k,
            v,
            self._log_decay(low_rank),
            initial_state=before.get("S"),
            return_state=return_state,
            segment_ids=segment_ids,
        )
        o = self.norm(o).flatten(2)
        y = self.output(o * F.silu(gate) if c.gate else o)
        return y, None if S is None else after | {"S": S}

    def _log_decay(self, low_rank: Tensor) -> Tensor | None:
        """[B, T, H, K] from the data, [H, K] static, or None."""
        if self.decay_bias is None:
            return None
        logits: Tensor = self.decay_bias
        if self.decay_up is not None:
            logits = F.linear(low_rank, self.decay_up.weight, self.decay_bias)
        return split_heads(F.logsigmoid(logits) / DECAY_TEMPERATURE, self.config.n_heads)
