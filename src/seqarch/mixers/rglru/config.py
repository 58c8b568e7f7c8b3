"""The recurrent block of Griffin (arXiv 2402.19427): a gated diagonal recurrence, the RG-LRU."""

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from seqarch.mixers.base import CONV_WIDTH, STATE_BYTES, Count, MixerConfig, conv_flops, conv_state_bytes


class Config(MixerConfig):
    """Attributes:
    width: channels of the recurrence, about 4 d / 3.
    block_width: width of the diagonal blocks of the gates' maps; divides `width`.
    decay: data (the gate r from its input), static (r from its bias alone), or none: h sums the gated inputs.
    conv: short convolution before the recurrence (no activation, as published).
    gate: gelu branch that multiplies the output.
    """

    width: int = Field(gt=0)
    block_width: int = Field(gt=0)
    decay: Literal["data", "static", "none"] = "data"
    conv: bool = True
    gate: bool = True

    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {"width": 160, "block_width": 32, "hidden": 344},
        "110m": {"width": 1024, "block_width": 64, "hidden": 2048},
        "1.3b": {"width": 2816, "block_width": 128, "hidden": 5632},
    }

    @model_validator(mode="after")
    def _blocks_divide_the_width(self) -> "Config":
        if self.width % self.block_width:
            raise ValueError(f"block_width {self.block_width} does not divide width {self.width}")
        return self

    @classmethod
    def default_sizes(cls, d_model: int) -> dict[str, Any]:
        block = 32 if d_model < 512 else 64 if d_model < 1536 else 128
        return {"width": block * max(1, round(4 * d_model / (3 * block))), "block_width": block}

    @property
    def n_gates(self) -> int:
        """Block-diagonal maps: the input gate i, and the recurrence gate r where it depends on the data."""
        return 2 if self.decay == "data" else 1

    def mixer_params(self) -> Count:
        branches = 2 if self.gate else 1
        convolved = (CONV_WIDTH + 1) * self.width if self.conv else 0
        gate_biases = 1 if self.decay == "none" else 2
        recurrence = 0 if self.decay == "none" else 1  # Lambda
        return Count(
            matrices=(branches + 1) * self.d_model * self.width
            + self.n_gates * self.width * self.block_width,
            vectors=convolved + (branches + gate_biases + recurrence) * self.width + self.d_model,
        )

    def op_flops(self, T: int) -> float:
        return 10 * self.width + (conv_flops(self.width) if self.conv else 0)

    def mixer_state_bytes(self, T: int) -> int:
        return STATE_BYTES * self.width + (conv_state_bytes(self.width) if self.conv else 0)
