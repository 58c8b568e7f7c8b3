"""The layer interface of mixers and channel mixers, and the small modules they are built of."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqarch.mixers.base import CONV_WIDTH, MixerConfig
from seqarch.ops.causal_conv1d import causal_conv1d
from seqarch.ops.rope import cached_rope_table, rotate
from seqarch.ops.segments import token_positions

State = dict[str, Tensor]


class Mixer(nn.Module):
    """A layer that mixes over time (or, as a channel mixer, over channels): parallel form and recurrent step
    in one.

    The default initialisation is the common one; a mixer with a published one calls `super().init_weights()`
    first and then sets what differs. Names matter: `output` is the projection back into the residual stream.
    """

    def __init__(self, config: MixerConfig) -> None:
        super().__init__()
        self.n_layers = config.n_layers

    def forward(
        self,
        x: Tensor,
        state: State | None = None,
        segment_ids: Tensor | None = None,
        positions: Tensor | None = None,
        shared: dict[str, Any] | None = None,
        return_state: bool = True,
    ) -> tuple[Tensor, State | None]:
        """Args:
            x: [B, T, d], already normalised. T = 1 with a state is the recurrent step.
            state: what an earlier call returned: x continues its sequence. Never changed in place.
            segment_ids: int [B, T], non-decreasing; nothing passes between tokens of different ids. A state
                belongs to the first document; the returned state is that of the last.
            positions: int [B, T] places in the document; None: counted on from the state, restarting at
                documents.
            shared: values of this forward pass that blocks share: the result of each mixer's `Shared` under
                the mixer's name, and what blocks leave for later ones. A block alone in a test gets None.
            return_state: False lets the layer skip the final state, and None is returned for it.

        Returns: y [B, T, d] and the state after the last token.
        """
        raise NotImplementedError

    def init_weights(self) -> None:
        """Linear weights normal(0, 0.02), `output` divided by sqrt(2 L), biases zero, convolutions as
        nn.Conv1d.
        """
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                std = 0.02 / math.sqrt(2 * self.n_layers) if name == "output" else 0.02
                nn.init.normal_(module.weight, std=std)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, ShortConvolution | RMSNorm | LayerNorm):
                module.reset_parameters()


class SharedParameters(nn.Module):
    """Parameters of the model that all blocks of one mixer read: the hook `has_shared`.

    A mixer's `Shared(configs)` is built from the configurations of its blocks, in order. Once in a forward
    pass it is called without arguments, and blocks find the result as `shared[<mixer name>]`.
    """

    def forward(self) -> Any:
        raise NotImplementedError

    def init_weights(self) -> None:
        raise NotImplementedError


class SwiGLU(Mixer):
    """y = W_o (silu(W_g x) * W_u x), hidden width h (arXiv 2002.05202)."""

    def __init__(self, config: MixerConfig) -> None:
        super().__init__(config)
        self.gate_up = nn.Linear(config.d_model, 2 * config.hidden, bias=False)  # W_g and W_u in one product
        self.output = nn.Linear(config.hidden, config.d_model, bias=False)

    def forward(
        self,
        x: Tensor,
        state: State | None = None,
        segment_ids: Tensor | None = None,
        positions: Tensor | None = None,
        shared: dict[str, Any] | None = None,
        return_state: bool = True,
    ) -> tuple[Tensor, State | None]:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.output(F.silu(gate) * up), None


class RMSNorm(nn.Module):
    """x / sqrt(mean x² + eps) * weight over the last dimension (arXiv 1910.07467)."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class LayerNorm(nn.LayerNorm):
    """LayerNorm with bias, eps 1e-5 (RWKV's blocks)."""


def block_norm(config: MixerConfig) -> nn.Module:
    """The norm of a block's sublayers, by the mixer's hook."""
    return LayerNorm(config.d_model) if config.norm == "layer" else RMSNorm(config.d_model)


class ShortConvolution(nn.Module):
    """Depthwise causal convolution over time, then silu (or nothing): [B, T, D] -> the same."""

    def __init__(self, channels: int, bias: bool = False, silu: bool = True, width: int = CONV_WIDTH) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, channels))  # weight[i] multiplies the input i steps ago
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None
        self.silu = silu
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform(±width^-1/2), the default of nn.Conv1d with one channel per group."""
        bound = self.weight.shape[0] ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(
        self, x: Tensor, state: Tensor | None = None, segment_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """x [B, T, D], state [B, W-1, D] -> y [B, T, D], state."""
        y, state = causal_conv1d(x, self.weight, self.bias, initial_state=state, segment_ids=segment_ids)
        return (F.silu(y) if self.silu else y), state


def no_weight_decay(parameter: nn.Parameter) -> nn.Parameter:
    """Mark a parameter that the optimiser does not decay (1-d parameters never are)."""
    parameter.no_weight_decay = True  # type: ignore[attr-defined]
    return parameter


def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """[B, T, H * D] -> [B, T, H, D]."""
    return x.unflatten(-1, (n_heads, -1))


def head_norm(width: int, enabled: bool) -> nn.Module:
    """RMSNorm over each head of an output [B, T, H, width] (one weight vector for all heads), or nothing."""
    return RMSNorm(width) if enabled else nn.Identity()


def turn(
    x: Tensor,
    before: State,
    after: State,
    segment_ids: Tensor | None,
    positions: Tensor | None,
    shared: dict[str, Any] | None,
    theta: float = 10000.0,
    width: int | None = None,
) -> Tensor:
    """Rotary positions on heads x [B, T, H, D] (their first `width` channels); counts `position` in the
    states.

    Args:
        before, after: the layer's state and the one it is making.
        positions: as the layer got them; None: counted on from the state.
    """
    if positions is None:
        positions = token_positions(x, segment_ids, before.get("position"))
    after["position"] = positions[..., -1].expand(x.shape[0]) + 1
    return rotate(x, cached_rope_table(positions, width or x.shape[-1], theta, x.dtype, shared))
