"""The Top-1 chunk layer: q, k, v from one product, position, routed attention, output projection."""

from typing import Any

import torch
from torch import Tensor, nn

from seqarch.mixers.layer import Mixer as Layer
from seqarch.mixers.layer import State, split_heads
from seqarch.mixers.top1_chunk.config import Config
from seqarch.ops.rope import cached_rope_table, rotate
from seqarch.ops.segments import token_positions
from seqarch.ops.top1_chunk.op import top1_chunk
from seqarch.ops.top1_chunk.options import Options


class Mixer(Layer):
    """State: the op's (`seqarch.ops.top1_chunk.cache`), and `position` [B]: the next token's place."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = config
        self.options = Options(
            chunk_size=config.chunk_size,
            own_chunk=config.own_chunk,
            router=config.router,
            router_grad=config.router_grad,
            summary=config.summary,
            inner=config.inner,
            selection=config.selection,
            granularity=config.granularity,
            tau_r=config.tau_r,
            tau=config.tau,
        )
        self.qkv = nn.Linear(config.d_model, 3 * config.width, bias=False)
        self.output = nn.Linear(config.width, config.d_model, bias=False)
        learned = config.summary == "learned"
        self.summary_table = nn.Parameter(torch.zeros(config.n_heads, config.chunk_size)) if learned else None

    def init_weights(self) -> None:
        """The common one; a learned summary starts as the mean."""
        super().init_weights()
        if self.summary_table is not None:
            nn.init.zeros_(self.summary_table)

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
        plain = qk if c.summary_keys == "pre_rope" else None
        if c.position == "rope":
            qk = rotate(qk, cached_rope_table(positions, c.head_dim, c.rope_theta, qk.dtype, shared))
        q, k = qk[:, :, :H], qk[:, :, H:]
        if c.position == "alibi":
            q, k = with_alibi(q, k, positions)
        o, cache = top1_chunk(
            q,
            k,
            v,
            self.options,
            scale=c.head_dim**-0.5,
            q_router=None if plain is None else plain[:, :, :H],
            k_router=None if plain is None else plain[:, :, H:],
            summary_table=self.summary_table,
            initial_state=state,
            return_state=return_state,
            segment_ids=segment_ids,
        )
        y = self.output(o.flatten(2))
        if cache is None:
            return y, None
        return y, cache | {"position": positions[..., -1].expand(x.shape[0]) + 1}


def with_alibi(q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """q, k [B, T, H, D + 3] whose scaled product is that of q, k [B, T, H, D] plus m_h j, m_h = 2^(-8 (h + 1)
    / H).

    Softmax and choice do not change under -m_h i, which is the same for all keys of a query, so this is
    ALiBi's -m_h (i - j), and the mean of a chunk's keys carries the bias of its mean place. The place j is
    three digits of base 256, each exact in bfloat16.
    """
    H, D = q.shape[2:]
    slopes = 2.0 ** (-8.0 * torch.arange(1, H + 1, device=q.device) / H) * D**0.5
    digits = 256 ** torch.arange(3, device=q.device)
    places = positions.unsqueeze(-1) // digits % 256  # [B or nothing, T, 3]
    q_bias = (slopes[:, None] * digits).to(q.dtype)  # [H, 3]
    k_bias = places.unsqueeze(-2).to(k.dtype)  # [.., T, 1, 3]
    q = torch.cat([q, q_bias.expand(*q.shape[:2], H, 3)], dim=-1)
    return q, torch.cat([k, k_bias.expand(*k.shape[:3], 3)], dim=-1)
