"""The decoder: equal logits to models that others wrote, initialisation, weight decay, learned positions."""

import pytest
import torch

from seqarch.architecture import resolve
from seqarch.mixers import registry
from seqarch.model import Decoder, PositionOutOfRange


def build(
    entry: dict[str, object], *, d_model: int = 64, n_layers: int = 2, tie: bool = True, vocab: int = 50
) -> Decoder:
    spec = {"d_model": d_model, "n_layers": n_layers, "tie_embeddings": tie}
    return Decoder(resolve("x", {"x": entry}, spec, vocab, 128))


@pytest.mark.parametrize("window", [None, 7])
def test_attention_equals_llama(window: int | None) -> None:
    """Logits of transformers' Llama (Mistral with a window) with our weights copied into it."""
    transformers = pytest.importorskip("transformers", reason="transformers is an extra")
    ours = build({"mixer": "attention", "window": window, "n_heads": 4, "head_dim": 16, "hidden": 96})
    with torch.no_grad():
        for p in ours.parameters():
            p.add_(0.1 * torch.randn_like(p))
    options = {
        "vocab_size": 50,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "attn_implementation": "eager",
    }
    if window is None:
        theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**options))
    else:
        config = transformers.MistralConfig(**options, sliding_window=window, head_dim=16)
        theirs = transformers.MistralForCausalLM(config)
    weights = {
        "model.embed_tokens.weight": ours.embedding.weight,
        "model.norm.weight": ours.final_norm.weight,
    }
    for i, block in enumerate(ours.blocks):
        q, k, v = block.mixer.qkv.weight.chunk(3)
        gate, up = block.channel_mixer.gate_up.weight.chunk(2)
        names = {
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.o_proj": block.mixer.output.weight,
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": block.channel_mixer.output.weight,
            "input_layernorm": block.mixer_norm.weight,
            "post_attention_layernorm": block.channel_norm.weight,
        }
        weights |= {f"model.layers.{i}.{name}.weight": w for name, w in names.items()}
    missing, unexpected = theirs.load_state_dict(weights, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    ids = torch.randint(0, 50, (2, 40))
    torch.testing.assert_close(ours(ids)[0], theirs.eval()(ids).logits, rtol=0, atol=1e-4)


def test_mamba2_equals_transformers() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is an extra")
    ours = build({"mixer": "mamba2", "layers": 2, "n_heads": 4, "head_dim": 32, "d_state": 16})
    with torch.no_grad():
        for p in ours.parameters():
            p.add_(0.1 * torch.randn_like(p))
    config = transformers.Mamba2Config(
        vocab_size=50,
        hidden_size=64,
        num_hidden_layers=2,
        num_heads=4,
        head_dim=32,
        state_size=16,
        expand=2,
        n_groups=1,
        conv_kernel=4,
        chunk_size=32,
        layer_norm_epsilon=1e-6,
        time_step_limit=(0.0, float("inf")),
        tie_word_embeddings=True,
        residual_in_fp32=False,
    )
    theirs = transformers.Mamba2ForCausalLM(config)
    weights = {
        "backbone.embeddings.weight": ours.embedding.weight,
        "backbone.norm_f.weight": ours.final_norm.weight,
    }
    for i, block in enumerate(ours.blocks):
        mixer = block.mixer
        names = {
            "in_proj.weight": mixer.projection.weight,
            "conv1d.weight": mixer.conv.weight.flip(0).T[:, None],
            "conv1d.bias": mixer.conv.bias,
            "dt_bias": mixer.dt_bias,
            "A_log": mixer.A_log,
            "D": mixer.D,
            "norm.weight": mixer.norm.weight,
            "out_proj.weight": mixer.output.weight,
        }
        weights |= {f"backbone.layers.{i}.mixer.{name}": w for name, w in names.items()}
        weights[f"backbone.layers.{i}.norm.weight"] = block.mixer_norm.weight
    missing, unexpected = theirs.load_state_dict(weights, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    for layer in theirs.backbone.layers:
        layer.mixer.norm.variance_epsilon = 1e-6
    ids = torch.randint(0, 50, (2, 64))
    torch.testing.assert_close(ours(ids)[0], theirs.eval()(ids).logits, rtol=0, atol=1e-4)


def test_common_initialisation() -> None:
    model = build({"mixer": "attention"}, d_model=256, n_layers=8)
    block = model.blocks[3]
    assert model.embedding.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert block.mixer.qkv.weight.std().item() == pytest.approx(0.02, rel=0.05)
    for layer in (block.mixer.output, block.channel_mixer.output):
        assert layer.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)  # / sqrt(2 * 8)


def test_mamba2_initialisation() -> None:
    """The model's initialisation leaves the published ranges of A and dt in place."""
    mixer = build({"mixer": "mamba2"}, d_model=512, n_layers=1).blocks[0].mixer
    A, dt = mixer.A_log.exp(), torch.nn.functional.softplus(mixer.dt_bias)
    assert 1 <= A.min() < 3
    assert 13 < A.max() <= 16.001
    assert 0.9e-4 <= dt.min() < 5e-3
    assert 0.03 < dt.max() <= 0.101
    assert torch.equal(mixer.D, torch.ones_like(mixer.D))


@pytest.mark.parametrize("mixer", ["rwkv5", "rwkv6"])
def test_rwkv_initialisation(mixer: str) -> None:
    model = build({"mixer": mixer}, d_model=128, n_layers=4)
    first, last = model.blocks[0].mixer, model.blocks[3].mixer
    assert first.w0[0] == -6
    assert first.w0[-1].item() == pytest.approx(-1)
    assert (first.w0.diff() >= 0).all()
    assert last.w0.mean() < first.w0.mean()  # later blocks decay more slowly
    assert not first.output.weight.any()
    assert not model.blocks[0].channel_mixer.output.weight.any()
    shift = first if mixer == "rwkv5" else first.shift
    assert shift.mu[1, 0] == 1
    assert first.u.abs().max() <= 0.1 + 1e-6
    assert last.u.max() > 0.8
    for matrix, gain in zip(last.projections, (1.0, 0.1, 1.0, 0.1), strict=True):  # r, k, v, gate
        torch.testing.assert_close(matrix @ matrix.T, gain**2 * torch.eye(128), atol=1e-5, rtol=0)
    assert (first.norm.weight == 0.25**0.7).all()
    assert (last.norm.weight == 1).all()
    key = model.blocks[0].channel_mixer.key.weight  # [hidden, d]
    torch.testing.assert_close(key.T @ key, torch.eye(128), atol=1e-5, rtol=0)
    assert not model.blocks[0].channel_mixer.receptance.weight.any()


def test_hgrn2_bounds_grow_with_depth() -> None:
    model = build({"mixer": "hgrn2"}, n_layers=4)
    bounds = torch.stack(model.shared["hgrn2"]())
    torch.testing.assert_close(bounds[:, 0], torch.tensor([0.0, 0.25, 0.5, 0.75]))


def test_retention_decays() -> None:
    mixer = build({"mixer": "retnet"}, d_model=128).blocks[0].mixer
    torch.testing.assert_close(mixer.log_decay.exp(), 1 - 2.0 ** (-5 - torch.arange(4.0)))


def test_weight_decay_spares_decays_and_vectors() -> None:
    for mixer, exempt in (
        ("mamba2", "A_log"),
        ("rwkv6", "w0"),
        ("rwkv6", "mu"),
        ("hgrn2", "table"),
        ("gla", "bias"),
    ):
        model = build({"mixer": mixer})
        decayed, free = model.decay_groups(0.1)
        assert (decayed["weight_decay"], free["weight_decay"]) == (0.1, 0.0)
        assert len(decayed["params"]) + len(free["params"]) == len(list(model.parameters()))
        spared = {id(p) for p in free["params"]}
        named = [p for name, p in model.named_parameters() if exempt in name]
        assert named
        assert all(id(p) in spared for p in named)
        assert all(id(p) in spared for p in model.parameters() if p.ndim == 1)
        assert id(model.embedding.weight) not in spared


def test_learned_positions_end() -> None:
    model = build({"mixer": "attention", "position": "learned"})
    model(torch.zeros(1, 128, dtype=torch.long))
    with pytest.raises(PositionOutOfRange, match="beyond the 128 learned"):
        model(torch.zeros(1, 129, dtype=torch.long))


def test_untied_head_is_not_counted_as_inner() -> None:
    tied, untied = (build({"mixer": "attention"}, tie=tie) for tie in (True, False))
    assert untied.num_params() - tied.num_params() == 50 * 64
    assert untied.num_params(non_embedding=True) == tied.num_params(non_embedding=True)


def test_random_shared_keys_average_the_values() -> None:
    """One constant key for all positions: equal scores, so each head's output is the running mean of v."""
    model = build({"mixer": "attention", "keys": "random_shared", "position": "none"}, n_layers=1)
    mixer = model.blocks[0].mixer
    x = torch.randn(2, 30, 64)
    v = mixer.qkv(x)[..., 64:]
    mean = v.cumsum(1) / torch.arange(1, 31)[None, :, None]
    torch.testing.assert_close(mixer(x)[0], mixer.output(mean))


def test_random_keys_do_not_depend_on_the_length() -> None:
    model = build({"mixer": "attention", "keys": "random_position"}, n_layers=1)
    ids = torch.randint(0, 50, (1, 700))
    torch.testing.assert_close(model(ids)[0][:, :200], model(ids[:, :200])[0])


def test_output_norm_off_keeps_the_gate() -> None:
    """Without the norm the output scales with the values."""
    with_norm, without = (build({"mixer": "retnet", "out_norm": on}).blocks[0].mixer for on in (True, False))
    x = torch.randn(1, 9, 64)
    for mixer, scales in ((with_norm, False), (without, True)):
        before = mixer(x)[0]
        with torch.no_grad():
            mixer.projection.weight[128:256] *= 2  # v
        ratio = (mixer(x)[0] / before).median().item()
        assert ratio == pytest.approx(2.0 if scales else 1.0, rel=0.01)


@pytest.mark.parametrize("n_layers", [1, 2])
@pytest.mark.parametrize("mixer", registry.names())
def test_what_takes_a_gradient_gets_one(mixer: str, n_layers: int) -> None:
    """DDP refuses a model in which it doesn't."""
    model = build({"mixer": mixer}, n_layers=n_layers)
    model(torch.randint(0, 50, (2, 20)))[0].sum().backward()
    assert [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None] == []
