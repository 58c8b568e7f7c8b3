"""The RWKV-7 time mix and channel mix (arXiv 2503.14456). With D = previous - x and x_m = x + mu_m D:

r, k, v = W_r x_r, W_k x_k, W_v x_v;   a = sigmoid(a0 + x_a A1 A2);   gate = sigmoid(x_g G1) G2
log decay = -exp(-1/2) sigmoid(w0 + tanh(x_w W1) W2)
v = lerp(v, first block's v, sigmoid(v0 + x_v V1 V2))
all blocks but the first
kappa = l2norm(k * k_k);   k = k (1 + (a - 1) k_a);   DPLR rule with (-kappa, kappa * a), scale 1
o = W_o ((norm(wkv) + (sum_d r k r_k) v) * gate)
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqarch.mixers.layer import Mixer as Layer
from seqarch.mixers.layer import State, no_weight_decay, split_heads, turn
from seqarch.mixers.rwkv import HeadGroupNorm, Ramp
from seqarch.mixers.rwkv7.config import Config
from seqarch.ops.causal_conv1d import token_shift
from seqarch.ops.dplr_rule.op import dplr_rule
from seqarch.ops.l2norm import l2norm

FASTEST_DECAY = -math.exp(-0.5)
FIRST_VALUE = "rwkv7/first_value"  # what the first block leaves in `shared`


class Mixer(Layer):
    """State: `S` [B, H, K, V], `shift` [B, 1, d] the last x; `position` with rotation."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = c = config
        d, width = c.d_model, c.width
        self.receptance = nn.Linear(d, width, bias=False)
        self.key = nn.Linear(d, width, bias=False)
        self.value = nn.Linear(d, width, bias=False)
        self.mu = no_weight_decay(nn.Parameter(torch.empty(len(c.inputs), d))) if c.token_shift else None
        self.rate = LowRank(d, c.rate_rank, width, bias=True)
        self.decay = (
            LowRank(d, c.decay_rank, width, bias=True, inner=torch.tanh) if c.decay == "data" else None
        )
        self.w0 = nn.Parameter(torch.empty(width)) if c.decay == "static" else None
        self.value_mix = LowRank(d, c.value_rank, width, bias=True) if c.mixes_value else None
        self.gate = LowRank(d, c.gate_rank, width, bias=False, inner=torch.sigmoid) if c.gate else None
        self.k_k = nn.Parameter(torch.empty(width))
        self.k_a = nn.Parameter(torch.empty(width))
        self.r_k = no_weight_decay(nn.Parameter(torch.empty(c.n_heads, c.head_dim))) if c.bonus else None
        self.norm = HeadGroupNorm(c.n_heads, c.head_dim, c.out_norm)
        self.output = nn.Linear(width, d, bias=False)

    def init_weights(self) -> None:
        super().init_weights()
        start = InitialValues(self.config)
        orthogonal_(self.receptance.weight)
        orthogonal_(self.key.weight, 0.1)
        orthogonal_(self.value.weight)
        nn.init.zeros_(self.output.weight)
        self.norm.init_weights()
        with torch.no_grad():
            if self.norm.weight is not None:
                self.norm.weight.fill_(((self.config.layer + 1) / self.config.n_layers) ** 0.7)
            if self.mu is not None:
                self.mu.copy_(torch.stack([start.shift(name) for name in self.config.inputs]))
            self.rate.init_weights(start.rate())
            if self.decay is not None:
                self.decay.init_weights(start.decay())
            if self.w0 is not None:
                self.w0.copy_(start.decay())
            if self.value_mix is not None:
                self.value_mix.init_weights(0.73 - 0.4 * start.linear)
            if self.gate is not None:
                self.gate.init_weights()
            self.k_k.copy_(0.71 - 0.1 * start.linear)
            self.k_a.fill_(1.02)
            if self.r_k is not None:
                self.r_k.fill_(-0.04)

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
        inputs = dict.fromkeys(c.inputs, x)
        if self.mu is not None:
            previous, after["shift"] = token_shift(
                x, initial_state=before.get("shift"), segment_ids=segment_ids
            )
            difference = previous - x
            inputs = {
                name: torch.addcmul(x, difference, mu) for name, mu in zip(c.inputs, self.mu, strict=True)
            }
        a = torch.sigmoid(self.rate(inputs["a"]))
        r, k, v = self.receptance(inputs["r"]), self.key(inputs["k"]), self.value(inputs["v"])
        v = self._mixed_value(v, inputs["v"], shared)
        kappa = l2norm(split_heads(k * self.k_k, c.n_heads))
        k = k * torch.addcmul(1 - self.k_a, a, self.k_a)  # k (1 + (a - 1) k_a)
        r, k, v, a = (split_heads(each, c.n_heads) for each in (r, k, v, a))
        if c.position == "rope":
            turned = turn(torch.cat([r, k, kappa], 2), before, after, segment_ids, positions, shared)
            r, k, kappa = turned.chunk(3, dim=2)
        o, S = dplr_rule(
            r,
            k,
            v,
            -kappa,
            kappa * a,
            self._log_decay(inputs.get("w"), k),
            scale=1.0,
            initial_state=before.get("S"),
            return_state=return_state,
            segment_ids=segment_ids,
        )
        o = self.norm(o)
        if self.r_k is not None:
            o = o + ((r * k * self.r_k).sum(-1, keepdim=True) * v).flatten(2)
        y = self.output(o if self.gate is None else o * self.gate(inputs["g"]))
        return y, None if S is None else after | {"S": S}

    def _mixed_value(self, v: Tensor, x_v: Tensor, shared: dict[str, Any] | None) -> Tensor:
        """v, in later blocks moved towards the first block's; the first block leaves its own."""
        if shared is None:
            return v
        if self.value_mix is None:
            shared[FIRST_VALUE] = v
            return v
        return torch.lerp(v, shared[FIRST_VALUE], torch.sigmoid(self.value_mix(x_v)))

    def _log_decay(self, x_w: Tensor | None, like: Tensor) -> Tensor:
        """[B, T, H, K]."""
        if self.decay is not None and x_w is not None:
            g = FASTEST_DECAY * torch.sigmoid(self.decay(x_w))
            return split_heads(g, self.config.n_heads)
        if self.w0 is None:
            return torch.zeros_like(like)
        return split_heads(FASTEST_DECAY * torch.sigmoid(self.w0), self.config.n_heads).expand_as(like)


class LowRank(nn.Module):
    """x -> inner(x W_down) W_up + bias, from d through `rank` to `width` channels."""

    def __init__(self, d: int, rank: int, width: int, bias: bool, inner: Any = None) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.empty(rank, d))
        self.up = nn.Parameter(torch.empty(width, rank))
        self.bias = nn.Parameter(torch.empty(width)) if bias else None
        self.inner = inner

    def init_weights(self, bias: Tensor | None = None) -> None:
        nn.init.zeros_(self.down)
        orthogonal_(self.up, 0.1)
        if self.bias is not None and bias is not None:
            self.bias.copy_(bias)

    def forward(self, x: Tensor) -> Tensor:
        low = F.linear(x, self.down)
        return F.linear(low if self.inner is None else self.inner(low), self.up, self.bias)


class ChannelMixer(Layer):
    """y = W_v relu(W_k x_k)², with x_k = x + mu (previous - x). State: `shift` [B, 1, d], the last x."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.ramp = Ramp(config)
        self.mu = nn.Parameter(torch.empty(config.d_model)) if config.token_shift else None
        self.key = nn.Linear(config.d_model, config.hidden, bias=False)
        self.output = nn.Linear(config.hidden, config.d_model, bias=False)  # W_v

    def init_weights(self) -> None:
        super().init_weights()
        orthogonal_(self.key.weight)
        nn.init.zeros_(self.output.weight)
        if self.mu is not None:
            with torch.no_grad():
                self.mu.copy_(self.ramp.mu(self.ramp.down**4))

    def forward(
        self,
        x: Tensor,
        state: State | None = None,
        segment_ids: Tensor | None = None,
        positions: Tensor | None = None,
        shared: dict[str, Any] | None = None,
        return_state: bool = True,
    ) -> tuple[Tensor, State | None]:
        after: State | None = {} if return_state else None
        if self.mu is not None:
            previous, last = token_shift(x, initial_state=(state or {}).get("shift"), segment_ids=segment_ids)
            x = torch.addcmul(x, previous - x, self.mu)
            if after is not None:
                after["shift"] = last
        return self.output(F.relu(self.key(x)).square()), after


class InitialValues(Ramp):
    """The published initial values of the time mix."""

    SHIFT_EXPONENTS = {"r": 0.2, "g": 0.2, "w": 0.9, "a": 0.9, "k": 0.7, "v": 0.7}

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        along_head = torch.linspace(-1, 1, config.head_dim) if config.head_dim > 1 else torch.zeros(1)
        self.signed_square = (along_head * along_head.abs()).repeat(config.n_heads)
        self.linear = torch.arange(config.width) / max(config.width - 1, 1) - 0.5

    def shift(self, name: str) -> Tensor:
        """mu of one input."""
        return self.mu(self.SHIFT_EXPONENTS[name] * self.down)

    def decay(self) -> Tensor:
        """w0."""
        return -5.5 + 6 * (self.linear + 0.5) ** (1 + self.up**0.3) + 2.5 * self.signed_square

    def rate(self) -> Tensor:
        """a0."""
        return -0.19 + 0.3 * self.signed_square + 0.4 * self.linear


def orthogonal_(weight: Tensor, gain: float = 1.0) -> None:
    """Orthogonal, scaled by sqrt(rows / columns) for tall matrices. In float32: cast a model after this,
    not before.
    """
    rows, columns = weight.shape
    nn.init.orthogonal_(weight, gain=gain * max(1.0, math.sqrt(rows / columns)))
