"""The linear attention layer: o = norm(sum_j <phi(q_i), phi(k_j)> v_j / sum_j <phi(q_i), phi(k_j)>)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqarch.mixers.layer import Mixer as Layer
from seqarch.mixers.layer import ShortConvolution, State, head_norm, split_heads, turn
from seqarch.mixers.linear_attention.config import Config
from seqarch.ops.linear_attention.op import linear_attention

NORMALIZER_EPS = 1e-6


class Mixer(Layer):
    """State: `S` [B, H, K', V], with one more column, the sum of the keys, if normalised; `position`,
    `conv`.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = config
        self.projection = nn.Linear(config.d_model, config.qkv_width, bias=False)
        self.conv = ShortConvolution(config.qkv_width) if config.conv else None
        self.norm = head_norm(config.value_dim, config.out_norm)
        self.output = nn.Linear(config.value_width, config.d_model, bias=False)

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
        qkv = self.projection(x)
        if self.conv is not None:
            qkv, after["conv"] = self.conv(qkv, before.get("conv"), segment_ids)
        qk, v = qkv.split([2 * c.key_width, c.value_width], dim=-1)
        qk, v = split_heads(qk, 2 * c.n_heads), split_heads(v, c.n_heads)
        if c.position == "rope":
            qk = turn(qk, before, after, segment_ids, positions, shared)
        q, k = feature_map(qk, c.feature_map).chunk(2, dim=2)
        if c.normalized:
            v = F.pad(v, (0, 1), value=1.0)  # a column of ones collects the sum of the scores
        o, S = linear_attention(
            q,
            k,
            v,
            scale=1.0 if c.feature_map == "based" else c.key_dim**-0.5,
            initial_state=before.get("S"),
            return_state=return_state,
            segment_ids=segment_ids,
        )
        if c.normalized:
            o, total = o.split([c.value_dim, 1], dim=-1)
            o = o / (total + NORMALIZER_EPS)
        y = self.output(self.norm(o).flatten(2))
        return y, None if S is None else after | {"S": S}


def feature_map(x: Tensor, kind: str) -> Tensor:
    """phi(x) over the last dimension. `based`: [1, x / K^(1/4), vec(x xᵀ) / sqrt(2 K)], so that with s = <q,
    k> / sqrt(K) the product of two maps is 1 + s + s²/2."""
    if kind == "identity":
        return x
    if kind == "elu":
        return F.elu(x) + 1
    K = x.shape[-1]
    square = (x.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2) * (2 * K) ** -0.5
    return torch.cat([torch.ones_like(x[..., :1]), x * K**-0.25, square], dim=-1)
