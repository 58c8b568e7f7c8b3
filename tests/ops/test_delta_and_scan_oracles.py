"""Delta rules and scans against code that others wrote: fla's naive functions and transformers, with
gradients.
"""

import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from seqarch.mixers import registry
from seqarch.mixers.rglru.module import Mixer as RecurrentBlock
from seqarch.ops.delta_rule.op import delta_rule
from seqarch.ops.diag_scan.op import diag_scan
from seqarch.ops.dplr_rule.op import dplr_rule

B, T, H, K, V = 2, 70, 3, 16, 8


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def assert_same(ours: Tensor, theirs: Tensor, inputs: list[Tensor], tolerance: float = 2e-5) -> None:
    weight = torch.randn(ours.shape)
    assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max()
    got, wanted = (torch.autograd.grad((o * weight).sum(), inputs, retain_graph=True) for o in (ours, theirs))
    for a, b in zip(got, wanted, strict=True):
        assert (a - b).abs().max() <= 2 * tolerance * b.abs().max()


def gated_inputs(length: int = T) -> tuple[list[Tensor], list[Tensor]]:
    """Leaves, and q, k, v, beta, g made of them."""
    leaves = [normal(B, length, H, K), normal(B, length, H, K), normal(B, length, H, V)]
    leaves += [normal(B, length, H), normal(B, length, H)]
    q, k, v, b, a = leaves
    return leaves, [q, F.normalize(k, dim=-1), v, b.sigmoid(), F.logsigmoid(a)]


def test_gated_delta_rule_against_fla() -> None:
    pytest.importorskip("fla", reason="fla-core is an extra")
    from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule

    leaves, (q, k, v, beta, g) = gated_inputs()
    ours, S = delta_rule(q, k, v, beta, g, return_state=True)
    theirs, their_S = naive_recurrent_gated_delta_rule(q, k, v, beta, g, output_final_state=True)
    assert_same(ours, theirs, leaves)
    torch.testing.assert_close(S, their_S, rtol=1e-4, atol=1e-5)


def test_delta_rule_against_fla() -> None:
    pytest.importorskip("fla", reason="fla-core is an extra")
    from fla.ops.delta_rule.naive import delta_rule_recurrence

    leaves, (q, k, v, beta, _) = gated_inputs()
    theirs, _ = delta_rule_recurrence(*(x.transpose(1, 2) for x in (q, k, v)), beta.transpose(1, 2))
    assert_same(delta_rule(q, k, v, beta)[0], theirs.transpose(1, 2), leaves[:4])


def test_dplr_rule_against_fla() -> None:
    pytest.importorskip("fla", reason="fla-core is an extra")
    from fla.ops.generalized_delta_rule.dplr.naive import dplr_recurrence

    leaves = [
        normal(B, T, H, K),
        normal(B, T, H, K),
        normal(B, T, H, V),
        *(normal(B, T, H, K) for _ in range(3)),
    ]
    q, k, v, a, b, w = leaves
    kappa, g = F.normalize(a, dim=-1), -0.6 * torch.sigmoid(w)
    inputs = q, k, v, -kappa, kappa * b.sigmoid(), g
    theirs, _ = dplr_recurrence(*(x.transpose(1, 2) for x in inputs))
    assert_same(dplr_rule(*inputs)[0], theirs.transpose(1, 2), leaves)


def test_elementwise_scan_against_fla() -> None:
    pytest.importorskip("fla", reason="fla-core is an extra")
    from fla.ops.hgrn.naive import naive_recurrent_hgrn

    x, w = normal(B, T, K), normal(B, T, K)
    g = F.logsigmoid(w)
    theirs, state = naive_recurrent_hgrn(x, g, output_final_state=True)
    ours, h = diag_scan(g.exp(), x, return_state=True)
    assert_same(ours, theirs, [x, w])
    torch.testing.assert_close(h, state, rtol=1e-5, atol=1e-5)


def test_gated_delta_rule_against_transformers() -> None:
    pytest.importorskip("transformers", reason="transformers is an extra")
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    reference = inspect.unwrap(
        torch_chunk_gated_delta_rule
    )  # the name runs fla's kernel where fla is installed
    leaves, (q, k, v, beta, g) = gated_inputs()
    theirs, state = reference(q, k, v, g, beta, output_final_state=True)
    ours, S = delta_rule(q, k, v, beta, g, return_state=True)
    assert_same(ours, theirs, leaves)
    torch.testing.assert_close(S, state, rtol=1e-4, atol=1e-5)


def test_mamba_has_the_logits_of_transformers() -> None:
    """A whole model of two blocks with its weights copied: equal logits and equal gradients of the
    embedding.
    """
    transformers = pytest.importorskip("transformers", reason="transformers is an extra")
    from seqarch.architecture import resolve
    from seqarch.model import Decoder

    theirs = transformers.MambaForCausalLM(
        transformers.MambaConfig(
            vocab_size=50,
            hidden_size=32,
            state_size=16,
            num_hidden_layers=2,
            layer_norm_epsilon=1e-6,
            use_cache=False,
        )
    )
    entry = {"x": {"mixer": "mamba1", "layers": 2}}
    ours = Decoder(resolve("x", entry, {"d_model": 32, "n_layers": 2}, 50, 64))
    with torch.no_grad():
        ours.embedding.weight.copy_(theirs.backbone.embeddings.weight)
        ours.final_norm.weight.copy_(theirs.backbone.norm_f.weight)
        for block, layer in zip(ours.blocks, theirs.backbone.layers, strict=True):
            copy_mamba(block.mixer, layer.mixer)
            block.mixer_norm.weight.copy_(layer.norm.weight)
    ids = torch.randint(50, (2, 37))
    got, wanted = ours(ids)[0], theirs(ids).logits
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    got.logsumexp(-1).sum().backward()
    wanted.logsumexp(-1).sum().backward()
    torch.testing.assert_close(
        ours.embedding.weight.grad, theirs.backbone.embeddings.weight.grad, rtol=1e-3, atol=1e-3
    )


def copy_mamba(ours: torch.nn.Module, theirs: torch.nn.Module) -> None:
    """transformers' MambaMixer -> our mamba1 layer (its convolution taps run the other way)."""
    ours.projection.weight.copy_(theirs.in_proj.weight)
    ours.conv.weight.copy_(theirs.conv1d.weight[:, 0].flip(-1).T)
    ours.conv.bias.copy_(theirs.conv1d.bias)
    ours.selection.weight.copy_(theirs.x_proj.weight)
    ours.dt_up.copy_(theirs.dt_proj.weight)
    ours.dt_bias.copy_(theirs.dt_proj.bias)
    ours.A_log.copy_(theirs.A_log)
    ours.D.copy_(theirs.D)
    ours.output.weight.copy_(theirs.out_proj.weight)


def recurrent_blocks(d: int = 48, width: int = 64, heads: int = 2) -> tuple[RecurrentBlock, torch.nn.Module]:
    """Our Griffin block and transformers', with the same random weights."""
    transformers = pytest.importorskip("transformers", reason="transformers is an extra")
    from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRecurrentBlock

    config = transformers.RecurrentGemmaConfig(
        hidden_size=d,
        lru_width=width,
        num_attention_heads=heads,
        conv1d_width=4,
        hidden_activation="gelu_pytorch_tanh",
    )
    theirs = RecurrentGemmaRecurrentBlock(config, layer_idx=0)
    ours = RecurrentBlock(registry.config_class("rglru")(d_model=d, width=width, block_width=width // heads))
    ours.init_weights()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter))
        theirs.rg_lru.recurrent_param.copy_(ours.Lambda)
        ours.projection.weight.copy_(torch.cat([theirs.linear_x.weight, theirs.linear_y.weight]))
        ours.projection.bias.copy_(torch.cat([theirs.linear_x.bias, theirs.linear_y.bias]))
        ours.conv.weight.copy_(theirs.conv_1d.weight[:, 0].flip(-1).T)
        ours.conv.bias.copy_(theirs.conv_1d.bias)
        lru = theirs.rg_lru
        ours.gates.copy_(torch.stack([lru.input_gate_weight, lru.recurrent_gate_weight]))
        ours.input_bias.copy_(lru.input_gate_bias.flatten())
        ours.recurrence_bias.copy_(lru.recurrent_gate_bias.flatten())
        ours.output.weight.copy_(theirs.linear_out.weight)
        ours.output.bias.copy_(theirs.linear_out.bias)
    return ours, theirs


def test_recurrent_block_against_recurrent_gemma() -> None:
    ours, theirs = recurrent_blocks()
    x = normal(B, 20, 48)
    positions = torch.arange(20)[None]
    wanted, _ = theirs(x, positions, None, use_cache=False)
    assert_same(ours(x)[0], wanted, [x], tolerance=1e-4)
