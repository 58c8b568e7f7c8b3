"""Softmax attention (transformer++): full or windowed, with the switches of the ablations."""

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from seqarch.mixers.base import CACHE_BYTES, Count, MixerConfig, conv_flops, conv_state_bytes, head_width


class Config(MixerConfig):
    """Attributes:
    n_heads, head_dim: the width of q, k, v is n_heads * head_dim.
    window: visible keys per query, its own included; None: all.
    position: position information.
    rope_theta, rope_fraction: base of the rotation, and the part of each head that turns.
    keys: projected from x, or constant random keys, drawn once from N(0, 1): one vector for each (layer,
        head, position), or one for each (layer, head). The projection's parameters are gone.
    temperature: divides the scores; below 1 it sharpens.
    qk_norm: RMSNorm over each head of q and k.
    conv: short convolution + silu on q, k, v.
    conv_bias, conv_silu: with a bias; with the silu. The released Mamba-2 hybrid has a bias and no silu.
    mlp: whether a SwiGLU follows; without it the block is the attention layer of a Mamba hybrid.
    keys_seed: seed of the random keys.
    """

    n_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    window: int | None = Field(None, gt=0)
    position: Literal["rope", "none", "alibi", "learned"] = "rope"
    rope_theta: float = Field(10000.0, gt=0)
    rope_fraction: float = Field(1.0, gt=0, le=1)
    keys: Literal["projected", "random_position", "random_shared"] = "projected"
    temperature: float = Field(1.0, gt=0)
    qk_norm: bool = False
    conv: bool = False
    conv_bias: bool = False
    conv_silu: bool = True
    mlp: bool = True
    keys_seed: int = 0

    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {"n_heads": 4, "head_dim": 32, "hidden": 344},
        "110m": {"n_heads": 12, "head_dim": 64, "hidden": 2048},
        "1.3b": {"n_heads": 16, "head_dim": 128, "hidden": 5632},
    }

    @model_validator(mode="after")
    def _rope_width_is_even(self) -> "Config":
        if self.position == "rope" and self.rope_dim % 2:
            raise ValueError(
                f"rope turns pairs: expected an even rope_fraction * head_dim, got {self.rope_dim}"
            )
        return self

    @classmethod
    def default_sizes(cls, d_model: int) -> dict[str, Any]:
        width = min(head_width(d_model), d_model)
        return {"n_heads": max(1, d_model // width), "head_dim": width}

    @property
    def width(self) -> int:
        """Channels of q, and of k and v."""
        return self.n_heads * self.head_dim

    @property
    def projections(self) -> int:
        """How many of q, k, v are projected from x."""
        return 3 if self.keys == "projected" else 2

    @property
    def rope_dim(self) -> int:
        return round(self.head_dim * self.rope_fraction)

    @property
    def channel_mixer(self) -> Literal["swiglu", "none", "own"]:
        return "swiglu" if self.mlp else "none"

    @property
    def learned_positions(self) -> bool:
        return self.position == "learned"

    def mixer_params(self) -> Count:
        convolved = (4 + self.conv_bias) * self.projections * self.width if self.conv else 0
        normed = self.head_dim * (2 if self.keys == "projected" else 1) if self.qk_norm else 0
        return Count((self.projections + 1) * self.d_model * self.width, convolved + normed)

    def op_flops(self, T: int) -> float:
        w = min(T, self.window or T)
        keys_per_query = (w * (w + 1) / 2 + (T - w) * w) / T
        convolution = conv_flops(self.projections * self.width) if self.conv else 0
        return 4 * self.width * keys_per_query + convolution

    def mixer_state_bytes(self, T: int) -> int:
        convolution = conv_state_bytes(self.projections * self.width) if self.conv else 0
        return CACHE_BYTES * 2 * self.width * min(T, self.window or T) + convolution
