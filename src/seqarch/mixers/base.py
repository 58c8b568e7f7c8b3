"""What every mixer's configuration shares: its place in the model, the four hooks, the accounting.

A mixer is a folder `mixers/<name>/` with `config.py` (class `Config`, no torch) and `module.py` (class
`Mixer`). What differs between blocks goes through four hooks and nothing else:

- `channel_mixer`: what follows the mixer in its block: a SwiGLU, nothing, or the mixer's own (class
    `ChannelMixer`);
- `norm`: RMSNorm or LayerNorm, for the norms of the block;
- `has_shared`: model-level parameters and per-forward values (class `Shared`);
- `embedding_norm`, `learned_positions`: what the mixer wants of the embedding.

Counting follows one convention: one multiply-add = 2 FLOPs, forward only, causal work exact, weights that
multiply every token counted by `Count.matrices`, everything else a mixer computes by `op_flops`.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from pydantic import Field

from seqarch.schema import Spec

PLACE = ("d_model", "n_layers", "layer", "ordinal", "max_length")  # fields the model sets, not its user
SCALES: dict[str, tuple[int, int]] = {
    "nano": (64, 3),
    "tiny": (128, 4),
    "110m": (768, 12),
    "1.3b": (2048, 24),
}
CACHE_BYTES = 2  # keys, values, convolution and shift buffers, counted in bfloat16
STATE_BYTES = 4  # matrix and scan states, float32


@dataclass(frozen=True)
class Count:
    """Numbers of parameters.

    Attributes:
        matrices: weights that multiply every token, 2 FLOPs each.
        vectors: all others: norms, biases, convolutions, decays.
    """

    matrices: int = 0
    vectors: int = 0

    def __add__(self, other: "Count") -> "Count":
        return Count(self.matrices + other.matrices, self.vectors + other.vectors)

    @property
    def total(self) -> int:
        return self.matrices + self.vectors


class MixerConfig(Spec):
    """The options of one block. Subclasses add their switches as fields with defaults, and the counts.

    Attributes:
        d_model: width of the residual stream.
        n_layers: number of blocks of the model, for depth-dependent initialisation.
        layer: the block's place in the model, from 0.
        ordinal: the block's place among the blocks of the same mixer, from 0.
        max_length: longest sequence of training, for learned positions.
        hidden: width of the channel mixer; chosen to match the transformer's parameters when not given.
    """

    d_model: int = Field(gt=0)
    n_layers: int = Field(1, gt=0)
    layer: int = Field(0, ge=0)
    ordinal: int = Field(0, ge=0)
    max_length: int = Field(2048, gt=0)
    hidden: int = Field(0, ge=0)

    sizes: ClassVar[dict[str, dict[str, Any]]] = {}
    """Field values at the named scales; `layers` (if the block has no channel mixer) is the number of
    blocks.
    """

    @classmethod
    def default_sizes(cls, d_model: int) -> dict[str, Any]:
        """Field values (head counts and widths) for a width that is no named scale."""
        raise NotImplementedError

    @classmethod
    def sizes_for(cls, d_model: int, scale: str | None) -> dict[str, Any]:
        """Default sizes: those of the named scale where the mixer lists it, else by rule from the width."""
        if scale is not None and scale in cls.sizes:
            return dict(cls.sizes[scale])
        return cls.default_sizes(d_model)

    # --- hooks ----------------------------------------------------------------------------------------

    @property
    def channel_mixer(self) -> Literal["swiglu", "none", "own"]:
        return "swiglu"

    @property
    def norm(self) -> Literal["rms", "layer"]:
        return "rms"

    @property
    def has_shared(self) -> bool:
        """Whether `module.py` has a class `Shared`: parameters of the model that all blocks of this mixer
        read.
        """
        return False

    @property
    def embedding_norm(self) -> bool:
        """Whether a norm (of the kind `norm`) follows the token embedding; the first block decides."""
        return False

    @property
    def learned_positions(self) -> bool:
        """Whether a learned table of `max_length` positions is added to the embedding."""
        return False

    # --- accounting -----------------------------------------------------------------------------------

    def mixer_params(self) -> Count:
        """Parameters of the mixer, with its rows of model-level tables."""
        raise NotImplementedError

    def op_flops(self, T: int) -> float:
        """FLOPs per token of what the mixer computes beside `Count.matrices`, in sequences of length T."""
        raise NotImplementedError

    def mixer_state_bytes(self, T: int) -> int:
        """Bytes that decoding one sequence keeps after T tokens, mixer only."""
        raise NotImplementedError

    def channel_params(self) -> Count:
        if self.channel_mixer == "none":
            return Count()
        return Count(matrices=3 * self.d_model * self.hidden)

    def channel_state_bytes(self, T: int) -> int:
        return 0

    def norm_params(self) -> int:
        """Parameters of one norm over the width."""
        return self.d_model * (2 if self.norm == "layer" else 1)

    def block_params(self) -> Count:
        norms = 1 if self.channel_mixer == "none" else 2
        return self.mixer_params() + self.channel_params() + Count(vectors=norms * self.norm_params())

    def num_params(self) -> int:
        """Parameters of the block: mixer, channel mixer, norms."""
        return self.block_params().total

    def flops_per_token(self, T: int) -> float:
        """Forward FLOPs per token of the block in sequences of length T: a property of the model, not of the
        algorithm.
        """
        return 2 * self.block_params().matrices + self.op_flops(T)

    def state_bytes(self, T: int) -> int:
        """Bytes that decoding one sequence keeps for this block after T tokens."""
        return self.mixer_state_bytes(T) + self.channel_state_bytes(T)

    # --- matching -------------------------------------------------------------------------------------

    def with_hidden_for(self, target: float) -> Self:
        """The same block with the channel mixer's width (a multiple of 8) that comes closest to `target`
        parameters.
        """
        empty, one = self.model_copy(update={"hidden": 0}), self.model_copy(update={"hidden": 8})
        per_step = one.num_params() - empty.num_params()
        return self.model_copy(update={"hidden": 8 * max(1, round((target - empty.num_params()) / per_step))})


def reference_hidden(d_model: int) -> int:
    """The transformer's SwiGLU width: 8/3 d rounded up to a multiple of 8, so that its block has about 12
    d².
    """
    return 5632 if d_model == SCALES["1.3b"][0] else 8 * -(-d_model // 3)


def reference_block_params(d_model: int) -> int:
    """Parameters of the transformer's block, which every architecture matches: 4 d² + 3 d h + 2 d."""
    return 4 * d_model**2 + 3 * d_model * reference_hidden(d_model) + 2 * d_model


def head_width(d_model: int) -> int:
    """Width of an attention head where no scale is named: 32 below width 512, 64 below 1536, else 128."""
    return 32 if d_model < 512 else 64 if d_model < 1536 else 128


CONV_WIDTH = 4


def conv_flops(channels: int) -> int:
    """FLOPs per token of a depthwise causal convolution."""
    return 2 * CONV_WIDTH * channels


def conv_state_bytes(channels: int) -> int:
    return CACHE_BYTES * (CONV_WIDTH - 1) * channels
