"""One decoder for all architectures; it knows no mixer by name.

Block: x = x + mixer(norm(x)); x = x + channel_mixer(norm(x)). Final norm; tied or separate output embedding.
"""

from typing import Any, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqarch.architecture import layer_configs
from seqarch.errors import SeqarchError
from seqarch.mixers import registry
from seqarch.mixers.base import MixerConfig
from seqarch.mixers.layer import LayerNorm, Mixer, RMSNorm, SharedParameters, State, SwiGLU, block_norm
from seqarch.ops.segments import token_positions

EMBEDDING_STD = 0.02


class PositionOutOfRange(SeqarchError):
    """A learned position table is shorter than the sequence."""


class DecoderState(TypedDict):
    """What decoding keeps: the next token's place [B], and for each block its mixer's and channel mixer's
    state.
    """

    position: Tensor
    layers: list[tuple[State | None, State | None]]


class Block(nn.Module):
    """One mixer and what follows it, each with its norm and residual connection."""

    def __init__(self, name: str, config: MixerConfig) -> None:
        super().__init__()
        self.mixer_norm = block_norm(config)
        self.mixer = registry.module_class(name)(config)
        self.channel_norm = None if config.channel_mixer == "none" else block_norm(config)
        self.channel_mixer: Mixer | None = None
        if config.channel_mixer == "swiglu":
            self.channel_mixer = SwiGLU(config)
        elif config.channel_mixer == "own":
            self.channel_mixer = registry.channel_class(name)(config)

    def forward(
        self,
        x: Tensor,
        state: tuple[State | None, State | None],
        segment_ids: Tensor | None,
        positions: Tensor,
        shared: dict[str, Any],
        return_state: bool,
    ) -> tuple[Tensor, tuple[State | None, State | None]]:
        y, mixer_state = self.mixer(
            self.mixer_norm(x), state[0], segment_ids, positions, shared, return_state
        )
        x, channel_state = x + y, None
        if self.channel_mixer is not None and self.channel_norm is not None:
            normed = self.channel_norm(x)
            y, channel_state = self.channel_mixer(
                normed, state[1], segment_ids, positions, shared, return_state
            )
            x = x + y
        return x, (mixer_state, channel_state)


class Decoder(nn.Module):
    """A decoder-only language model, from a resolved model (`seqarch.architecture.resolve`)."""

    def __init__(self, resolved: dict[str, Any]) -> None:
        super().__init__()
        names, configs = layer_configs(resolved)
        d, vocab = resolved["d_model"], resolved["vocab_size"]
        self.embedding = nn.Embedding(vocab, d)
        learned = any(config.learned_positions for config in configs)
        self.position_embedding = nn.Embedding(resolved["max_length"], d) if learned else None
        self.embedding_norm = block_norm(configs[0]) if configs[0].embedding_norm else None
        self.blocks = nn.ModuleList(Block(name, config) for name, config in zip(names, configs, strict=True))
        kinds = sorted({name for name, config in zip(names, configs, strict=True) if config.has_shared})
        self.shared = nn.ModuleDict(
            {
                kind: registry.shared_class(kind)(
                    [c for n, c in zip(names, configs, strict=True) if n == kind]
                )
                for kind in kinds
            }
        )
        self.final_norm = block_norm(configs[-1])
        self.head = None if resolved["tie_embeddings"] else nn.Linear(d, vocab, bias=False)
        self.init_weights(seed=0)

    def forward(
        self,
        ids: Tensor,
        *,
        segment_ids: Tensor | None = None,
        positions: Tensor | None = None,
        state: DecoderState | None = None,
        return_state: bool = False,
    ) -> tuple[Tensor, DecoderState | None]:
        """ids int [B, T] -> logits [B, T, vocab] of the next token, and the state if asked for.

        Args:
            segment_ids: int [B, T], non-decreasing: documents that see nothing of each other.
            positions: int [B, T], places in the document; None: counted, restarting at documents.
            state: of an earlier call, which ids continue.
        """
        x, state = self.hidden(
            ids, segment_ids=segment_ids, positions=positions, state=state, return_state=return_state
        )
        return self.logits(x), state

    def logits(self, hidden: Tensor) -> Tensor:
        """The language model head: [..., d] -> [..., vocab]."""
        return F.linear(hidden, self.embedding.weight if self.head is None else self.head.weight)

    def hidden(
        self,
        ids: Tensor,
        *,
        segment_ids: Tensor | None = None,
        positions: Tensor | None = None,
        state: DecoderState | None = None,
        return_state: bool = False,
    ) -> tuple[Tensor, DecoderState | None]:
        """The last block's output after the final norm [B, T, d]: `forward` without the head."""
        if positions is None:
            positions = token_positions(ids, segment_ids, None if state is None else state["position"])
        x = self.embedding(ids)
        if self.position_embedding is not None:
            self._check_positions(positions)
            x = x + self.position_embedding(positions)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        shared: dict[str, Any] = {kind: module() for kind, module in self.shared.items()}
        before = [(None, None)] * len(self.blocks) if state is None else state["layers"]
        after = []
        for block, block_state in zip(self.blocks, before, strict=True):
            x, block_state = block(x, block_state, segment_ids, positions, shared, return_state)
            after.append(block_state)
        x = self.final_norm(x)
        if not return_state:
            return x, None
        return x, DecoderState(position=positions[..., -1].expand(ids.shape[0]) + 1, layers=after)

    def step(self, ids: Tensor, state: DecoderState | None) -> tuple[Tensor, DecoderState]:
        """One token a row: ids int [B] -> logits [B, vocab] and the next state."""
        logits, state = self(ids[:, None], state=state, return_state=True)
        assert state is not None
        return logits[:, 0], state

    def _check_positions(self, positions: Tensor) -> None:
        assert self.position_embedding is not None
        limit, last = self.position_embedding.num_embeddings, int(positions.max())
        if last >= limit:
            raise PositionOutOfRange(
                f"position {last} is beyond the {limit} learned ones: use shorter sequences, or train with a "
                "longer sequence_length or another `position`"
            )

    # --- parameters -----------------------------------------------------------------------------------

    def init_weights(self, seed: int) -> None:
        """Initialise every parameter as its architecture's authors publish it; equal seeds give equal
        weights.

        The global random state is left as it was.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            nn.init.normal_(self.embedding.weight, std=EMBEDDING_STD)
            if self.position_embedding is not None:
                nn.init.normal_(self.position_embedding.weight, std=EMBEDDING_STD)
            if self.head is not None:
                nn.init.normal_(self.head.weight, std=EMBEDDING_STD)
            for module in self.modules():
                if isinstance(module, RMSNorm | LayerNorm):
                    module.reset_parameters()
            for module in self.modules():
                if isinstance(module, Mixer | SharedParameters):
                    module.init_weights()

    def num_params(self, non_embedding: bool = False) -> int:
        """Parameters; `non_embedding` leaves out token and position embeddings and an untied head."""
        total = sum(p.numel() for p in self.parameters())
        if non_embedding:
            tables = (self.embedding, self.position_embedding, self.head)
            total -= sum(module.weight.numel() for module in tables if module is not None)
        return total

    def decay_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """Two parameter groups for an optimiser: matrices with weight decay; without it 1-d parameters and
        those that their mixer marked (decays, time steps, skips)."""
        decayed: list[nn.Parameter] = []
        free: list[nn.Parameter] = []
        for parameter in self.parameters():
            exempt = parameter.ndim <= 1 or getattr(parameter, "no_weight_decay", False)
            (free if exempt else decayed).append(parameter)
        return [{"params": decayed, "weight_decay": weight_decay}, {"params": free, "weight_decay": 0.0}]
