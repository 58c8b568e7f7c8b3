"""Mamba-2 (arXiv 2405.21060): state space duality, one scalar decay a head, keys and queries shared by all
heads.
"""

from typing import Any, ClassVar, Literal

from pydantic import Field

from seqarch.mixers.base import CONV_WIDTH, STATE_BYTES, Count, MixerConfig, conv_flops, conv_state_bytes


class Config(MixerConfig):
    """Attributes:
    n_heads, head_dim: their product is the inner width, 2 d as published.
    d_state: width of B and C, the key and the query.
    decay: data (from the step size), static (step size of the decay from its bias alone; the input's stays
        data-dependent), or none.
    position: rotation of B and C, or none.
    conv: short convolution on x, B, C; without it silu stays.
    gate: silu gate before the output norm.
    out_norm: RMSNorm over the inner width.
    """

    n_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    d_state: int = Field(gt=0)
    decay: Literal["data", "static", "none"] = "data"
    position: Literal["none", "rope"] = "none"
    conv: bool = True
    gate: bool = True
    out_norm: bool = True

    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {"n_heads": 8, "head_dim": 32, "d_state": 64},
        "110m": {"n_heads": 24, "head_dim": 64, "d_state": 128},
        "1.3b": {"n_heads": 64, "head_dim": 64, "d_state": 128},
    }

    @classmethod
    def default_sizes(cls, d_model: int) -> dict[str, Any]:
        head_dim = 32 if d_model < 512 else 64
        return {
            "n_heads": max(1, 2 * d_model // head_dim),
            "head_dim": head_dim,
            "d_state": min(128, max(16, d_model // 2)),
        }

    @property
    def channel_mixer(self) -> Literal["swiglu", "none", "own"]:
        return "none"

    @property
    def inner(self) -> int:
        return self.n_heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        """x, B and C."""
        return self.inner + 2 * self.d_state

    def mixer_params(self) -> Count:
        projected = (self.inner if self.gate else 0) + self.conv_channels + self.n_heads
        convolved = (CONV_WIDTH + 1) * self.conv_channels if self.conv else 0
        per_head = self.n_heads * (2 if self.decay == "none" else 3)  # dt_bias, D, and A_log
        return Count(
            matrices=self.d_model * (projected + self.inner),
            vectors=convolved + per_head + (self.inner if self.out_norm else 0),
        )

    def op_flops(self, T: int) -> float:
        per_element = 4 if self.decay == "none" else 5
        convolution = conv_flops(self.conv_channels) if self.conv else 0
        return per_element * self.d_state * self.inner + 3 * self.inner + convolution

    def mixer_state_bytes(self, T: int) -> int:
        convolution = conv_state_bytes(self.conv_channels) if self.conv else 0
        return STATE_BYTES * self.inner * self.d_state + convolution
