"""DeltaNet (arXiv 2406.06484): linear attention whose state is corrected by the delta rule, without decay."""

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
    n_heads, head_dim: their product is the width of q, k and v, d as published.
    neg_eigval: step sizes up to 2, so that the transition can have negative eigenvalues (arXiv 2411.12537).
    position: rotation of q and k, or none.
    conv: short convolution on q, k, v; without it silu stays.
    out_norm: RMSNorm over each head of the output.
    """

    n_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    neg_eigval: bool = False
    position: Literal["none", "rope"] = "none"
    conv: bool = True
    out_norm: bool = True

    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {"n_heads": 4, "head_dim": 32, "hidden": 344},
        "110m": {"n_heads": 6, "head_dim": 128, "hidden": 2048},
        "1.3b": {"n_heads": 16, "head_dim": 128, "hidden": 5632},
    }

    @classmethod
    def default_sizes(cls, d_model: int) -> dict[str, Any]:
        width = min(128 if d_model >= 512 else head_width(d_model), d_model)
        return {"n_heads": max(1, d_model // width), "head_dim": width}

    @property
    def width(self) -> int:
        return self.n_heads * self.head_dim

    def mixer_params(self) -> Count:
        convolved = 3 * CONV_WIDTH * self.width if self.conv else 0
        return Count(
            matrices=self.d_model * (4 * self.width + self.n_heads),
            vectors=convolved + (self.head_dim if self.out_norm else 0),
        )

    def op_flops(self, T: int) -> float:
        return 6 * self.n_heads * self.head_dim**2 + (conv_flops(3 * self.width) if self.conv else 0)

    def mixer_state_bytes(self, T: int) -> int:
        matrix = STATE_BYTES * self.n_heads * self.head_dim**2
        return matrix + (conv_state_bytes(3 * self.width) if self.conv else 0)
