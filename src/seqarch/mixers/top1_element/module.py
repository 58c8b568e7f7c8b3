"""The Top-1 element layer: q, k, v from one product, position, selection, output projection."""

from typing import Any

import torch
from torch import Tensor, nn

from seqarch.mixers.layer import Mixer as Layer
from seqarch.mixers.layer import State, split_heads
from seqarch.mixers.top1_element.config import Config
from seqarch.ops.rope import cached_rope_table, rotate
from seqarch.ops.segments import token_positions
from seqarch.ops.top1_element.op import top1_element


class Mixer(Layer):
    """State: the op's `k`, `v` [B, S, H, D] and `start` [B], and `position` [B]: the next token's place."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = config
        self.qkv = nn.Linear(config.d_model, 3 * config.width, bias=False)
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
        c, H = self.config, self.config.n_heads
        if positions is None:
            positions = token_positions(x, segment_ids, None if state is None else state["position"])
        heads = split_heads(self.qkv(x), 3 * H)  # [B, T, (q, k, v) H, D]
        qk, v = heads[:, :, : 2 * H], heads[:, :, 2 * H :]
        if c.position == "rope":
            qk = rotate(qk, cached_rope_table(positions, c.head_dim, c.rope_theta, qk.dtype, shared))
        slopes = 2.0 ** (-8.0 * torch.arange(1, H + 1, device=x.device) / H)
        o, cache = top1_element(
            qk[:, :, :H],
            qk[:, :, H:],
            v,
            tau=c.tau,
            st=c.st,
            st_site=c.st_site,
            include_self=c.include_self,
            granularity=c.granularity,
            alibi_slopes=slopes if c.position == "alibi" else None,
            initial_state=state,
            return_state=return_state,
            segment_ids=segment_ids,
        )
        y = self.output(o.flatten(2))
        if cache is None:
            return y, None
        return y, cache | {"position": positions[..., -1].expand(x.shape[0]) + 1}
