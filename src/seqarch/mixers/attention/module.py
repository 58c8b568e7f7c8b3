"""The attention layer: q, k, v from one product, position, softmax attention, output projection."""

from typing import Any

import torch
from torch import Tensor, nn

from seqarch.mixers.attention.config import Config
from seqarch.mixers.layer import Mixer as Layer
from seqarch.mixers.layer import RMSNorm, ShortConvolution, State, split_heads
from seqarch.ops.rope import cached_rope_table, rotate
from seqarch.ops.segments import token_positions
from seqarch.ops.softmax_attention import KeyValueCache, softmax_attention

KEY_BLOCK = 256  # random keys are drawn in blocks of positions, so that any length sees the same ones


class Mixer(Layer):
    """State: `k`, `v` [B, S, H, D] (turned by position), `valid` [B, S] where documents were masked,
    `position` [B]: the next token's place; with a convolution its last inputs."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = config
        self.qkv = nn.Linear(config.d_model, config.projections * config.width, bias=False)
        self.output = nn.Linear(config.width, config.d_model, bias=False)
        self.conv = None
        if config.conv:
            channels = config.projections * config.width
            self.conv = ShortConvolution(channels, bias=config.conv_bias, silu=config.conv_silu)
        self.q_norm = RMSNorm(config.head_dim) if config.qk_norm else None
        self.k_norm = RMSNorm(config.head_dim) if config.qk_norm and config.keys == "projected" else None

    def forward(
        self,
        x: Tensor,
        state: State | None = None,
        segment_ids: Tensor | None = None,
        positions: Tensor | None = None,
        shared: dict[str, Any] | None = None,
        return_state: bool = True,
    ) -> tuple[Tensor, State | None]:
        c, state = self.config, state or {}
        if positions is None:
            positions = token_positions(x, segment_ids, state.get("position"))
        qkv = self.qkv(x)
        new_state: State = {}
        if self.conv is not None:
            qkv, new_state["conv"] = self.conv(qkv, state.get("conv"), segment_ids)
        heads = split_heads(qkv, c.projections * c.n_heads)  # [B, T, (q, k, v) H, D]
        q, k, v = self._queries_keys_values(heads, positions, shared)
        past = KeyValueCache(state["k"], state["v"], state.get("valid")) if "k" in state else None
        o, cache = softmax_attention(
            q,
            k,
            v,
            temperature=c.temperature,
            window=c.window,
            alibi_slopes=alibi_slopes(c.n_heads, x) if c.position == "alibi" else None,
            initial_state=past,
            return_state=return_state,
            segment_ids=segment_ids,
        )
        y = self.output(o.flatten(2))
        if cache is None:
            return y, None
        new_state |= {"k": cache.k, "v": cache.v, "position": positions[..., -1].expand(x.shape[0]) + 1}
        return y, new_state if cache.valid is None else new_state | {"valid": cache.valid}

    def _queries_keys_values(
        self, heads: Tensor, positions: Tensor, shared: dict[str, Any] | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Split, normalise, turn; or put the constant random keys in place of k (they carry no rotation of
        their own
        content: position enters through q and k alike)."""
        c, H = self.config, self.config.n_heads
        if c.keys == "projected" and not c.qk_norm:
            qk, v = heads.split([2 * H, H], dim=2)
        else:
            q, v = heads[:, :, :H], heads[:, :, -H:]
            k = heads[:, :, H : 2 * H] if c.keys == "projected" else self.random_keys(positions, v)
            q = q if self.q_norm is None else self.q_norm(q)
            k = k if self.k_norm is None else self.k_norm(k)
            qk = torch.cat([q, k], dim=2)
        if c.position == "rope":
            qk = rotate(qk, cached_rope_table(positions, c.rope_dim, c.rope_theta, qk.dtype, shared))
        q, k = qk.split(H, dim=2)
        return q, k, v

    def random_keys(self, positions: Tensor, like: Tensor) -> Tensor:
        """Constant keys [B, T, H, D] for positions [B, T] or [T], drawn from N(0, 1) by seed, layer (and
        position).
        """
        c = self.config
        if c.keys == "random_shared":
            keys = _draw(c.keys_seed, c.layer, 0, (c.n_heads, c.head_dim))
            return keys.to(like).expand_as(like)
        blocks = range(int(positions.max()) // KEY_BLOCK + 1)
        table = torch.cat(
            [_draw(c.keys_seed, c.layer, b, (KEY_BLOCK, c.n_heads, c.head_dim)) for b in blocks]
        )
        return table.to(like)[positions].expand_as(like)


def _draw(seed: int, layer: int, block: int, shape: tuple[int, ...]) -> Tensor:
    generator = torch.Generator().manual_seed((seed << 40) + (layer << 24) + block)
    return torch.randn(shape, generator=generator)


def alibi_slopes(n_heads: int, like: Tensor) -> Tensor:
    """m_h = 2^(-8 (h + 1) / H) [H]."""
    return 2.0 ** (-8.0 * torch.arange(1, n_heads + 1, device=like.device, dtype=like.dtype) / n_heads)
