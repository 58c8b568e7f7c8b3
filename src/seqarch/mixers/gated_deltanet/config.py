"""Gated DeltaNet (arXiv 2412.06464): the delta rule with a data-dependent decay for each head."""

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
    n_heads, key_dim, value_dim: heads, and the widths of each; published: 0.75 d keys and 1.5 d values in
        all.
    decay: data (from x), static (its bias alone), or none.
    neg_eigval: step sizes up to 2, so that the transition can have negative eigenvalues (arXiv 2411.12537).
    position: rotation of q and k, or none.
    conv: short convolution on q, k, v; without it silu stays.
    gate: silu gate on the normalised output.
    out_norm: RMSNorm over each head of the output.
    """

    n_heads: int = Field(gt=0)
    key_dim: int = Field(gt=0)
    value_dim: int = Field(gt=0)
    decay: Literal["data", "static", "none"] = "data"
    neg_eigval: bool = False
    position: Literal["none", "rope"] = "none"
    conv: bool = True
    gate: bool = True
    out_norm: bool = True

    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {"n_heads": 3, "key_dim": 32, "value_dim": 64, "hidden": 256},
        "110m": {"n_heads": 9, "key_dim": 64, "value_dim": 128, "hidden": 1536},
        "1.3b": {"n_heads": 6, "key_dim": 256, "value_dim": 512, "hidden": 4224},
    }

    @classmethod
    def default_sizes(cls, d_model: int) -> dict[str, Any]:
        key = min(head_width(d_model), 64, max(1, 3 * d_model // 4))
        return {"n_heads": max(1, 3 * d_model // (4 * key)), "key_dim": key, "value_dim": 2 * key}

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
    def scalars(self) -> int:
        """Projected numbers a token: beta, and the decay's step where it depends on the data."""
        return self.n_heads * (2 if self.decay == "data" else 1)

    def mixer_params(self) -> Count:
        convolved = CONV_WIDTH * self.qkv_width if self.conv else 0
        decays = 0 if self.decay == "none" else 2 * self.n_heads  # A_log, dt_bias
        return Count(
            matrices=self.d_model * (self.qkv_width + self.gate_width + self.scalars + self.value_width),
            vectors=convolved + decays + (self.value_dim if self.out_norm else 0),
        )

    def op_flops(self, T: int) -> float:
        per_element = 6 if self.decay == "none" else 7
        convolution = conv_flops(self.qkv_width) if self.conv else 0
        return per_element * self.n_heads * self.key_dim * self.value_dim + convolution

    def mixer_state_bytes(self, T: int) -> int:
        matrix = STATE_BYTES * self.n_heads * self.key_dim * self.value_dim
        return matrix + (conv_state_bytes(self.qkv_width) if self.conv else 0)
