"""The Mamba layer:

[u, z] = W_in x;  u = silu(conv4(u) + b);  [dt, B, C] = W_x u;  delta = softplus(W_dt dt + b_dt)
y = W_out ((selective_scan(u, delta, A, B, C) + D u) * silu(z)),  A = -exp(A_log)
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqarch.mixers.layer import Mixer as Layer
from seqarch.mixers.layer import ShortConvolution, State, no_weight_decay
from seqarch.mixers.mamba1.config import Config
from seqarch.mixers.step_size import init_dt_bias
from seqarch.ops.selective_scan.op import selective_scan


class Mixer(Layer):
    """State: `h` [B, inner, S], `conv` [B, 3, inner]."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = c = config
        self.widths = [c.inner, c.inner if c.gate else 0]
        self.projection = nn.Linear(c.d_model, sum(self.widths), bias=False)  # u | z
        self.conv = ShortConvolution(c.inner, bias=True) if c.conv else None
        self.selection = nn.Linear(c.inner, c.dt_rank + 2 * c.d_state, bias=False)  # dt | B | C
        self.dt_up = nn.Parameter(torch.empty(c.inner, c.dt_rank))
        self.dt_bias = no_weight_decay(nn.Parameter(torch.empty(c.inner)))
        self.A_log = None
        if c.decay != "none":
            self.A_log = no_weight_decay(nn.Parameter(torch.empty(c.inner, c.d_state)))
        self.D = no_weight_decay(nn.Parameter(torch.ones(c.inner)))
        self.output = nn.Linear(c.inner, c.d_model, bias=False)

    def init_weights(self) -> None:
        super().init_weights()
        bound = self.config.dt_rank**-0.5
        nn.init.uniform_(self.dt_up, -bound, bound)
        with torch.no_grad():
            init_dt_bias(self.dt_bias)
            if self.A_log is not None:
                self.A_log.copy_(torch.arange(1, self.config.d_state + 1).log().expand_as(self.A_log))
            self.D.fill_(1)

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
        u, z = self.projection(x).split(self.widths, dim=-1)
        if self.conv is None:
            u = F.silu(u)
        else:
            u, after["conv"] = self.conv(u, before.get("conv"), segment_ids)
        dt, B, C = self.selection(u).split([c.dt_rank, c.d_state, c.d_state], dim=-1)
        delta = F.softplus(F.linear(dt, self.dt_up, self.dt_bias))
        y, h = self._scan(u, delta, B, C, before.get("h"), return_state, segment_ids)
        y = torch.addcmul(y, u, self.D)
        y = self.output(y * F.silu(z) if c.gate else y)
        return y, None if h is None else after | {"h": h}

    def _scan(
        self,
        u: Tensor,
        delta: Tensor,
        B: Tensor,
        C: Tensor,
        h: Tensor | None,
        return_state: bool,
        segment_ids: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """The scan; a static decay runs on the bias's step size, with the input scaled so that delta u
        stays.
        """
        A = u.new_zeros(self.config.inner, self.config.d_state) if self.A_log is None else -self.A_log.exp()
        if self.config.decay == "static":
            static = F.softplus(self.dt_bias)
            u, delta = u * delta / static, static.expand_as(delta)
        return selective_scan(
            u, delta, A, B, C, initial_state=h, return_state=return_state, segment_ids=segment_ids
        )
