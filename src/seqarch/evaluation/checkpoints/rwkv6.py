"""RWKV-6 checkpoints: the hub's layout (`RWKV/rwkv-6-world-…`), and the authors' own (`blocks.0.att.…`).

The hub's models bring code of their own, which is never run; they are loaded into the mixer here. With
D = previous - x, five offsets in the order w, k, v, r, g there, and r, k, v, g, w here:

    attention.time_maa_x [d], time_maa_{w,k,v,r,g} [d], time_maa_w1 [d, 5 rank], time_maa_w2 [5, rank, d]
    attention.time_decay [H K], time_decay_w1 [d, rank], time_decay_w2 [rank, H K], time_faaaa [H, K]
    attention.{receptance,key,value,gate,output}.weight, ln_x.{weight,bias}
    feed_forward.time_maa_{k,r} [d], {key,receptance,value}.weight
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from seqarch.evaluation.checkpoints.weights import PretrainedError, Weights, build
from seqarch.mixers.layer import LayerNorm
from seqarch.mixers.rwkv import HeadGroupNorm
from seqarch.model import Decoder

THEIRS = "wkvrg"
OURS = "rkvgw"
_AUTHORS = (
    (re.compile(r"^emb\."), "embeddings."),
    (re.compile(r"\.ln0\."), ".pre_ln."),
    (re.compile(r"\.att\."), ".attention."),
    (re.compile(r"\.ffn\."), ".feed_forward."),
)


def is_one(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is of this kind."""
    return config.get("model_type") == "rwkv6"


def load(config: Mapping[str, Any], weights: Weights, dtype: torch.dtype) -> Decoder:
    """The model, in evaluation mode, on the CPU. Raises PretrainedError for weights that don't fit."""
    weights = Weights({_plain(name): each for name, each in weights.tensors.items()}, weights.source)
    resolved = resolve(config, weights)
    found = {
        "embedding.weight": weights.take("embeddings.weight"),
        "head.weight": weights.take("head.weight"),
        **_norm("embedding_norm", "blocks.0.pre_ln", weights),
        **_norm("final_norm", "ln_out", weights),
    }
    for i, layer in enumerate(resolved["layers"]):
        found |= _block(f"blocks.{i}.", f"blocks.{i}.", layer["config"], weights)
    weights.finish()
    model = build(resolved, found, dtype, weights.source)
    for module in model.modules():
        if isinstance(module, LayerNorm):
            module.eps = config.get("layer_norm_epsilon", 1e-5)
        elif isinstance(module, HeadGroupNorm):
            module.eps = 1e-5 * config.get("head_size_divisor", 8) ** 2
    return model


def resolve(config: Mapping[str, Any], weights: Weights) -> dict[str, Any]:
    """The model as `seqarch.architecture.resolve` writes it; sizes are the tensors' own."""
    vocab, d = weights.take("embeddings.weight").shape
    layers = 1 + max(int(name.split(".")[1]) for name in weights.tensors if name.startswith("blocks."))
    if config.get("tie_word_embeddings"):
        raise PretrainedError(f"{weights.source}: tie_word_embeddings: RWKV-6's head is a matrix of its own")
    heads, width = weights.take("blocks.0.attention.time_faaaa").shape
    if heads * width != d:
        raise PretrainedError(f"{weights.source}: {heads} heads of {width}: the mixer here has d = {d}")
    block = {
        "d_model": d,
        "n_layers": layers,
        "n_heads": heads,
        "head_dim": width,
        "hidden": weights.take("blocks.0.feed_forward.key.weight").shape[0],
        "shift_rank": weights.take("blocks.0.attention.time_maa_w2").shape[1],
        "decay_rank": weights.take("blocks.0.attention.time_decay_w1").shape[1],
    }
    return {
        "d_model": d,
        "vocab_size": vocab,
        "tie_embeddings": False,
        "max_length": 1,  # of learned positions: it has none
        "layers": [{"mixer": "rwkv6", "config": {**block, "layer": i, "ordinal": i}} for i in range(layers)],
    }


def _plain(name: str) -> str:
    name = name.removeprefix("rwkv.").removeprefix("rwkv6.")
    for pattern, new in _AUTHORS:
        name = pattern.sub(new, name)
    return name


def _norm(ours: str, theirs: str, weights: Weights) -> dict[str, Tensor]:
    return {f"{ours}.{part}": weights.take(f"{theirs}.{part}") for part in ("weight", "bias")}


def _block(theirs: str, ours: str, config: Mapping[str, Any], weights: Weights) -> dict[str, Tensor]:
    def take(name: str) -> Tensor:
        return weights.take(theirs + name)

    order = [THEIRS.index(name) for name in OURS]
    down = take("attention.time_maa_w1").unflatten(1, (len(THEIRS), -1))
    found = {
        "mixer.projections": torch.stack(
            [take(f"attention.{name}.weight").T for name in ("receptance", "key", "value", "gate")]
        ),
        "mixer.shift.mu_x": take("attention.time_maa_x").flatten(),
        "mixer.shift.mu": torch.stack([take(f"attention.time_maa_{name}").flatten() for name in OURS]),
        "mixer.shift.down": down[:, order].flatten(1),
        "mixer.shift.up": take("attention.time_maa_w2")[order],
        "mixer.w0": take("attention.time_decay").flatten(),
        "mixer.decay_down": take("attention.time_decay_w1"),
        "mixer.decay_up": take("attention.time_decay_w2"),
        "mixer.u": take("attention.time_faaaa").flatten(),
        "mixer.output.weight": take("attention.output.weight"),
        "channel_mixer.mu": torch.stack([take(f"feed_forward.time_maa_{name}").flatten() for name in "kr"]),
        "channel_mixer.key.weight": take("feed_forward.key.weight"),
        "channel_mixer.receptance.weight": take("feed_forward.receptance.weight"),
        "channel_mixer.output.weight": take("feed_forward.value.weight"),
    }
    found = {ours + name: tensor for name, tensor in found.items()}
    found |= _norm(f"{ours}mixer_norm", f"{theirs}ln1", weights)
    found |= _norm(f"{ours}channel_norm", f"{theirs}ln2", weights)
    return found | _norm(f"{ours}mixer.norm", f"{theirs}attention.ln_x", weights)
