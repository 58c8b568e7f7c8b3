"""RWKV-7 (arXiv 2503.14456): a generalised delta rule with vector-valued decay and in-context learning
rates.
"""

from typing import Any, ClassVar, Literal

from pydantic import Field

from seqarch.mixers.base import CACHE_BYTES, STATE_BYTES, Count, MixerConfig, head_width


class Config(MixerConfig):
    """Attributes:
    n_heads, head_dim: their product is d.
    decay_rank, rate_rank, value_rank, gate_rank: ranks of the maps to the log decay w, the learning rate
        a, the
        mix with the first block's value, and the output gate.
    decay: data, static (w0 alone), or none.
    token_shift: mix each projection's input with the previous token, in time mix and channel mix.
    bonus: the extra weight r_k of the present token.
    gate: gate on the normalised output.
    position: rotation of r and k, or none.
    out_norm: GroupNorm over each head of the output.
    """

    n_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    decay_rank: int = Field(gt=0)
    rate_rank: int = Field(gt=0)
    value_rank: int = Field(gt=0)
    gate_rank: int = Field(gt=0)
    decay: Literal["data", "static", "none"] = "data"
    token_shift: bool = True
    bonus: bool = True
    gate: bool = True
    position: Literal["none", "rope"] = "none"
    out_norm: bool = True

    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        scale: {
            "n_heads": n_heads,
            "head_dim": head_dim,
            "hidden": hidden,
            "decay_rank": ranks[0],
            "rate_rank": ranks[1],
            "value_rank": ranks[2],
            "gate_rank": ranks[3],
        }
        for scale, n_heads, head_dim, hidden, ranks in (
            ("tiny", 4, 32, 448, (16, 16, 16, 32)),
            ("110m", 12, 64, 2816, (64, 64, 32, 128)),
            ("1.3b", 32, 64, 7936, (128, 128, 64, 224)),
        )
    }

    @classmethod
    def default_sizes(cls, d_model: int) -> dict[str, Any]:
        width = min(head_width(d_model), 64, d_model)
        rank = max(8, 8 * round(d_model / 64))
        return {
            "n_heads": max(1, d_model // width),
            "head_dim": width,
            "decay_rank": rank,
            "rate_rank": rank,
            "value_rank": rank,
            "gate_rank": 2 * rank,
        }

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
    def mixes_value(self) -> bool:
        """Whether v is mixed with the first block's."""
        return self.ordinal > 0

    @property
    def inputs(self) -> list[str]:
        """What has a token shift of its own: r, k, v, the rate a, and where they exist decay w and gate g."""
        return ["r", "k", "v", "a", *(["w"] if self.decay == "data" else []), *(["g"] if self.gate else [])]

    def mixer_params(self) -> Count:
        ranks = self.rate_rank
        ranks += self.decay_rank if self.decay == "data" else 0
        ranks += self.value_rank if self.mixes_value else 0
        ranks += self.gate_rank if self.gate else 0
        # a0, k_k, k_a; w0; v0; r_k; weight and bias of the norm
        per_channel = 3 + (self.decay != "none") + self.mixes_value + self.bonus + 2 * self.out_norm
        shifts = len(self.inputs) * self.d_model if self.token_shift else 0
        return Count(
            matrices=4 * self.d_model * self.width + ranks * (self.d_model + self.width),
            vectors=per_channel * self.width + shifts,
        )

    def channel_params(self) -> Count:
        return Count(2 * self.d_model * self.hidden, self.d_model if self.token_shift else 0)

    def op_flops(self, T: int) -> float:
        per_element = 8 if self.decay == "none" else 9
        extra = 5 * self.head_dim if self.bonus else 0
        return self.n_heads * (per_element * self.head_dim**2 + extra)

    def mixer_state_bytes(self, T: int) -> int:
        return STATE_BYTES * self.n_heads * self.head_dim**2 + self.channel_state_bytes(T)

    def channel_state_bytes(self, T: int) -> int:
        return CACHE_BYTES * self.d_model if self.token_shift else 0
