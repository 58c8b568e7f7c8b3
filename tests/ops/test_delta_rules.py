"""The delta rules, gated or not and with DPLR transitions: chunks against the recurrence, in every regime."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from seqarch.ops.delta_rule.op import delta_rule
from seqarch.ops.delta_rule.reference import delta_rule_recurrent
from seqarch.ops.dplr_rule.op import dplr_rule
from seqarch.ops.dplr_rule.reference import dplr_rule_recurrent

Inputs = dict[str, Tensor]
RULES = ["delta", "gated", "dplr"]


def make(
    rule: str, B: int, T: int, H: int, K: int, V: int, gate: float = 1.0, dtype: torch.dtype = torch.float64
) -> Inputs:
    """Inputs of one rule; log decays uniform in [-gate, 0]."""
    generator = torch.Generator().manual_seed(T * K + V)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    x = {"q": normal(B, T, H, K), "k": F.normalize(normal(B, T, H, K), dim=-1), "v": normal(B, T, H, V)}
    if rule == "dplr":
        kappa = F.normalize(normal(B, T, H, K), dim=-1)
        x |= {"a": -kappa, "b": kappa * uniform(B, T, H, K), "g": -gate * uniform(B, T, H, K)}
    else:
        x["beta"] = uniform(B, T, H)
        if rule == "gated":
            x["g"] = -gate * uniform(B, T, H)
    x["initial_state"] = normal(B, H, K, V)
    return {name: z.to(dtype).requires_grad_() for name, z in x.items()}


def chunked(
    x: Inputs, segment_ids: Tensor | None = None, chunk_size: int | None = None
) -> tuple[Tensor, Tensor]:
    op: Callable[..., tuple[Tensor, Tensor]] = dplr_rule if "a" in x else delta_rule
    return op(**x, return_state=True, segment_ids=segment_ids, chunk_size=chunk_size)


def recurrent(x: Inputs, segment_ids: Tensor | None = None) -> tuple[Tensor, Tensor]:
    q, k, v, S, scale = x["q"], x["k"], x["v"], x["initial_state"], x["q"].shape[-1] ** -0.5
    if "a" in x:
        return dplr_rule_recurrent(q, k, v, x["a"], x["b"], x["g"], scale, S, segment_ids)
    return delta_rule_recurrent(q, k, v, x["beta"], x.get("g"), scale, S, segment_ids)


def gradients(outputs: tuple[Tensor, Tensor], x: Inputs) -> tuple[Tensor, ...]:
    o, S = outputs
    generator = torch.Generator().manual_seed(7)
    do, dS = (torch.randn(z.shape, generator=generator, dtype=torch.float64) for z in (o, S))
    return torch.autograd.grad((o * do).sum() + (S * dS).sum(), list(x.values()))


def assert_same(got: tuple[Tensor, ...], wanted: tuple[Tensor, ...], tolerance: float) -> None:
    for a, b in zip(got, wanted, strict=True):
        assert torch.isfinite(a).all()
        assert (a - b).abs().max() <= tolerance * max(1.0, b.abs().max().item())


def documents(T: int, *lengths: int) -> Tensor:
    ids = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    return ids[None, :T]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("gate", [1e-6, 1.0, 50.0])
@pytest.mark.parametrize("T", [1, 15, 17, 64, 65, 130])
def test_chunks_equal_the_recurrence(rule: str, gate: float, T: int) -> None:
    x = make(rule, 2, T, 2, 6, 5, gate)
    got, wanted = chunked(x), recurrent(x)
    assert_same(got, wanted, 1e-10)
    assert_same(gradients(got, x), gradients(wanted, x), 1e-10)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("C", [1, 4, 16, 32, 64])
def test_any_chunk_size_gives_the_same(rule: str, C: int) -> None:
    x = make(rule, 1, 70, 2, 6, 5)
    got, wanted = chunked(x, chunk_size=C), recurrent(x)
    assert_same(got, wanted, 1e-10)
    assert_same(gradients(got, x), gradients(wanted, x), 1e-10)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("B", "H", "K", "V"), [(1, 3, 16, 16), (3, 1, 60, 64), (1, 1, 100, 100), (1, 2, 96, 192)]
)
def test_widths(rule: str, B: int, H: int, K: int, V: int) -> None:
    x = make(rule, B, 37, H, K, V)
    assert_same(chunked(x), recurrent(x), 1e-10)


@pytest.mark.parametrize("rule", RULES)
def test_gradcheck(rule: str) -> None:
    x = make(rule, 1, 9, 1, 3, 4, gate=0.5)
    names = list(x)
    assert torch.autograd.gradcheck(
        lambda *z: chunked(dict(zip(names, z, strict=True)), chunk_size=4), tuple(x.values())
    )


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("cut", [1, 15, 64, 69])
def test_state_splits_anywhere(rule: str, cut: int) -> None:
    x = make(rule, 2, 70, 2, 6, 5)
    o, S = chunked(x)
    head = {name: z if name == "initial_state" else z[:, :cut] for name, z in x.items()}
    first, state = chunked(head)
    tail = {name: state if name == "initial_state" else z[:, cut:] for name, z in x.items()}
    second, end = chunked(tail)
    assert_same((torch.cat([first, second], 1), end), (o, S), 1e-12)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("gate", [0.5, 40.0])
def test_documents_are_separate(rule: str, gate: float) -> None:
    lengths = (1, 10, 3, 31, 16, 16)
    x = make(rule, 1, 77, 2, 6, 5, gate)
    got = chunked(x, documents(77, *lengths), chunk_size=16)
    parts, begin, state = [], 0, x["initial_state"]
    for length in lengths:
        part = {n: z[:, begin : begin + length] for n, z in x.items() if n != "initial_state"}
        o, end = chunked(part | {"initial_state": state})
        parts.append(o)
        begin, state = begin + length, torch.zeros_like(end)
    wanted = (torch.cat(parts, 1), end)
    assert_same(got, wanted, 1e-12)
    assert_same(gradients(got, x), gradients(wanted, x), 1e-11)
    assert_same(chunked(x, documents(77, *lengths)), recurrent(x, documents(77, *lengths)), 1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_causal(rule: str) -> None:
    """To the bit for one decay a head; DPLR's centred factors may move earlier outputs by rounding."""
    x = {name: z.detach() for name, z in make(rule, 1, 130, 2, 6, 5).items()}
    changed = {
        n: z if n == "initial_state" else torch.cat([z[:, :70], z[:, 70:] * 0.3], 1) for n, z in x.items()
    }
    before, after = chunked(x)[0][:, :70], chunked(changed)[0][:, :70]
    assert torch.equal(before, after) if rule != "dplr" else (before - after).abs().max() < 1e-12


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("gate", [0.05, 1.0, 10.0, 40.0])
def test_float32_is_accurate(rule: str, gate: float) -> None:
    exact = make(rule, 1, 257, 2, 32, 32, gate)
    single = {name: z.detach().float().requires_grad_() for name, z in exact.items()}
    double = {name: z.detach().double().requires_grad_() for name, z in single.items()}
    got, wanted = chunked(single), chunked(double)
    assert got[1].dtype == torch.float32
    assert_same(got, wanted, 1e-5)
    assert_same(gradients(got, single), gradients(wanted, double), 2e-5)


@pytest.mark.parametrize("rule", ["gated", "dplr"])
def test_weak_decays_after_strong_ones_keep_their_digits(rule: str) -> None:
    """A cumulative sum in float32 would forget the weak decays (and masks, not decays, separate
    documents).
    """
    x = make(rule, 1, 64, 1, 16, 16, gate=0.01)
    with torch.no_grad():
        x["g"][:, 5] = -3000.0
    single = {name: z.detach().float() for name, z in x.items()}
    assert_same(chunked(single), chunked({n: z.double() for n, z in single.items()}), 1e-5)


def test_the_decay_acts_before_the_error_is_read() -> None:
    """fla issue 885: yes, it is intended; the other order gives something else."""
    x = make("gated", 1, 20, 1, 4, 4)
    S, outputs = x["initial_state"], []
    for t in range(20):
        q, k, v, beta, g = (x[name][:, t] for name in ("q", "k", "v", "beta", "g"))
        error = beta[..., None] * (v - torch.einsum("bhkv,bhk->bhv", S, k))
        S = S * g.exp()[..., None, None] + torch.einsum("bhk,bhv->bhkv", k, error)
        outputs.append(torch.einsum("bhkv,bhk->bhv", S, q) / 2)
    ours, _ = chunked(x)
    assert_same((ours,), (recurrent(x)[0],), 1e-12)
    assert (ours - torch.stack(outputs, 1)).abs().max() > 0.01


def test_state_gradient_of_dplr_with_an_initial_state() -> None:
    """fla issue 351: RWKV-7 differed when an initial state was given."""
    x = make("dplr", 2, 33, 2, 16, 16, gate=0.6)
    with_state = gradients(chunked(x), x)[-1]
    assert_same((with_state,), (gradients(recurrent(x), x)[-1],), 1e-10)
    assert with_state.abs().max() > 0


@pytest.mark.parametrize("rule", RULES)
def test_non_contiguous_inputs_partial_gradients_and_batches(rule: str) -> None:
    x = make(rule, 3, 40, 2, 6, 5)
    strided = {n: z.detach().transpose(0, 1).contiguous().transpose(0, 1) for n, z in x.items()}
    strided["v"].requires_grad_()
    o, S = chunked(strided)
    assert_same((o, S), chunked(x), 1e-12)
    (dv,) = torch.autograd.grad(o.sum(), strided["v"])
    assert_same((dv,), torch.autograd.grad(chunked(x)[0].sum(), x["v"]), 1e-12)
    for row in range(3):
        alone = chunked({n: z[row : row + 1] for n, z in x.items()})
        assert_same(alone, (o[row : row + 1], S[row : row + 1]), 1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_two_runs_are_equal_to_the_bit(rule: str) -> None:
    x = make(rule, 2, 65, 2, 16, 16, dtype=torch.float32)
    first, second = gradients(chunked(x), x), gradients(chunked(x), x)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_wrong_shapes_are_refused() -> None:
    x = make("gated", 1, 4, 2, 3, 5)
    with pytest.raises(ValueError, match=r"expected beta \[1, 4, 2\]"):
        chunked(x | {"beta": x["beta"][:, :, :1]})
    with pytest.raises(ValueError, match="without empty dimensions"):
        chunked({name: z[:0] for name, z in x.items()})
    y = make("dplr", 1, 4, 2, 3, 5)
    with pytest.raises(ValueError, match=r"expected g \[1, 4, 2, 3\]"):
        chunked(y | {"g": y["g"][..., 0]})


def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uninitialised memory reads as NaN: whatever is not written shows."""
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        original = getattr(owner, name)

        def poisoned(*args: Any, original: Callable[..., Tensor] = original, **options: Any) -> Tensor:
            return original(*args, **options).fill_(torch.nan)

        monkeypatch.setattr(owner, name, poisoned)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("T", [1, 16, 70])
def test_all_memory_is_written(rule: str, T: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = make(rule, 2, T, 2, 6, 5)
    wanted = chunked(x)
    wanted_gradients = gradients(wanted, x)
    poison(monkeypatch)
    got = chunked(x)
    assert_same(got, wanted, 0.0)
    assert_same(gradients(got, x), wanted_gradients, 0.0)
