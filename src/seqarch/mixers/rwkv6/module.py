"""The RWKV-6 time mix. With D = previous - x:

offsets_m = tanh((x + mu_x D) W1)_m W2_m;   x_m = x + (mu_m + offset_m) D        m = r, k, v, g, w
log decay = -exp(w0 + tanh(x_w D1) D2);     o = W_o (norm(wkv(r, k, v; w, u)) * silu(g)), scale 1
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqarch.mixers.layer import Mixer as Layer
from seqarch.mixers.layer import State, no_weight_decay, split_heads, turn
from seqarch.mixers.rwkv import ChannelMix, HeadGroupNorm, Ramp, init_time_mix
from seqarch.mixers.rwkv6.config import Config
from seqarch.ops.causal_conv1d import token_shift
from seqarch.ops.linear_attention.op import linear_attention

ChannelMixer = ChannelMix


class Mixer(Layer):
    """State: `S` [B, H, K, V], `shift` [B, 1, d] the last x; `position` with rotation."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = config
        c, d = config, config.d_model
        self.projections = nn.Parameter(torch.empty(c.projections, d, c.width))  # r, k, v, g
        self.shift = DataShift(c) if c.token_shift else None
        self.w0 = no_weight_decay(nn.Parameter(torch.empty(c.width))) if c.decay != "none" else None
        self.decay_down = self.decay_up = None
        if c.decay == "data":
            self.decay_down = nn.Parameter(torch.empty(d, c.decay_rank))
            self.decay_up = nn.Parameter(torch.empty(c.decay_rank, c.width))
        self.u = no_weight_decay(nn.Parameter(torch.empty(c.width))) if c.bonus else None
        self.norm = HeadGroupNorm(c.n_heads, c.head_dim, c.out_norm)
        self.output = nn.Linear(c.width, d, bias=False)

    def init_weights(self) -> None:
        super().init_weights()
        ramp = Ramp(self.config)
        init_time_mix(self.projections, self.output, self.norm, self.config)
        if self.shift is not None:
            self.shift.init_weights()
        if self.decay_down is not None and self.decay_up is not None:
            nn.init.zeros_(self.decay_down)
            nn.init.uniform_(self.decay_up, -0.01, 0.01)
        with torch.no_grad():
            if self.w0 is not None:
                self.w0.copy_(ramp.log_log_decay())
            if self.u is not None:
                self.u.copy_(ramp.bonus())

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
        inputs = [x] * c.shifts  # r, k, v, g, w
        if self.shift is not None:
            previous, after["shift"] = token_shift(
                x, initial_state=before.get("shift"), segment_ids=segment_ids
            )
            inputs = self.shift(x, previous - x)
        pairs = zip(inputs, self.projections.unbind(0), strict=False)  # w's has no projection
        r, k, v, *gate = (each @ projection for each, projection in pairs)
        r, k, v = (split_heads(each, c.n_heads) for each in (r, k, v))
        if c.position == "rope":
            r, k = turn(torch.cat([r, k], 2), before, after, segment_ids, positions, shared).chunk(2, dim=2)
        o, S = linear_attention(
            r,
            k,
            v,
            self._log_decay(inputs[-1]),
            bonus=None if self.u is None else split_heads(self.u, c.n_heads),
            scale=1.0,
            initial_state=before.get("S"),
            return_state=return_state,
            segment_ids=segment_ids,
        )
        o = self.norm(o)
        y = self.output(o * F.silu(gate[0]) if gate else o)
        return y, None if S is None else after | {"S": S}

    def _log_decay(self, x_w: Tensor) -> Tensor | None:
        """[B, T, H, K] from the data, [H, K] static, or None."""
        if self.w0 is None:
            return None
        w: Tensor = self.w0
        if self.decay_down is not None and self.decay_up is not None:
            w = w + torch.tanh(x_w @ self.decay_down) @ self.decay_up
        return split_heads(-w.exp(), self.config.n_heads)


class DataShift(nn.Module):
    """The data-dependent token shift: the M mixed inputs [B, T, d] of x and D = previous - x."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        M, d, rank = config.shifts, config.d_model, config.shift_rank
        self.config = config
        self.mu_x = no_weight_decay(nn.Parameter(torch.empty(d)))
        self.mu = no_weight_decay(nn.Parameter(torch.empty(M, d)))
        self.down = nn.Parameter(torch.empty(d, M * rank))
        self.up = nn.Parameter(torch.empty(M, rank, d))

    def init_weights(self) -> None:
        ramp = Ramp(self.config)
        early, late = ramp.mu(ramp.down), ramp.mu(0.5 * ramp.down)
        rows = [late, early, early - 0.3 * ramp.up]  # r, k, v
        rows += [late] if self.config.gate else []
        rows += [early] if self.config.decay == "data" else []
        nn.init.zeros_(self.down)
        nn.init.uniform_(self.up, -0.01, 0.01)
        with torch.no_grad():
            self.mu_x.copy_(early)
            self.mu.copy_(torch.stack(rows))

    def forward(self, x: Tensor, difference: Tensor) -> list[Tensor]:
        low = torch.tanh(torch.addcmul(x, difference, self.mu_x) @ self.down)  # [B, T, M rank]
        low = low.flatten(0, 1).unflatten(-1, (len(self.mu), -1)).transpose(0, 1)  # [M, B T, rank]
        weight = torch.baddbmm(self.mu.unsqueeze(1), low, self.up)  # [M, B T, d]
        # One by one: a tensor of all of them is so large that malloc maps it anew each time; on a CPU the
        # page faults cost a third of the layer.
        return [torch.addcmul(x, difference, each) for each in weight.unflatten(1, x.shape[:2]).unbind(0)]
