"""The RWKV-5 time mix: o = W_o (norm(wkv(r, k, v; w, u)) * silu(g)), log decay -exp(w0), scale 1."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqarch.mixers.layer import Mixer as Layer
from seqarch.mixers.layer import State, no_weight_decay, split_heads, turn
from seqarch.mixers.rwkv import ChannelMix, HeadGroupNorm, Ramp, init_time_mix
from seqarch.mixers.rwkv5.config import Config
from seqarch.ops.causal_conv1d import token_shift
from seqarch.ops.linear_attention.op import linear_attention

ChannelMixer = ChannelMix


class Mixer(Layer):
    """State: `S` [B, H, K, V], `shift` [B, 1, d] the last x; `position` with rotation."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = config
        d, P = config.d_model, config.projections
        # r, k, v, g: their inputs differ by the shift, so one batched product serves all
        self.projections = nn.Parameter(torch.empty(P, d, config.width))
        self.mu = no_weight_decay(nn.Parameter(torch.empty(P, d))) if config.token_shift else None
        self.w0 = no_weight_decay(nn.Parameter(torch.empty(config.width)))
        self.u = no_weight_decay(nn.Parameter(torch.empty(config.width))) if config.bonus else None
        self.norm = HeadGroupNorm(config.n_heads, config.head_dim, config.out_norm)
        self.output = nn.Linear(config.width, d, bias=False)

    def init_weights(self) -> None:
        super().init_weights()
        ramp = Ramp(self.config)
        init_time_mix(self.projections, self.output, self.norm, self.config)
        with torch.no_grad():
            self.w0.copy_(ramp.log_log_decay())
            if self.u is not None:
                self.u.copy_(ramp.bonus())
            if self.mu is not None:
                early, late = ramp.mu(ramp.down), ramp.mu(0.5 * ramp.down)
                mu = torch.stack([late, early, early - 0.3 * ramp.up, late])  # r, k, v, g
                self.mu.copy_(mu[: len(self.mu)])

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
        mixed = x.expand(c.projections, *x.shape)
        if self.mu is not None:
            previous, after["shift"] = token_shift(
                x, initial_state=before.get("shift"), segment_ids=segment_ids
            )
            mixed = torch.addcmul(x, previous - x, self.mu[:, None, None])  # [P, B, T, d]
        projected = torch.bmm(mixed.flatten(1, 2), self.projections).unflatten(1, x.shape[:2])
        r, k, v, *gate = projected.unbind(0)
        r, k, v = (split_heads(each, c.n_heads) for each in (r, k, v))
        if c.position == "rope":
            r, k = turn(torch.cat([r, k], 2), before, after, segment_ids, positions, shared).chunk(2, dim=2)
        o, S = linear_attention(
            r,
            k,
            v,
            split_heads(-self.w0.exp(), c.n_heads),
            bonus=None if self.u is None else split_heads(self.u, c.n_heads),
            scale=1.0,
            initial_state=before.get("S"),
            return_state=return_state,
            segment_ids=segment_ids,
        )
        o = self.norm(o)
        y = self.output(o * F.silu(gate[0]) if gate else o)
        return y, None if S is None else after | {"S": S}
