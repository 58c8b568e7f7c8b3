"""Checkpoints in the layout of the package mamba_ssm: Mamba-2, attention, and hybrids of both.

`state-spaces/mamba2-2.7b`, `mamba2attn-2.7b` and `transformerpp-2.7b` are written by its `MambaLMHeadModel`,
which transformers doesn't load. Names and shapes as there, one block:

    backbone.layers.<i>.norm.weight [d]
    backbone.layers.<i>.mixer.                       Mamba-2                       attention
        in_proj.weight                               [z | x, B, C | dt, d]         [q | k | v, d]
        conv1d.weight [channels, 1, 4], .bias        of x, B, C; then silu         of q, k, v; no silu
        dt_bias, A_log, D [H]; norm.weight [2 d]     yes                           no
        out_proj.weight                              [d, 2 d]                      [d, H D]
    backbone.layers.<i>.norm2.weight [d], mlp.fc1.weight [up | gate, d], mlp.fc2.weight; with d_intermediate

and backbone.embedding.weight, backbone.norm_f.weight, lm_head.weight. Attention turns the first
rotary_emb_dim channels of each head. A convolution's last weight belongs to the present token; here the
first does.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from seqarch.evaluation.checkpoints.weights import PretrainedError, Weights, build
from seqarch.mixers.layer import RMSNorm
from seqarch.model import Decoder

EPS = 1e-5  # of all norms there
# What these options are everywhere in the released models; other values are other functions.
SSM = {
    "layer": "Mamba2",
    "d_conv": 4,
    "ngroups": 1,
    "d_ssm": None,
    "D_has_hdim": False,
    "rmsnorm": True,
    "norm_before_gate": False,
    "bias": False,
    "conv_bias": True,
}
ATTENTION = {
    "causal": True,
    "qkv_proj_bias": False,
    "out_proj_bias": False,
    "softmax_scale": None,
    "rotary_emb_interleaved": False,
    "mlp_dim": 0,
}
DEFAULTS = {"qkv_proj_bias": True, "out_proj_bias": True, "causal": False, "layer": "Mamba1"}  # of mamba_ssm
# How they were initialised and are computed, and, after it, what is read.
IGNORED = {"chunk_size", "use_mem_eff_path", "A_init_range", "dt_min", "dt_max", "dt_init_floor", "conv_init"}
READ = {"expand", "headdim", "d_state", "num_heads", "num_heads_kv", "head_dim", "d_conv"}
READ |= {"rotary_emb_dim", "rotary_emb_base"}


def is_one(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is of this kind."""
    return "model_type" not in config and {"d_model", "n_layer", "ssm_cfg"} <= set(config)


def load(config: Mapping[str, Any], weights: Weights, dtype: torch.dtype) -> Decoder:
    """The model, in evaluation mode, on the CPU.

    Raises PretrainedError for an option that the mixers here don't have, and for weights that don't fit.
    """
    resolved = resolve(config, weights)
    found = {
        "embedding.weight": weights.take("backbone.embedding.weight"),
        "final_norm.weight": weights.take("backbone.norm_f.weight"),
    }
    head = weights.take("lm_head.weight") if "lm_head.weight" in weights else None
    if not resolved["tie_embeddings"]:
        found["head.weight"] = weights.take("lm_head.weight")
    elif head is not None and not torch.equal(head, found["embedding.weight"]):
        raise PretrainedError(f"{weights.source}: tie_embeddings, but lm_head.weight is not the embedding")
    for i, layer in enumerate(resolved["layers"]):
        found |= _block(f"backbone.layers.{i}.", f"blocks.{i}.", layer, weights)
    weights.finish()
    model = build(resolved, found, dtype, weights.source)
    for module in model.modules():
        if isinstance(module, RMSNorm):
            module.eps = EPS
    return model


def resolve(config: Mapping[str, Any], weights: Weights) -> dict[str, Any]:
    """The model as `seqarch.architecture.resolve` writes it. Widths that the config leaves to defaults or to
    rounding are the tensors' own."""
    d, n = config["d_model"], config["n_layer"]
    ssm, attention = dict(config.get("ssm_cfg") or {}), dict(config.get("attn_cfg") or {})
    chosen = set(config.get("attn_layer_idx") or [])
    if config.get("rms_norm") is not True:
        raise _unknown(weights, "rms_norm", config.get("rms_norm"), True)
    if len(chosen) < n:
        _check(weights, "ssm_cfg", ssm, SSM)
        if config.get("d_intermediate", 0):
            raise _unknown(weights, "d_intermediate (with Mamba-2 blocks)", config["d_intermediate"], 0)
    if chosen:
        _check(weights, "attn_cfg", attention, ATTENTION)
    layers = [
        _attention(i, d, attention, bool(config.get("d_intermediate", 0)), weights)
        if i in chosen
        else _mamba2(d, ssm)
        for i in range(n)
    ]
    seen = {"attention": 0, "mamba2": 0}
    for i, layer in enumerate(layers):
        layer["config"] |= {"layer": i, "n_layers": n, "ordinal": seen[layer["mixer"]], "d_model": d}
        seen[layer["mixer"]] += 1
    return {
        "d_model": d,
        "vocab_size": weights.take("backbone.embedding.weight").shape[0],  # padded to a multiple
        "tie_embeddings": bool(config.get("tie_embeddings", True)),
        "max_length": 1,  # of learned positions: it has none
        "layers": layers,
    }


def _mamba2(d: int, ssm: Mapping[str, Any]) -> dict[str, Any]:
    inner, head = d * ssm.get("expand", 2), ssm.get("headdim", 64)
    return {
        "mixer": "mamba2",
        "config": {"n_heads": inner // head, "head_dim": head, "d_state": ssm.get("d_state", 128)},
    }


def _attention(i: int, d: int, options: Mapping[str, Any], mlp: bool, weights: Weights) -> dict[str, Any]:
    heads = options["num_heads"]
    width = options.get("head_dim") or d // heads
    if options.get("num_heads_kv") not in (None, heads):
        raise _unknown(weights, "attn_cfg.num_heads_kv", options["num_heads_kv"], heads)
    if options.get("d_conv", 0) not in (0, 4):
        raise _unknown(weights, "attn_cfg.d_conv", options["d_conv"], "0 or 4")
    rotary, conv = options.get("rotary_emb_dim", 0), bool(options.get("d_conv", 0))
    config: dict[str, Any] = {
        "n_heads": heads,
        "head_dim": width,
        "position": "rope" if rotary else "none",
        "rope_fraction": rotary / width if rotary else 1.0,
        "rope_theta": float(options.get("rotary_emb_base", 10000.0)),
        "conv": conv,
        "conv_bias": conv,
        "conv_silu": not conv,
        "mlp": mlp,
    }
    if mlp:
        config["hidden"] = weights.take(f"backbone.layers.{i}.mlp.fc2.weight").shape[1]
    return {"mixer": "attention", "config": config}


def _block(theirs: str, ours: str, layer: Mapping[str, Any], weights: Weights) -> dict[str, Tensor]:
    def take(name: str) -> Tensor:
        return weights.take(theirs + name)

    found = {"mixer_norm.weight": take("norm.weight"), "mixer.output.weight": take("mixer.out_proj.weight")}
    convolved = layer["mixer"] == "mamba2" or layer["config"]["conv"]
    if convolved:
        found["mixer.conv.weight"] = take("mixer.conv1d.weight")[:, 0].flip(-1).T
        found["mixer.conv.bias"] = take("mixer.conv1d.bias")
    if layer["mixer"] == "mamba2":
        found["mixer.projection.weight"] = take("mixer.in_proj.weight")
        found["mixer.norm.weight"] = take("mixer.norm.weight")
        found |= {f"mixer.{name}": take(f"mixer.{name}") for name in ("dt_bias", "A_log", "D")}
    else:
        found["mixer.qkv.weight"] = take("mixer.in_proj.weight")
        if layer["config"]["mlp"]:
            up, gate = take("mlp.fc1.weight").chunk(2)
            found["channel_norm.weight"] = take("norm2.weight")
            found["channel_mixer.gate_up.weight"] = torch.cat([gate, up])
            found["channel_mixer.output.weight"] = take("mlp.fc2.weight")
    return {ours + name: tensor for name, tensor in found.items()}


def _check(weights: Weights, where: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    for key, value in known.items():
        if given.get(key, DEFAULTS.get(key, value)) != value:
            raise _unknown(weights, f"{where}.{key}", given.get(key, DEFAULTS.get(key)), value)
    if strange := sorted(set(given) - set(known) - IGNORED - READ):
        raise PretrainedError(
            f"{weights.source}: config.json has {where}.{strange[0]}: {given[strange[0]]!r}, an option that "
            "the mixers here do not know: they might compute something else"
        )


def _unknown(weights: Weights, key: str, given: Any, expected: Any) -> PretrainedError:
    return PretrainedError(
        f"{weights.source}: config.json has {key}: {given!r}; the mixers here compute {expected!r} only"
    )
