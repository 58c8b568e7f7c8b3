"""The DeltaNet layer: q, k, v = silu(conv4(W x)), q and k of unit length, step size beta = sigmoid(W_b x)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqarch.mixers.deltanet.config import Config
from seqarch.mixers.layer import Mixer as Layer
from seqarch.mixers.layer import ShortConvolution, State, head_norm, split_heads, turn
from seqarch.ops.delta_rule.op import delta_rule
from seqarch.ops.l2norm import l2norm


class Mixer(Layer):
    """State: `S` [B, H, K, V], `conv` [B, 3, 3 H K]; `position` [B] with rotation."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = config
        self.widths = [3 * config.width, config.n_heads]
        self.projection = nn.Linear(config.d_model, sum(self.widths), bias=False)  # q, k, v | beta
        self.conv = ShortConvolution(3 * config.width) if config.conv else None
        self.norm = head_norm(config.head_dim, config.out_norm)
        self.output = nn.Linear(config.width, config.d_model, bias=False)

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
        qkv, beta = self.projection(x).split(self.widths, dim=-1)
        if self.conv is None:
            qkv = F.silu(qkv)
        else:
            qkv, after["conv"] = self.conv(qkv, before.get("conv"), segment_ids)
        heads = split_heads(qkv, 3 * c.n_heads)
        qk, v = l2norm(heads[:, :, : 2 * c.n_heads]), heads[:, :, 2 * c.n_heads :]
        if c.position == "rope":
            qk = turn(qk, before, after, segment_ids, positions, shared)
        q, k = qk.chunk(2, dim=2)
        o, S = delta_rule(
            q,
            k,
            v,
            torch.sigmoid(beta) * (2 if c.neg_eigval else 1),
            initial_state=before.get("S"),
            return_state=return_state,
            segment_ids=segment_ids,
        )
        y = self.output(self.norm(o).flatten(2))
        return y, None if S is None else after | {"S": S}
