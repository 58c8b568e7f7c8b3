"""Published checkpoints in our mixers: random weights in exactly their layout, against forward passes written
here (or transformers' own), and what isn't known is an error."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from seqarch.architecture import describe
from seqarch.evaluation.checkpoints import rwkv6, state_spaces
from seqarch.evaluation.checkpoints.weights import PretrainedError, Weights, read_config, read_weights

VOCAB, D = 48, 32


def randn(*shape: int, scale: float = 0.3) -> Tensor:
    return scale * torch.randn(*shape, dtype=torch.float64)


def shared(n: int) -> dict[str, Tensor]:
    embedding = randn(VOCAB, D, scale=1.0)
    found = {
        "backbone.embedding.weight": embedding,
        "backbone.norm_f.weight": 1 + randn(D),
        "lm_head.weight": embedding,
    }
    return found | {f"backbone.layers.{i}.norm.weight": 1 + randn(D) for i in range(n)}


def mamba2_block(i: int, heads: int, width: int, state: int) -> dict[str, Tensor]:
    inner = heads * width
    channels = inner + 2 * state
    named = {
        "in_proj.weight": randn(inner + channels + heads, D),
        "conv1d.weight": randn(channels, 1, 4),
        "conv1d.bias": randn(channels),
        "dt_bias": randn(heads),
        "A_log": torch.rand(heads, dtype=torch.float64),
        "D": 1 + randn(heads),
        "norm.weight": 1 + randn(inner),
        "out_proj.weight": randn(D, inner),
    }
    return {f"backbone.layers.{i}.mixer.{name}": each for name, each in named.items()}


def attention_block(i: int, heads: int, width: int, conv: bool, hidden: int = 0) -> dict[str, Tensor]:
    rows = 3 * heads * width
    named = {"mixer.in_proj.weight": randn(rows, D), "mixer.out_proj.weight": randn(D, heads * width)}
    if conv:
        named |= {"mixer.conv1d.weight": randn(rows, 1, 4), "mixer.conv1d.bias": randn(rows)}
    if hidden:
        named |= {
            "norm2.weight": 1 + randn(D),
            "mlp.fc1.weight": randn(2 * hidden, D),
            "mlp.fc2.weight": randn(D, hidden),
        }
    return {f"backbone.layers.{i}.{name}": each for name, each in named.items()}


# --- forward passes as the layouts' authors define them, token by token where they recur -----------------


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def convolution(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """[T, C], as torch's own Conv1d with padding on both sides, its end cut off."""
    y = F.conv1d(x.T[None], weight, bias, padding=3, groups=x.shape[1])
    return y[0, :, : x.shape[0]].T


def mamba2(x: Tensor, w: Mapping[str, Tensor], heads: int, width: int, N: int) -> Tensor:
    inner = heads * width
    z, xBC, dt = (x @ w["mixer.in_proj.weight"].T).split([inner, inner + 2 * N, heads], -1)
    xBC = F.silu(convolution(xBC, w["mixer.conv1d.weight"], w["mixer.conv1d.bias"]))
    u, B, C = xBC.split([inner, N, N], -1)
    dt, A = F.softplus(dt + w["mixer.dt_bias"]), -w["mixer.A_log"].exp()
    S, rows = torch.zeros(heads, width, N, dtype=x.dtype), []
    for t in range(len(x)):
        v = u[t].view(heads, width)
        S = S * (A * dt[t]).exp()[:, None, None] + dt[t][:, None, None] * v[:, :, None] * B[t]
        rows.append((S @ C[t] + w["mixer.D"][:, None] * v).flatten())
    y = norm(torch.stack(rows) * F.silu(z), w["mixer.norm.weight"])
    return y @ w["mixer.out_proj.weight"].T


def attention(x: Tensor, w: Mapping[str, Tensor], heads: int, width: int, rotary: int) -> Tensor:
    qkv = x @ w["mixer.in_proj.weight"].T
    if "mixer.conv1d.weight" in w:
        qkv = convolution(qkv, w["mixer.conv1d.weight"], w["mixer.conv1d.bias"])
    q, k, v = (each.view(len(x), heads, width) for each in qkv.chunk(3, -1))
    y = torch.zeros_like(v)
    for i in range(len(x)):
        for h in range(heads):
            scores = torch.stack(
                [turned(q[i, h], i, rotary) @ turned(k[j, h], j, rotary) for j in range(i + 1)]
            )
            y[i, h] = torch.softmax(scores / width**0.5, 0) @ v[: i + 1, h]
    return y.flatten(1) @ w["mixer.out_proj.weight"].T


def turned(x: Tensor, place: int, rotary: int) -> Tensor:
    """Pairs (c, c + rotary / 2) of the first `rotary` channels, as complex numbers."""
    half = rotary // 2
    angle = place * 10000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    pair = torch.complex(x[:half], x[half:rotary]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([pair.real, pair.imag, x[rotary:]])


def state_spaces_forward(ids: list[int], w: Mapping[str, Tensor], blocks: list[Any]) -> Tensor:
    x = w["backbone.embedding.weight"][ids]
    for i, block in enumerate(blocks):
        mine = {n.split(".", 3)[3]: t for n, t in w.items() if n.startswith(f"backbone.layers.{i}.")}
        x = x + block(norm(x, mine["norm.weight"]), mine)
        if "norm2.weight" in mine:
            up, gate = (norm(x, mine["norm2.weight"]) @ mine["mlp.fc1.weight"].T).chunk(2, -1)
            x = x + (up * F.silu(gate)) @ mine["mlp.fc2.weight"].T
    return norm(x, w["backbone.norm_f.weight"]) @ w["lm_head.weight"].T


def config(n: int, **more: Any) -> dict[str, Any]:
    """What the released config.json files hold, scaled down."""
    return {
        "d_model": D,
        "d_intermediate": 0,
        "n_layer": n,
        "vocab_size": VOCAB - 3,
        "ssm_cfg": {"layer": "Mamba2", "headdim": 16, "d_state": 24},
        "attn_layer_idx": [],
        "attn_cfg": {},
        "rms_norm": True,
        "residual_in_fp32": True,
        "fused_add_norm": True,
        "pad_vocab_size_multiple": 16,
        "tie_embeddings": True,
        **more,
    }


ATTENTION = {
    "causal": True,
    "d_conv": 4,
    "head_dim": 16,  # 3 heads of 16: 1.5 d, as released
    "num_heads": 3,
    "out_proj_bias": False,
    "qkv_proj_bias": False,
    "rotary_emb_dim": 8,
}


def test_mamba2attn_in_our_mixers() -> None:
    """Attention in a hybrid: convolution with bias and without silu, half rotary, heads wider than d."""
    torch.manual_seed(0)
    w = (
        shared(3)
        | mamba2_block(0, 4, 16, 24)
        | attention_block(1, 3, 16, conv=True)
        | mamba2_block(2, 4, 16, 24)
    )
    about = config(3, attn_layer_idx=[1], attn_cfg=ATTENTION)
    assert state_spaces.is_one(about)
    model = state_spaces.load(about, Weights(w, "w"), torch.float64)
    ids = torch.randint(VOCAB, (19,)).tolist()
    with torch.no_grad():
        found, _ = model(torch.tensor([ids]))
    ssm = lambda x, mine: mamba2(x, mine, 4, 16, 24)  # noqa: E731
    expected = state_spaces_forward(ids, w, [ssm, lambda x, mine: attention(x, mine, 3, 16, 8), ssm])
    torch.testing.assert_close(found[0], expected, rtol=1e-9, atol=1e-9)
    assert expected.std() > 0.5


def test_transformerpp_in_our_mixers() -> None:
    torch.manual_seed(1)
    w = shared(2) | attention_block(0, 2, 16, False, hidden=40) | attention_block(1, 2, 16, False, hidden=40)
    options = {**ATTENTION, "d_conv": 0, "num_heads": 2, "rotary_emb_dim": 16}
    about = config(2, attn_layer_idx=[0, 1], attn_cfg=options, d_intermediate=39)
    model = state_spaces.load(about, Weights(w, "w"), torch.float64)
    ids = torch.randint(VOCAB, (13,)).tolist()
    with torch.no_grad():
        found, _ = model(torch.tensor([ids]))
    block = lambda x, mine: attention(x, mine, 2, 16, 16)  # noqa: E731
    torch.testing.assert_close(found[0], state_spaces_forward(ids, w, [block] * 2), rtol=1e-9, atol=1e-9)


def test_mamba2_equals_transformers_mamba2(tmp_path: Path) -> None:
    """The same tensors in transformers' class, from a folder on disk in both of the formats in use."""
    transformers = pytest.importorskip("transformers", reason="transformers is an extra")
    torch.manual_seed(2)
    w = {
        name: each.float()
        for name, each in (shared(2) | mamba2_block(0, 4, 16, 24) | mamba2_block(1, 4, 16, 24)).items()
    }
    (tmp_path / "config.json").write_text(json.dumps(config(2)))
    torch.save(w, tmp_path / "pytorch_model.bin")
    model = state_spaces.load(read_config(tmp_path), read_weights(tmp_path), torch.float32)
    theirs = transformers.Mamba2ForCausalLM(
        transformers.Mamba2Config(
            vocab_size=VOCAB, hidden_size=D, num_hidden_layers=2, num_heads=4, head_dim=16, state_size=24,
            n_groups=1, expand=2, tie_word_embeddings=True, chunk_size=16, layer_norm_epsilon=1e-5,
        )
    ).eval()  # fmt: skip
    renamed = {name.replace("backbone.embedding.", "backbone.embeddings."): each for name, each in w.items()}
    theirs.load_state_dict(renamed, strict=True)
    ids = torch.randint(VOCAB, (2, 37))
    with torch.no_grad():
        torch.testing.assert_close(model(ids)[0], theirs(ids).logits, rtol=1e-3, atol=1e-4)
    (tmp_path / "pytorch_model.bin").unlink()
    halves = sorted(w)[: len(w) // 2], sorted(w)[len(w) // 2 :]
    for i, names in enumerate(halves):
        save_file({name: w[name].clone() for name in names}, tmp_path / f"part{i}.safetensors")
    index = {"weight_map": {name: f"part{i}.safetensors" for i, names in enumerate(halves) for name in names}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    again = state_spaces.load(read_config(tmp_path), read_weights(tmp_path), torch.float32)
    with torch.no_grad():
        assert torch.equal(model(ids)[0], again(ids)[0])


def rwkv6_weights(
    layers: int, heads: int, width: int, rank: int, decay: int, hidden: int
) -> dict[str, Tensor]:
    w = {"embeddings.weight": randn(VOCAB, D, scale=1.0), "head.weight": randn(VOCAB, D)}
    norms = ["blocks.0.pre_ln", "ln_out", *(f"blocks.{i}.ln{j}" for i in range(layers) for j in (1, 2))]
    norms += [f"blocks.{i}.attention.ln_x" for i in range(layers)]
    for name in norms:
        w |= {f"{name}.weight": 1 + randn(D), f"{name}.bias": randn(D)}
    for i in range(layers):
        att = {f"time_maa_{x}": randn(1, 1, D) for x in "xwkvrg"}
        att |= {"time_maa_w1": randn(D, 5 * rank), "time_maa_w2": randn(5, rank, D)}
        att |= {
            "time_decay": randn(1, 1, D),
            "time_decay_w1": randn(D, decay),
            "time_decay_w2": randn(decay, D),
        }
        att |= {"time_faaaa": randn(heads, width)}
        att |= {f"{x}.weight": randn(D, D) for x in ("receptance", "key", "value", "gate", "output")}
        ffn = {"time_maa_k": randn(1, 1, D), "time_maa_r": randn(1, 1, D), "key.weight": randn(hidden, D)}
        ffn |= {"receptance.weight": randn(D, D), "value.weight": randn(D, hidden)}
        w |= {f"blocks.{i}.attention.{name}": each for name, each in att.items()}
        w |= {f"blocks.{i}.feed_forward.{name}": each for name, each in ffn.items()}
    return w


def rwkv6_forward(ids: list[int], w: Mapping[str, Tensor], layers: int, heads: int) -> Tensor:
    def layer_norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (D,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)

    x = layer_norm(w["embeddings.weight"][ids], "blocks.0.pre_ln")
    for i in range(layers):
        a = {n.split(".", 3)[3]: t for n, t in w.items() if n.startswith(f"blocks.{i}.attention.")}
        y = layer_norm(x, f"blocks.{i}.ln1")
        delta = F.pad(y, (0, 0, 1, -1)) - y
        low = torch.tanh((y + delta * a["time_maa_x"][0]) @ a["time_maa_w1"]).unflatten(1, (5, -1))
        mixed = {
            x_: y + delta * (a[f"time_maa_{x_}"][0] + low[:, j] @ a["time_maa_w2"][j])
            for j, x_ in enumerate("wkvrg")
        }
        decay = a["time_decay"][0] + torch.tanh(mixed["w"] @ a["time_decay_w1"]) @ a["time_decay_w2"]
        decay = (-decay.exp()).exp().view(len(ids), heads, -1)
        names = {"r": "receptance", "k": "key", "v": "value"}
        r, k, v = ((mixed[n] @ a[f"{names[n]}.weight"].T).view(len(ids), heads, -1) for n in "rkv")
        S, rows = torch.zeros(heads, D // heads, D // heads, dtype=x.dtype), []
        for t in range(len(ids)):
            kv = k[t][:, :, None] * v[t][:, None]
            rows.append(torch.einsum("hk,hkv->hv", r[t], S + a["time_faaaa"][:, :, None] * kv))
            S = decay[t][:, :, None] * S + kv
        out = F.group_norm(torch.stack(rows).flatten(1), heads, a["ln_x.weight"], a["ln_x.bias"], 64e-5)
        x = x + (out * F.silu(mixed["g"] @ a["gate.weight"].T)) @ a["output.weight"].T
        f = {n.split(".", 3)[3]: t for n, t in w.items() if n.startswith(f"blocks.{i}.feed_forward.")}
        y = layer_norm(x, f"blocks.{i}.ln2")
        delta = F.pad(y, (0, 0, 1, -1)) - y
        hidden = torch.relu((y + delta * f["time_maa_k"][0]) @ f["key.weight"].T).square()
        x = x + torch.sigmoid((y + delta * f["time_maa_r"][0]) @ f["receptance.weight"].T) * (
            hidden @ f["value.weight"].T
        )
    return layer_norm(x, "ln_out") @ w["head.weight"].T


def authors_name(name: str) -> str:
    for new, old in (
        ("embeddings.", "emb."),
        ("pre_ln", "ln0"),
        ("attention", "att"),
        ("feed_forward", "ffn"),
    ):
        name = name.replace(new, old)
    return name


@pytest.mark.parametrize("layout", ["hub", "authors"])
def test_rwkv6_in_our_mixers(layout: str) -> None:
    torch.manual_seed(3)
    w = rwkv6_weights(2, heads=2, width=16, rank=4, decay=8, hidden=56)
    ids = torch.randint(VOCAB, (21,)).tolist()
    expected = rwkv6_forward(ids, w, 2, heads=2)
    if layout == "hub":
        stored = {name if name == "head.weight" else f"rwkv.{name}": each for name, each in w.items()}
    else:
        stored = {authors_name(name): each for name, each in w.items()}
    about = {"model_type": "rwkv6", "layer_norm_epsilon": 1e-5, "head_size_divisor": 8, "rescale_every": 6}
    assert rwkv6.is_one(about)
    model = rwkv6.load(about, Weights(stored, "w"), torch.float64)
    with torch.no_grad():
        found, _ = model(torch.tensor([ids]))
    torch.testing.assert_close(found[0], expected, rtol=1e-9, atol=1e-9)


def test_the_released_sizes_are_those_of_the_mixers() -> None:
    """2.7 billion parameters, from the config.json alone; nothing is allocated."""
    n, d = 64, 2560
    meta = {"backbone.embedding.weight": torch.empty(50288, d, device="meta")}
    about = {
        **config(n),
        "d_model": d,
        "ssm_cfg": {"layer": "Mamba2"},
        "attn_layer_idx": [9, 18, 27, 36, 45, 56],
    }
    about["attn_cfg"] = {**ATTENTION, "head_dim": 128, "num_heads": 30, "rotary_emb_dim": 64}
    resolved = state_spaces.resolve(about, Weights(meta, "meta"))
    assert [i for i, layer in enumerate(resolved["layers"]) if layer["mixer"] == "attention"] == [
        9,
        18,
        27,
        36,
        45,
        56,
    ]
    assert 2.6e9 < describe(resolved, 2048)["num_params"] < 2.8e9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ssm_cfg": {"layer": "Mamba1"}}, r"ssm_cfg.layer: 'Mamba1'"),
        ({"ssm_cfg": {}}, r"ssm_cfg.layer: 'Mamba1'"),
        ({"ssm_cfg": {"layer": "Mamba2", "ngroups": 2}}, r"ngroups: 2"),
        ({"ssm_cfg": {"layer": "Mamba2", "dt_limit": [0, 1]}}, r"ssm_cfg.dt_limit: \[0, 1\], an option that"),
        ({"d_intermediate": 64}, "d_intermediate"),
        ({"rms_norm": False}, "rms_norm"),
        ({"attn_layer_idx": [0], "attn_cfg": {**ATTENTION, "num_heads_kv": 1}}, "num_heads_kv"),
        ({"attn_layer_idx": [0], "attn_cfg": {**ATTENTION, "softmax_scale": 16}}, "softmax_scale: 16"),
        ({"attn_layer_idx": [0], "attn_cfg": {**ATTENTION, "rotary_emb_interleaved": True}}, "interleaved"),
        ({"attn_layer_idx": [0], "attn_cfg": {**ATTENTION, "d_conv": 3}}, "d_conv"),
    ],
)
def test_what_the_mixers_do_not_compute_is_an_error(change: dict[str, Any], message: str) -> None:
    w = shared(1) | mamba2_block(0, 4, 16, 24)
    with pytest.raises(PretrainedError, match=message):
        state_spaces.load(config(1, **change), Weights(w, "w"), torch.float64)


def test_weights_that_do_not_fit_are_named() -> None:
    w = shared(1) | mamba2_block(0, 4, 16, 24)
    del w["backbone.layers.0.mixer.D"]
    with pytest.raises(PretrainedError, match=r"no tensor 'backbone.layers.0.mixer.D'"):
        state_spaces.load(config(1), Weights(w, "w"), torch.float64)
    w = shared(1) | mamba2_block(0, 4, 16, 24) | {"backbone.layers.0.mixer.Q": randn(3)}
    with pytest.raises(PretrainedError, match=r"1 tensors stand for nothing here: .*mixer.Q"):
        state_spaces.load(config(1), Weights(w, "w"), torch.float64)
    w = shared(1) | mamba2_block(0, 4, 16, 24) | {"backbone.norm_f.weight": randn(D + 1)}
    with pytest.raises(PretrainedError, match=r"final_norm.weight: \[33\] in the file, \[32\] in the model"):
        state_spaces.load(config(1), Weights(w, "w"), torch.float64)
    w = shared(1) | mamba2_block(0, 4, 16, 24)
    w["lm_head.weight"] = randn(VOCAB, D)
    with pytest.raises(PretrainedError, match=r"lm_head.weight is not the embedding"):
        state_spaces.load(config(1), Weights(w, "w"), torch.float64)


def test_files_that_cannot_be_read_are_errors(tmp_path: Path) -> None:
    with pytest.raises(PretrainedError, match=r"no readable config.json"):
        read_config(tmp_path)
    with pytest.raises(PretrainedError, match="no weights"):
        read_weights(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(PretrainedError, match="cannot be read"):
        read_weights(tmp_path)
