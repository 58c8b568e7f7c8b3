"""The HGRN2 layer: q = silu(W_q x), f = W_f x, v = W_i x, with the layer's lower bound gamma of the forget
gate:

    g = log(gamma + (1 - gamma) sigmoid(f));   k = 1 - exp(g) = (1 - gamma) sigmoid(-f)
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqarch.mixers.hgrn2.config import Config
from seqarch.mixers.layer import Mixer as Layer
from seqarch.mixers.layer import SharedParameters, ShortConvolution, State, head_norm, split_heads, turn
from seqarch.ops.linear_attention.op import linear_attention

NAME = "hgrn2"


class Shared(SharedParameters):
    """The table of lower bounds: one row for each HGRN2 block."""

    def __init__(self, configs: list[Config]) -> None:
        super().__init__()
        # The first block's bound is 0 whatever the table holds: a single row learns nothing.
        self.table = nn.Parameter(torch.zeros(len(configs), configs[0].width), requires_grad=len(configs) > 1)
        self.table.no_weight_decay = True  # type: ignore[attr-defined]

    def init_weights(self) -> None:
        nn.init.zeros_(self.table)

    def forward(self) -> tuple[Tensor, ...]:
        """gamma [width] of each block: P = softmax over blocks, gamma_l = P_1 + .. + P_l - P_1; 0 for the
        first.
        """
        P = self.table.softmax(0)
        return (P.cumsum(0) - P[:1]).unbind(0)


class Mixer(Layer):
    """State: `S` [B, H, K, V]; `position`, `conv`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = config
        self.projection = nn.Linear(config.d_model, 3 * config.width, bias=False)  # q, f, i
        self.conv = ShortConvolution(3 * config.width, silu=False) if config.conv else None
        self.norm = head_norm(config.width, config.out_norm)
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
        qfi = self.projection(x)
        if self.conv is not None:
            qfi, after["conv"] = self.conv(qfi, before.get("conv"), segment_ids)
        q, f, v = qfi.chunk(3, dim=-1)
        gamma = None if c.ordinal == 0 or shared is None else shared[NAME][c.ordinal]
        k = torch.sigmoid(-f) if gamma is None else (1 - gamma) * torch.sigmoid(-f)
        qk = split_heads(torch.cat([F.silu(q), k], dim=-1), 2 * c.n_heads)
        if c.position == "rope":
            qk = turn(qk, before, after, segment_ids, positions, shared)
        queries, keys = qk.chunk(2, dim=2)
        o, S = linear_attention(
            queries,
            keys,
            split_heads(v, c.n_heads),
            self._log_decay(f, gamma),
            initial_state=before.get("S"),
            return_state=return_state,
            segment_ids=segment_ids,
        )
        y = self.output(self.norm(o.flatten(2)))
        return y, None if S is None else after | {"S": S}

    def _log_decay(self, f: Tensor, gamma: Tensor | None) -> Tensor | None:
        """log(gamma + (1 - gamma) sigmoid(f)) [B, T, H, K]; at f = 0 [H, K] if static; None without decay."""
        if self.config.decay == "none":
            return None
        if self.config.decay == "static":
            f = f.new_zeros(self.config.width)
        g = F.logsigmoid(f)
        if gamma is not None:
            g = torch.logaddexp(gamma.log(), torch.log1p(-gamma) + g)
        return split_heads(g, self.config.n_heads)
