"""The retention layer: o = norm(retention(rope(q), rope(k), v)) * silu(gate), decay 1 - 2^(-5-h) in head
h.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqarch.mixers.layer import Mixer as Layer
from seqarch.mixers.layer import ShortConvolution, State, head_norm, split_heads, turn
from seqarch.mixers.retnet.config import Config
from seqarch.ops.linear_attention.op import linear_attention


class Mixer(Layer):
    """State: `S` [B, H, K, V], `position` [B] the next token's place, `conv` the convolution's last
    inputs.
    """

    log_decay: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = config
        gate = config.value_width if config.gate else 0
        self.projection = nn.Linear(config.d_model, config.qkv_width + gate, bias=False)  # q, k, v, gate
        self.conv = ShortConvolution(config.qkv_width) if config.conv else None
        self.norm = head_norm(config.value_dim, config.out_norm)
        self.output = nn.Linear(config.value_width, config.d_model, bias=False)
        decays = [math.log1p(-(2.0 ** (-5 - h))) for h in range(config.n_heads)]
        self.register_buffer("log_decay", torch.tensor(decays), persistent=False)

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
        qkv, gate = self.projection(x).tensor_split([c.qkv_width], dim=-1)
        if self.conv is not None:
            qkv, after["conv"] = self.conv(qkv, before.get("conv"), segment_ids)
        qk, v = qkv.split([2 * c.n_heads * c.key_dim, c.value_width], dim=-1)
        qk, v = split_heads(qk, 2 * c.n_heads), split_heads(v, c.n_heads)
        if c.position == "rope":
            qk = turn(qk, before, after, segment_ids, positions, shared)
        q, k = qk.chunk(2, dim=2)
        o, S = linear_attention(
            q,
            k,
            v,
            self.log_decay,
            initial_state=before.get("S"),
            return_state=return_state,
            segment_ids=segment_ids,
        )
        o = self.norm(o).flatten(2)
        y = self.output(o * F.silu(gate) if c.gate else o)
        return y, None if S is None else after | {"S": S}
