"""Linear attention (arXiv 2006.16236): no decay, a feature map in place of the softmax."""

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
    n_heads, key_dim, value_dim: heads, and the widths of each before the feature map.
    feature_map: elu(x) + 1; the identity; or `based`, the second-order Taylor map of arXiv 2402.18668, which
        widens a key of K channels to 1 + K + K² (choose key_dim 16).
    normalize: divide by the sum of the scores; None: with every map but the identity, whose scores have any
        sign.
    position: rotation of q and k before the map, or none.
    conv: short convolution + silu on q, k, v.
    out_norm: RMSNorm over each head of the output.
    """

    n_heads: int = Field(gt=0)
    key_dim: int = Field(gt=0)
    value_dim: int = Field(gt=0)
    feature_map: Literal["elu", "identity", "based"] = "elu"
    normalize: bool | None = None
    position: Literal["none", "rope"] = "none"
    conv: bool = False
    out_norm: bool = True

    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {"n_heads": 4, "key_dim": 32, "value_dim": 32, "hidden": 344},
        "110m": {"n_heads": 4, "key_dim": 192, "value_dim": 192, "hidden": 2048},
        "1.3b": {"n_heads": 4, "key_dim": 512, "value_dim": 512, "hidden": 5632},
    }

    @classmethod
    def default_sizes(cls, d_model: int) -> dict[str, Any]:
        width = min(head_width(d_model), d_model)
        return {"n_heads": max(1, d_model // width), "key_dim": width, "value_dim": width}

    @property
    def normalized(self) -> bool:
        return self.feature_map != "identity" if self.normalize is None else self.normalize

    @property
    def feature_dim(self) -> int:
        """Width of a key after the feature map."""
        return 1 + self.key_dim + self.key_dim**2 if self.feature_map == "based" else self.key_dim

    @property
    def key_width(self) -> int:
        return self.n_heads * self.key_dim

    @property
    def value_width(self) -> int:
        return self.n_heads * self.value_dim

    @property
    def qkv_width(self) -> int:
        return 2 * self.key_width + self.value_width

    def mixer_params(self) -> Count:
        return Count(
            matrices=self.d_model * (self.qkv_width + self.value_width),
            vectors=(CONV_WIDTH * self.qkv_width if self.conv else 0)
            + (self.value_dim if self.out_norm else 0),
        )

    def op_flops(self, T: int) -> float:
        convolution = conv_flops(self.qkv_width) if self.conv else 0
        return 4 * self.n_heads * self.feature_dim * self.value_dim + convolution

    def mixer_state_bytes(self, T: int) -> int:
        columns = self.value_dim + (1 if self.normalized else 0)
        convolution = conv_state_bytes(self.qkv_width) if self.conv else 0
        return STATE_BYTES * self.n_heads * self.feature_dim * columns + convolution
