"""RWKV-6 (arXiv 2404.05892): RWKV-5 with a data-dependent decay and a data-dependent token shift."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from seqarch.mixers.base import CACHE_BYTES, STATE_BYTES, Count, MixerConfig, head_width


class Config(MixerConfig):
    """Attributes:
    n_heads, head_dim: their product is d.
    shift_rank, decay_rank: ranks of the maps from x to the shifts and to the log decays.
    decay: data, static (w0 alone), or none.
    token_shift: mix each projection's input with the previous token, in time mix and channel mix.
    bonus: the weight u of the present token; without it the read includes the token as any other.
    gate: silu gate on the normalised output.
    position: rotation of r and k, or none.
    out_norm: GroupNorm over each head of the output.
    """

    n_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    shift_rank: int = Field(gt=0)
    decay_rank: int = Field(gt=0)
    decay: Literal["data", "static", "none"] = "data"
    token_shift: bool = True
    bonus: bool = True
    gate: bool = True
    position: Literal["none", "rope"] = "none"
    out_norm: bool = True

    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {"n_heads": 4, "head_dim": 32, "hidden": 352, "shift_rank": 8, "decay_rank": 16},
        "110m": {"n_heads": 12, "head_dim": 64, "hidden": 2176, "shift_rank": 32, "decay_rank": 64},
        "1.3b": {"n_heads": 32, "head_dim": 64, "hidden": 6144, "shift_rank": 32, "decay_rank": 64},
    }

    @classmethod
    def default_sizes(cls, d_model: int) -> dict[str, Any]:
        width, rank = min(head_width(d_model), 64, d_model), 8 if d_model < 512 else 32
        n_heads = max(1, d_model // width)
        return {"n_heads": n_heads, "head_dim": width, "shift_rank": rank, "decay_rank": 2 * rank}

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

    @property
    def shifts(self) -> int:
        """Inputs with a shift of their own: the projections', and the decay's if it has one."""
        return self.projections + (1 if self.decay == "data" else 0)

    def mixer_params(self) -> Count:
        d = self.d_model
        matrices, vectors = (self.projections + 1) * d * self.width, 0
        if self.token_shift:
            matrices += 2 * self.shifts * self.shift_rank * d
            vectors += (1 + self.shifts) * d
        if self.decay == "data":
            matrices += self.decay_rank * (d + self.width)
        per_channel = (self.decay != "none") + self.bonus + 2 * self.out_norm  # w0, u, norm
        return Count(matrices, vectors + per_channel * self.width)

    def channel_params(self) -> Count:
        shift = 2 * self.d_model if self.token_shift else 0
        return Count(self.d_model**2 + 2 * self.d_model * self.hidden, shift)

    def op_flops(self, T: int) -> float:
        per_element = 4 if self.decay == "none" else 5
        extra = 5 * self.head_dim if self.bonus else 0
        return self.n_heads * (per_element * self.head_dim**2 + extra)

    def mixer_state_bytes(self, T: int) -> int:
        return STATE_BYTES * self.n_heads * self.head_dim**2 + self.channel_state_bytes(T)

    def channel_state_bytes(self, T: int) -> int:
        return CACHE_BYTES * self.d_model if self.token_shift else 0
