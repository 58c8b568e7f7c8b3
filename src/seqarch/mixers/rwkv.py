"""What RWKV-5 and RWKV-6 share: depth-dependent initial values, the per-head norm, the channel mix.

Initial values are those of the authors' code, github.com/BlinkDL/RWKV-LM, RWKV-v5/src/model.py at commit
86affd7 (July 2024: models x052 and x060 of arXiv 2404.05892), compared value by value: shifts, decays, bonus,
matrices, the norm after the read-out. Two differ: the embedding's uniform(±1e-4) belongs to an untied output
and is left to the model; and since November 2024 (b44816c, with RWKV-7) that file gives x060's channel mix
the shift exponent down³, where the models of the paper have `down`, as here.
"""

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqarch.mixers.layer import Mixer, State, no_weight_decay
from seqarch.ops.causal_conv1d import token_shift


class RwkvConfig(Protocol):
    """The fields that the shared parts read."""

    d_model: int
    n_layers: int
    layer: int
    hidden: int
    token_shift: bool


class Ramp:
    """The ingredients of RWKV's initial values: channels n = 0..d-1, depth l of L."""

    def __init__(self, config: RwkvConfig) -> None:
        d, l, L = config.d_model, config.layer, config.n_layers
        self.channel = torch.arange(d) / d  # n / d
        self.closed = torch.arange(d) / max(d - 1, 1)  # n / (d - 1)
        self.up = l / max(L - 1, 1)  # 0 in the first block, 1 in the last
        self.down = 1 - l / L  # 1 in the first block, near 0 in the last
        self.zigzag = (torch.arange(1, d + 1) % 3 - 1).float()

    def mu(self, exponent: float, offset: float = 0.0) -> Tensor:
        """Shift weight 1 - (n/d)^exponent - offset: how much of the previous token each channel takes."""
        return 1 - self.channel**exponent - offset

    def log_log_decay(self) -> Tensor:
        """w0 with log decay -exp(w0): from slow (-6) to fast (-1) channels."""
        return -6 + 5 * self.closed ** (0.7 + 1.3 * self.up)

    def bonus(self) -> Tensor:
        return self.up * (1 - self.closed) + 0.1 * self.zigzag


def init_time_mix(projections: Tensor, output: nn.Linear, norm: "HeadGroupNorm", config: RwkvConfig) -> None:
    """The matrices of a time mix, [r, k, v and perhaps gate; d, width], and the norm after the read-out."""
    with torch.no_grad():
        for matrix, gain in zip(projections, (1.0, 0.1, 1.0, 0.1), strict=False):
            nn.init.orthogonal_(matrix, gain=gain)
    nn.init.zeros_(output.weight)
    norm.init_weights()
    if norm.weight is not None:
        nn.init.constant_(norm.weight, ((config.layer + 1) / config.n_layers) ** 0.7)


class HeadGroupNorm(nn.Module):
    """GroupNorm with one group a head, [B, T, H, V] -> [B, T, H V]; eps 1e-5 times the head's width."""

    def __init__(self, n_heads: int, head_dim: int, enabled: bool) -> None:
        super().__init__()
        self.n_heads, self.eps = n_heads, 1e-5 * head_dim
        width = n_heads * head_dim
        self.weight = nn.Parameter(torch.ones(width)) if enabled else None
        self.bias = nn.Parameter(torch.zeros(width)) if enabled else None

    def init_weights(self) -> None:
        if self.weight is not None and self.bias is not None:
            nn.init.ones_(self.weight)
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.weight is None or self.bias is None:
            return x.flatten(2)
        normed = F.layer_norm(x, x.shape[-1:], eps=self.eps).flatten(2)
        return torch.addcmul(self.bias, normed, self.weight)


class ChannelMix(Mixer):
    """y = sigmoid(W_r x_r) * W_v relu(W_k x_k)², with x_m = x + mu_m (previous - x) (arXiv 2404.05892).

    State: `shift` [B, 1, d], the last x.
    """

    def __init__(self, config: RwkvConfig) -> None:
        nn.Module.__init__(self)
        self.ramp = Ramp(config)
        d = config.d_model
        self.mu = no_weight_decay(nn.Parameter(torch.empty(2, d))) if config.token_shift else None  # k, r
        self.key = nn.Linear(d, config.hidden, bias=False)
        self.receptance = nn.Linear(d, d, bias=False)
        self.output = nn.Linear(config.hidden, d, bias=False)  # W_v
        self.n_layers = config.n_layers

    def init_weights(self) -> None:
        super().init_weights()
        nn.init.orthogonal_(self.key.weight)
        nn.init.zeros_(self.receptance.weight)
        nn.init.zeros_(self.output.weight)
        if self.mu is not None:
            with torch.no_grad():
                self.mu.copy_(self.ramp.mu(self.ramp.down))

    def forward(
        self,
        x: Tensor,
        state: State | None = None,
        segment_ids: Tensor | None = None,
        positions: Tensor | None = None,
        shared: dict[str, Any] | None = None,
        return_state: bool = True,
    ) -> tuple[Tensor, State | None]:
        x_k = x_r = x
        after: State | None = {} if return_state else None
        if self.mu is not None:
            previous, last = token_shift(x, initial_state=(state or {}).get("shift"), segment_ids=segment_ids)
            difference = previous - x
            x_k, x_r = torch.addcmul(x, difference, self.mu[0]), torch.addcmul(x, difference, self.mu[1])
            if after is not None:
                after["shift"] = last
        y = torch.sigmoid(self.receptance(x_r)) * self.output(F.relu(self.key(x_k)).square())
        return y, after
