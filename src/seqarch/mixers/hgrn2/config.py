"""HGRN2 (arXiv 2404.07904): the forget gate is the decay, what it forgets is the key; lower bounds grow with
depth.
"""

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
    n_heads, head_dim: their product is d; head_dim is the paper's expansion.
    decay: data (the forget gate), static (the gate at a pre-activation of 0: only the lower bounds are
        learned; keys stay data-dependent), or none.
    position: rotation of q and k, or none.
    conv: short convolution on q, f, i, before their activations.
    out_norm: RMSNorm over the whole output.
    """

    n_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    decay: Literal["data", "static", "none"] = "data"
    position: Literal["none", "rope"] = "none"
    conv: bool = False
    out_norm: bool = True

    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {"n_heads": 4, "head_dim": 32, "hidden": 344},
        "110m": {"n_heads": 6, "head_dim": 128, "hidden": 2048},
        "1.3b": {"n_heads": 16, "head_dim": 128, "hidden": 5632},
    }

    @classmethod
    def default_sizes(cls, d_model: int) -> dict[str, Any]:
        width = min(head_width(d_model), d_model)
        return {"n_heads": max(1, d_model // width), "head_dim": width}

    @property
    def has_shared(self) -> bool:
        return True

    @property
    def width(self) -> int:
        return self.n_heads * self.head_dim

    def mixer_params(self) -> Count:
        vectors = (
            self.width
            + (self.width if self.out_norm else 0)
            + (CONV_WIDTH * 3 * self.width if self.conv else 0)
        )
        return Count(
            matrices=4 * self.d_model * self.width, vectors=vectors
        )  # a row of the bounds' table included

    def op_flops(self, T: int) -> float:
        per_element = 4 if self.decay == "none" else 5
        convolution = conv_flops(3 * self.width) if self.conv else 0
        return per_element * self.n_heads * self.head_dim**2 + convolution

    def mixer_state_bytes(self, T: int) -> int:
        convolution = conv_state_bytes(3 * self.width) if self.conv else 0
        return STATE_BYTES * self.n_heads * self.head_dim**2 + convolution
