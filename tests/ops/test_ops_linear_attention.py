"""Linear attention: gradcheck, chunk form against recurrence, causality, decays of any size, bad input."""

import math

import pytest
import torch
from torch import Tensor

from seqarch.ops.linear_attention.op import linear_attention
from seqarch.ops.linear_attention.recurrent import linear_attention_recurrent

GATES = ("none", "constant", "constant_vector", "scalar", "vector")


def gate(kind: str, B: int, T: int, H: int, K: int, magnitude: float, dtype: torch.dtype) -> Tensor | None:
    shapes = {
        "constant": (H,),
        "constant_vector": (H, K),
        "scalar": (B, T, H),
        "vector": (B, T, H, K),
    }
    return None if kind == "none" else -magnitude * torch.rand(shapes[kind], dtype=dtype)


def inputs(
    kind: str,
    B: int = 2,
    T: int = 10,
    H: int = 2,
    K: int = 3,
    V: int = 4,
    *,
    bonus: bool = False,
    shared: bool = False,
    magnitude: float = 1.0,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> dict[str, Tensor | None]:
    torch.manual_seed(seed)
    heads = 1 if shared else H
    tensors = {
        "q": torch.randn(B, T, heads, K, dtype=dtype),
        "k": torch.randn(B, T, heads, K, dtype=dtype),
        "v": torch.randn(B, T, H, V, dtype=dtype),
        "g": gate(kind, B, T, H, K, magnitude, dtype),
        "bonus": torch.randn(H, K, dtype=dtype) if bonus else None,
        "initial_state": torch.randn(B, H, K, V, dtype=dtype),
    }
    return {name: x if x is None else x.requires_grad_() for name, x in tensors.items()}


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("bonus", [False, True])
@pytest.mark.parametrize("magnitude", [0.5, 300.0])
def test_gradcheck(kind: str, bonus: bool, magnitude: float) -> None:
    """Output and final state, with every input; 300 takes the tiers for strong decays."""
    tensors = inputs(kind, B=1, T=7, H=1 if magnitude > 1 else 2, bonus=bonus, magnitude=magnitude)
    names = [name for name, x in tensors.items() if x is not None]

    def call(*values: Tensor) -> tuple[Tensor, ...]:
        o, state = linear_attention(**dict(zip(names, values, strict=True)), chunk_size=4, return_state=True)
        return o, state

    assert torch.autograd.gradcheck(call, [tensors[name] for name in names], atol=1e-6)


def compare(tensors: dict[str, Tensor | None], segment_ids: Tensor | None, chunk_size: int | None) -> None:
    """Output, state and all gradients of the chunk form against the recurrence."""
    leaves = [x for x in tensors.values() if x is not None]
    results = []
    for function, options in (
        (linear_attention, {"chunk_size": chunk_size, "return_state": True}),
        (linear_attention_recurrent, {}),
    ):
        o, state = function(**tensors, segment_ids=segment_ids, **options)
        generator = torch.Generator().manual_seed(1)
        do, dS = (torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in (o, state))
        results.append([o, state, *torch.autograd.grad((o * do).sum() + (state * dS).sum(), leaves)])
    for fast, slow in zip(*results, strict=True):
        scale = max(1.0, slow.abs().max().item())
        torch.testing.assert_close(fast, slow, rtol=0, atol=1e-10 * scale)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize(
    ("T", "chunk_size", "bonus", "shared", "magnitude", "packed"),
    [
        (1, None, False, False, 1.0, False),
        (3, None, True, False, 0.1, True),
        (63, 16, False, True, 1e-6, True),
        (65, 64, True, False, 10.0, False),
        (100, 32, False, False, 50.0, True),
        (129, None, False, True, 10.0, True),
        (130, None, True, False, 50.0, True),
        (257, None, False, False, 0.1, False),
    ],
)
def test_chunks_equal_the_recurrence(
    kind: str, T: int, chunk_size: int | None, bonus: bool, shared: bool, magnitude: float, packed: bool
) -> None:
    tensors = inputs(kind, T=T, H=3, K=5, bonus=bonus, shared=shared and not bonus, magnitude=magnitude)
    segment_ids = None
    if packed:
        segment_ids = torch.randint(0, 1 + T // 8, (2, T)).sort(dim=1).values
    compare(tensors, segment_ids, chunk_size)


@pytest.mark.parametrize("kind", ["constant", "scalar", "vector"])
@pytest.mark.parametrize("magnitude", [1e-6, 0.05, 2.5, 10.0, 40.0, 400.0])
def test_float32_accuracy(kind: str, magnitude: float) -> None:
    """1e-5 of the largest value at any decay, 1e-4 at extreme ones, and finite gradients."""
    exact = inputs(kind, T=200, K=16, V=16, magnitude=magnitude)
    rough = {n: None if x is None else x.detach().float().requires_grad_() for n, x in exact.items()}
    o64, S64 = linear_attention(**exact, return_state=True)
    o32, S32 = linear_attention(**rough, return_state=True)
    assert o32.dtype == torch.float32
    tolerance = 1e-5 if magnitude <= 50 else 1e-4
    assert (o32 - o64).abs().max() <= tolerance * o64.abs().max()
    assert (S32 - S64).abs().max() <= tolerance * S64.abs().max().clamp(min=1)
    gradients = torch.autograd.grad(
        o32.square().sum() + S32.sum(), [x for x in rough.values() if x is not None]
    )
    assert all(g.isfinite().all() for g in gradients)


@pytest.mark.parametrize("kind", ["scalar", "vector"])
@pytest.mark.parametrize("strong", [-1e2, -1e4, -1e8, -math.inf])
def test_weak_decays_between_strong_ones_keep_their_digits(kind: str, strong: float) -> None:
    exact = inputs(kind, T=100, K=16, V=16, magnitude=0.05)
    g = exact["g"]
    assert g is not None
    exact["g"] = torch.where(torch.rand_like(g) < 0.1, strong, g).detach().requires_grad_()
    rough = {n: None if x is None else x.detach().float().requires_grad_() for n, x in exact.items()}
    o64, S64 = linear_attention_recurrent(**exact)
    o32, S32 = linear_attention(**rough, return_state=True)
    assert S32 is not None
    assert (o32 - o64).abs().max() <= 1e-4 * o64.abs().max()
    assert (S32 - S64).abs().max() <= 1e-4 * S64.abs().max()
    given = [x for x in rough.values() if x is not None]
    assert all(g.isfinite().all() for g in torch.autograd.grad(o32.sum() + S32.sum(), given))


@pytest.mark.parametrize("bonus", [False, True])
def test_large_inputs_have_finite_gradients(bonus: bool) -> None:
    """At the largest decay of each tier: factors that fit in the forward pass fit in the backward pass."""
    for magnitude in (0.3, 0.6, 1.2, 2.4, 4.9, 9.9):
        tensors = inputs("vector", T=128, K=16, V=16, bonus=bonus, dtype=torch.float32)
        rough = {n: None if x is None else (30 * x.detach()).requires_grad_() for n, x in tensors.items()}
        rough["g"] = torch.full((2, 128, 2, 16), -magnitude, requires_grad=True)
        o, _ = linear_attention(**rough)
        given = [x for x in rough.values() if x is not None]
        found = torch.autograd.grad((30 * o).square().sum().sqrt(), given)
        assert all(each.isfinite().all() for each in found), magnitude


@pytest.mark.parametrize(
    ("kind", "exact"), [("none", True), ("constant", True), ("scalar", True), ("vector", False)]
)
def test_causality(kind: str, exact: bool) -> None:
    """A change after t0 leaves outputs up to t0 alone: to the bit, but for the centred factors of vector
    decays.
    """
    tensors = inputs(kind, T=100, magnitude=0.5, dtype=torch.float32)
    before, _ = linear_attention(**tensors)
    changed = {n: None if x is None else x.detach().clone() for n, x in tensors.items()}
    for name in ("q", "k", "v", *(["g"] if kind in ("scalar", "vector") else [])):
        changed[name][:, 51:] *= 0.5
    after, _ = linear_attention(**changed)
    assert not torch.equal(before[:, 51:], after[:, 51:])
    if exact:
        assert torch.equal(before[:, :51], after[:, :51])
    else:
        assert (before[:, :51] - after[:, :51]).abs().max() <= 1e-5 * before.abs().max()


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize(("K", "V"), [(16, 16), (60, 64), (100, 100), (96, 192)])
def test_widths_and_layouts(kind: str, K: int, V: int) -> None:
    """Odd widths; inputs that are not contiguous; gradients for some inputs only."""
    tensors = inputs(kind, T=17, H=3, K=K, V=V, dtype=torch.float32)
    expected, _ = linear_attention_recurrent(**tensors)
    strided = {
        n: x if n != "v" else x.detach().transpose(1, 2).contiguous().transpose(1, 2)
        for n, x in tensors.items()
    }
    o, _ = linear_attention(**strided)
    torch.testing.assert_close(o, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())
    assert torch.autograd.grad(o.sum(), strided["q"])[0].isfinite().all()


def test_bad_shapes_are_named() -> None:
    x = torch.randn(2, 5, 3, 4)
    with pytest.raises(ValueError, match="empty dimension"):
        linear_attention(x[:, :0], x[:, :0], x[:, :0])
    with pytest.raises(ValueError, match="expected q and k"):
        linear_attention(x[:, :, :2], x[:, :, :2], x)
    with pytest.raises(ValueError, match="expected g of shape"):
        linear_attention(x, x, x, x[:, :, :2])
    with pytest.raises(ValueError, match="initial_state"):
        linear_attention(x, x, x, initial_state=torch.zeros(2, 3, 4, 5))


@pytest.mark.parametrize(
    ("kind", "bonus"), [("none", False), ("scalar", False), ("vector", False), ("vector", True)]
)
def test_memory_is_bounded_by_the_chunk(kind: str, bonus: bool) -> None:
    """What the backward keeps is linear in T, and far below one state [K, V] a step."""
    kept = []
    for T in (512, 1024):
        seen: dict[int, int] = {}

        def pack(x: Tensor, seen: dict[int, int] = seen) -> Tensor:
            seen[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        tensors = inputs(kind, B=1, T=T, H=2, K=64, V=64, bonus=bonus, magnitude=0.1, dtype=torch.float32)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            o, _ = linear_attention(**tensors)
        kept.append(sum(seen.values()))
        o.sum().backward()
    assert kept[1] <= 2.1 * kept[0]
    assert kept[1] <= 1024 * 2 * 64 * 64 * 4 / 4  # a quarter of all states
