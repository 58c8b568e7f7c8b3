"""RWKV-5 (arXiv 2404.05892): a constant decay for each key channel, a bonus for the present token, token
shift.
"""

from typing import Any, ClassVar, Literal

from pydantic import Field

from seqarch.mixers.base import CACHE_BYTES, STATE_BYTES, Count, MixerConfig, head_width


class Config(MixerConfig):
    """Attributes:
    n_heads, head_dim: their product is d.
    token_shift: mix each projection's input with the previous token, in time mix and channel mix.
    bonus: the weight u of the present token; without it the read includes the token as any other.
    gate: silu gate on the normalised output.
    position: rotation of r and k, or none.
    out_norm: GroupNorm over each head of the output.
    """

    n_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    token_shift: bool = True
    bonus: bool = True
    gate: bool = True
    position: Literal["none", "rope"] = "none"
    out_norm: bool = True

    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {"n_heads": 4, "head_dim": 32, "hidden": 384},
        "110m": {"n_heads": 12, "head_dim": 64, "hidden": 2304},
        "1.3b": {"n_heads": 32, "head_dim": 64, "hidden": 6272},
    }

    @classmethod
    def default_sizes(cls, d_model: int) -> dict[str, Any]:
        width = min(head_width(d_model), 64, d_model)
        return {"n_heads": max(1, d_model // width), "head_dim": width}

    @property
    def channel_mixer(self) -> Literal["swiglu", "none", "own"]:
        return "own"

    @property
    def norm(self) -> Literal["rms", "layer"]:
        return "layer"

    @property
    def embedding_norm(self) -> bool:
        return True

    @property
    def width(self) -> int:
        return self.n_heads * self.head_dim

    @property
    def projections(self) -> int:
        """r, k, v and the gate."""
        return 4 if self.gate else 3

    def mixer_params(self) -> Count:
        shift = self.projections * self.d_model if self.token_shift else 0
        vectors = self.width * (1 + (1 if self.bonus else 0) + (2 if self.out_norm else 0))  # w0, u, norm
        return Count((self.projections + 1) * self.d_model * self.width, shift + vectors)

    def channel_params(self) -> Count:
        shift = 2 * self.d_model if self.token_shift else 0
        return Count(self.d_model**2 + 2 * self.d_model * self.hidden, shift)

    def op_flops(self, T: int) -> float:
        extra = 5 * self.head_dim if self.bonus else 0
        return self.n_heads * (5 * self.head_dim**2 + extra)

    def mixer_state_bytes(self, T: int) -> int:
        return STATE_BYTES * self.n_heads * self.head_dim**2 + self.channel_state_bytes(T)

    def channel_state_bytes(self, T: int) -> int:
        return CACHE_BYTES * self.d_model if self.token_shift else 0
