"""Mamba (arXiv 2312.00752): a selective state space in each channel."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from seqarch.mixers.base import CONV_WIDTH, STATE_BYTES, Count, MixerConfig, conv_flops, conv_state_bytes


class Config(MixerConfig):
    """Attributes:
    inner: channels of the scan, 2 d as published.
    d_state: states of each channel.
    dt_rank: rank of the map from x to the step sizes, d / 16 rounded up as published.
    decay: data (from the step size), static (the decay's step size from its bias alone; the input's stays
        data-dependent), or none.
    conv: short convolution on the inner channels; without it silu stays.
    gate: silu gate on the output.
    """

    inner: int = Field(gt=0)
    dt_rank: int = Field(gt=0)
    d_state: int = Field(16, gt=0)
    decay: Literal["data", "static", "none"] = "data"
    conv: bool = True
    gate: bool = True

    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "nano": {
            "inner": 120,
            "dt_rank": 4,
        },  # 2 d would leave no depth within 5 % of the transformer's parameters
    }

    @classmethod
    def default_sizes(cls, d_model: int) -> dict[str, Any]:
        return {"inner": 2 * d_model, "dt_rank": -(-d_model // 16)}

    @property
    def channel_mixer(self) -> Literal["swiglu", "none", "own"]:
        return "none"

    def mixer_params(self) -> Count:
        low_rank = self.dt_rank + 2 * self.d_state  # dt, B, C
        convolved = (CONV_WIDTH + 1) * self.inner if self.conv else 0
        states = 0 if self.decay == "none" else self.d_state  # A_log
        return Count(
            matrices=self.inner * ((3 if self.gate else 2) * self.d_model + low_rank + self.dt_rank),
            vectors=convolved + self.inner * (states + 2),  # and D, the step's bias
        )

    def op_flops(self, T: int) -> float:
        per_state = 5 if self.decay == "none" else 7
        return self.inner * (per_state * self.d_state + 3) + (conv_flops(self.inner) if self.conv else 0)

    def mixer_state_bytes(self, T: int) -> int:
        convolution = conv_state_bytes(self.inner) if self.conv else 0
        return STATE_BYTES * self.inner * self.d_state + convolution
