"""Gated linear attention (arXiv 2312.06635): a data-dependent decay for each key channel."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from seqarch.mixers.base import (
    CONV_WIDTH,
    STATE_BYTES,
    Count,
    MixerConfig,
    conv_flops,
    conv_state_bytes,
    head_width,
)


class Config(MixerConfig):
    """Attributes:
    n_heads, key_dim, value_dim: heads, and the widths of each; published: key_dim d / 2H, value_dim d / H.
    decay: data (from x), static (its bias alone, learned), or none.
    decay_rank: rank of the map from x to the log decays.
    position: rotation of q and k, or none.
    conv: short convolution + silu on q, k, v.
    gate: silu gate on the normalised output.
    out_norm: RMSNorm over each head of the output.
    """

    n_heads: int = Field(gt=0)
    key_dim: int = Field(gt=0)
    value_dim: int = Field(gt=0)
    decay: Literal["data", "static", "none"] = "data"
    decay_rank: int = Field(16, gt=0)
    position: Literal["none", "rope"] = "none"
    conv: bool = False
    gate: bool = True
    out_norm: bool = True

    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {"n_heads": 4, "key_dim": 16, "value_dim": 32, "hidden": 344},
        "110m": {"n_heads": 4, "key_dim": 96, "value_dim": 192, "hidden": 2048},
        "1.3b": {"n_heads": 4, "key_dim": 256, "value_dim": 512, "hidden": 5632},
    }

    @classmethod
    def default_sizes(cls, d_model: int) -> dict[str, Any]:
        width = min(head_width(d_model), d_model)
        return {"n_heads": max(1, d_model // width), "key_dim": width // 2, "value_dim": width}

    @property
    def key_width(self) -> int:
        return self.n_heads * self.key_dim

    @property
    def value_width(self) -> int:
        return self.n_heads * self.value_dim

    @property
    def qkv_width(self) -> int:
        return 2 * self.key_width + self.value_width

    @property
    def gate_width(self) -> int:
        return self.value_width if self.gate else 0

    @property
    def low_rank(self) -> int:
        """Width of the decay's bottleneck, 0 without data-dependent decay."""
        return self.decay_rank if self.decay == "data" else 0

    def mixer_params(self) -> Count:
        convolved = CONV_WIDTH * self.qkv_width if self.conv else 0
        bias = self.key_width if self.decay != "none" else 0
        return Count(
            matrices=self.d_model * (self.qkv_width + self.gate_width + self.low_rank + self.value_width)
            + self.low_rank * self.key_width,
            vectors=convolved + bias + (self.value_dim if self.out_norm else 0),
        )

    def op_flops(self, T: int) -> float:
        per_element = 4 if self.decay == "none" else 5
        convolution = conv_flops(self.qkv_width) if self.conv else 0
        return per_element * self.n_heads * self.key_dim * self.value_dim + convolution

    def mixer_state_bytes(self, T: int) -> int:
        matrix = STATE_BYTES * self.n_heads * self.key_dim * self.value_dim
        return matrix + (conv_state_bytes(self.qkv_width) if self.conv else 0)
