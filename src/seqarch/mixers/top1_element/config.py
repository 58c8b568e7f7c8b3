"""Attention that keeps only the best element. *Our definition*: `seqarch.ops.top1_element`."""

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from seqarch.mixers.base import CACHE_BYTES, Count, MixerConfig, head_width


class Config(MixerConfig):
    """Attributes:
    n_heads, head_dim: the width of q, k, v is n_heads * head_dim.
    st: the straight-through gradient: dense `softmax` surrogate, `gate`, `scaled`, or `none`.
    st_site: where it enters: dV from the selected rows (`weights`) or from the surrogate (`output`).
    tau: temperature of the surrogate; never changes the selection.
    include_self: whether a query may select its own key.
    granularity: a choice per `head`, or one for all heads (`shared`).
    position: position information.
    rope_theta: base of the rotation.
    """

    n_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    st: Literal["softmax", "gate", "scaled", "none"] = "softmax"
    st_site: Literal["weights", "output"] = "weights"
    tau: float = Field(1.0, gt=0)
    include_self: bool = True
    granularity: Literal["head", "shared"] = "head"
    position: Literal["rope", "none", "alibi", "learned"] = "rope"
    rope_theta: float = Field(10000.0, gt=0)

    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {"n_heads": 4, "head_dim": 32, "hidden": 344},
        "110m": {"n_heads": 12, "head_dim": 64, "hidden": 2048},
        "1.3b": {"n_heads": 16, "head_dim": 128, "hidden": 5632},
    }

    @model_validator(mode="after")
    def _rope_width_is_even(self) -> "Config":
        if self.position == "rope" and self.head_dim % 2:
            raise ValueError(f"rope turns pairs: expected an even head_dim, got {self.head_dim}")
        return self

    @classmethod
    def default_sizes(cls, d_model: int) -> dict[str, Any]:
        width = min(head_width(d_model), d_model)
        return {"n_heads": max(1, d_model // width), "head_dim": width}

    @property
    def width(self) -> int:
        """Channels of q, of k and of v."""
        return self.n_heads * self.head_dim

    @property
    def learned_positions(self) -> bool:
        return self.position == "learned"

    def mixer_params(self) -> Count:
        return Count(matrices=4 * self.d_model * self.width)

    def op_flops(self, T: int) -> float:
        """Scores alone: reading the selected value takes no multiplication."""
        keys_per_query = (T + 1) / 2 if self.include_self else max(T - 1, 1) / 2
        return 2 * self.width * keys_per_query

    def mixer_state_bytes(self, T: int) -> int:
        return CACHE_BYTES * 2 * self.width * T
