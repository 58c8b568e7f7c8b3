"""Run by test_top1_interpreter.py with TRITON_INTERPRET=1: Top-1 element kernels against the reference.

Kernel and reference are compared with the kernel's own choice forced upon the reference, and the rate at
which the two choose differently is bounded: near-ties fall either way.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from seqarch.ops.top1_element import launch, reference
from seqarch.ops.top1_element.op import visible_keys
from seqarch.ops.top1_element.reference import Rule

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy on masked entries

RULES = {
    "softmax": {},
    "output": {"st_site": "output", "tau": 0.5},
    "gate": {"st": "gate"},
    "scaled": {"st": "scaled", "tau": 1.5},
    "none": {"st": "none"},
}
TOLERANCE = {torch.float32: 2e-6, torch.float16: 4e-3}

# B, T, H, K, V: lengths around tiles, widths that fill no power of two
PAIRS: list[tuple[tuple[int, int, int, int, int], torch.dtype, str, bool, bool, bool]] = [
    ((1, 1, 1, 16, 16), torch.float32, "softmax", True, False, False),
    ((2, 17, 3, 32, 64), torch.float32, "gate", False, True, True),
    ((1, 65, 1, 60, 64), torch.float32, "scaled", True, True, True),
    ((1, 129, 1, 64, 128), torch.float32, "softmax", True, False, True),
    ((2, 100, 1, 100, 100), torch.float32, "output", False, True, False),
    ((1, 31, 2, 32, 32), torch.float16, "none", True, False, True),
    ((1, 130, 1, 64, 64), torch.float16, "softmax", True, False, False),
    ((1, 33, 1, 256, 256), torch.float32, "softmax", True, False, False),
]
EVERY = [
    ((1 + T % 2, T, 1, K, V), torch.float32, rule, bool(T % 3), bool(T % 2), T > 16)
    for T in (1, 2, 3, 15, 16, 17, 31, 63, 64, 65, 100, 127, 128, 129, 257)
    for K, V in ((16, 16), (60, 64), (96, 192))
    for rule in (["softmax", "output", "gate", "scaled", "none"][(T + K) % 5],)
]


def run(
    backend: Any, x: tuple[Tensor, ...], do: Tensor, *rest: Any, forced: Tensor | None = None
) -> tuple[Tensor, list[Tensor]]:
    x = tuple(y.detach().requires_grad_() for y in x)
    o, index = backend.select(*x, *rest, forced)
    return index, [o.detach(), *torch.autograd.grad((o.float() * do.float()).sum(), x)]


def compare(
    shape: tuple[int, int, int, int, int],
    dtype: torch.dtype,
    rule: str,
    self_: bool,
    alibi: bool,
    packed: bool,
) -> None:
    B, T, H, K, V = shape
    torch.manual_seed(T + K)
    q, k, v, do = (torch.randn(B, T, H, D).to(dtype) for D in (K, K, V, V))
    k = k.transpose(1, 2).contiguous().transpose(1, 2)  # strides of the caller's choosing
    ids = (torch.arange(T) // 23).expand(B, T) if packed else None
    slopes = torch.rand(H) / 10 if alibi else None
    rest = (visible_keys(q, k, ids, None, self_), Rule(K**-0.5, **RULES[rule]), slopes)  # type: ignore[arg-type]
    torch.use_deterministic_algorithms(True)  # torch.empty gives NaN
    index, found = run(launch, (q, k, v), do, *rest)
    again = run(launch, (q, k, v), do, *rest)[1]
    own, _ = run(reference, (q, k, v), do, *rest)
    _, expected = run(reference, (q, k, v), do, *rest, forced=index)
    _, forced = run(launch, (q, k, v), do, *rest, forced=index)
    assert (own != index).float().mean() <= (0 if dtype == torch.float32 else 0.02)
    assert torch.equal(found[0], expected[0])  # the selected values, bit for bit
    for a, b, c, d in zip(found, again, forced, expected, strict=True):
        assert torch.equal(a, b)
        scale = d.float().abs().max().clamp(min=1)  # of the terms, which may cancel to 0
        assert (a.float() - d.float()).abs().max() <= TOLERANCE[dtype] * scale
        assert (c.float() - d.float()).abs().max() <= TOLERANCE[dtype] * scale


@pytest.mark.parametrize(("shape", "dtype", "rule", "self_", "alibi", "packed"), PAIRS)
def test_kernels_equal_the_reference(
    shape: tuple[int, int, int, int, int],
    dtype: torch.dtype,
    rule: str,
    self_: bool,
    alibi: bool,
    packed: bool,
) -> None:
    compare(shape, dtype, rule, self_, alibi, packed)


@pytest.mark.torture
@pytest.mark.parametrize(("shape", "dtype", "rule", "self_", "alibi", "packed"), EVERY)
def test_every_shape(
    shape: tuple[int, int, int, int, int],
    dtype: torch.dtype,
    rule: str,
    self_: bool,
    alibi: bool,
    packed: bool,
) -> None:
    compare(shape, dtype, rule, self_, alibi, packed)


def test_ties_go_to_the_lowest_place_within_and_across_tiles() -> None:
    q, k, v = torch.ones(1, 150, 1, 16), torch.ones(1, 150, 1, 16), torch.randn(1, 150, 1, 16)
    k[:, 100:] = 2
    _, index = launch.select(q, k, v, visible_keys(q, k, None, None, True), Rule(0.25))
    assert torch.equal(index.flatten(), torch.where(torch.arange(150) < 100, 0, 100))


def test_continuing_from_a_state_and_nan() -> None:
    q, k, v = (torch.randn(1, 70, 2, 16) for _ in range(3))
    whole = visible_keys(q, k, None, None, True)
    state = {"start": torch.zeros(1, dtype=torch.int64)}
    rest = visible_keys(q[:, 50:], k, None, state, True)
    o, _ = launch.select(q, k, v, whole, Rule(0.25))
    later, _ = launch.select(q[:, 50:], k, v, rest, Rule(0.25))
    assert torch.equal(later, o[:, 50:])
    k[0, 40, 1, 3] = torch.nan
    o, _ = launch.select(q, k, v, whole, Rule(0.25))
    assert o[0, 40:, 1].isnan().all()
    o[0, 40:, 1] = 0
    assert not o.isnan().any()


def test_under_torch_compile_the_custom_op_is_traced_with_its_fake() -> None:
    args = [torch.randn(1, 8, 1, 16) for _ in range(3)]
    lo, hi = torch.zeros(1, 8, dtype=torch.int32), torch.arange(8, dtype=torch.int32)[None]
    more = (0, 0.25, 1.0, True, None, None)
    torch.library.opcheck(
        launch.forward, (*args, lo, hi, *more), test_utils=("test_schema", "test_faketensor")
    )
