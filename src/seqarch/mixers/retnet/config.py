"""RetNet's retention (arXiv 2307.08621): linear attention with one constant decay a head."""

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
    n_heads, key_dim, value_dim: heads, and the widths of each; published: key_dim d / H, value_dim 2 d / H.
    position: rotation of q and k (the paper's xPos without its scale), or none.
    conv: short convolution + silu on q, k, v.
    gate: silu gate on the normalised output.
    out_norm: RMSNorm over each head of the output.
    """

    n_heads: int = Field(gt=0)
    key_dim: int = Field(gt=0)
    value_dim: int = Field(gt=0)
    position: Literal["rope", "none"] = "rope"
    conv: bool = False
    gate: bool = True
    out_norm: bool = True

    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {"n_heads": 4, "key_dim": 32, "value_dim": 64, "hidden": 172},
        "110m": {"n_heads": 4, "key_dim": 192, "value_dim": 384, "hidden": 1024},
        "1.3b": {"n_heads": 8, "key_dim": 256, "value_dim": 512, "hidden": 2816},
    }

    @classmethod
    def default_sizes(cls, d_model: int) -> dict[str, Any]:
        width = min(head_width(d_model), d_model)
        return {"n_heads": max(1, d_model // width), "key_dim": width, "value_dim": 2 * width}

    @property
    def qkv_width(self) -> int:
        return self.n_heads * (2 * self.key_dim + self.value_dim)

    @property
    def value_width(self) -> int:
        return self.n_heads * self.value_dim

    def mixer_params(self) -> Count:
        projected = self.qkv_width + (self.value_width if self.gate else 0)
        convolved = CONV_WIDTH * self.qkv_width if self.conv else 0
        return Count(
            matrices=self.d_model * (projected + self.value_width),
            vectors=convolved + (self.value_dim if self.out_norm else 0),
        )

    def op_flops(self, T: int) -> float:
        return 5 * self.n_heads * self.key_dim * self.value_dim + (
            conv_flops(self.qkv_width) if self.conv else 0
        )

    def mixer_state_bytes(self, T: int) -> int:
        matrix = STATE_BYTES * self.n_heads * self.key_dim * self.value_dim
        return matrix + (conv_state_bytes(self.qkv_width) if self.conv else 0)
