"""The Top-1 kernels on a GPU, in the dtypes and at the sizes that no interpreter can show."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from seqarch.ops.top1_chunk import router_launch
from seqarch.ops.top1_chunk.memory import training_bytes
from seqarch.ops.top1_chunk.op import top1_chunk
from seqarch.ops.top1_chunk.options import Options
from seqarch.ops.top1_element import launch as element_launch
from seqarch.ops.top1_element import reference as element_reference
from seqarch.ops.top1_element.op import top1_element, visible_keys
from seqarch.ops.top1_element.reference import Rule

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; there is none here"),
]

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
Shape = tuple[int, int, int, int, int]  # B, T, H, K, V

# In varying company, so that the kernels of a run compile within minutes.
ELEMENT: list[tuple[Shape, torch.dtype, dict[str, Any]]] = [
    ((1, 1, 1, 32, 32), BF16, {}),
    ((2, 100, 3, 60, 64), FP16, {"st_site": "output", "tau": 0.5}),
    ((1, 129, 2, 64, 64), BF16, {}),
    ((2, 257, 1, 128, 128), FP32, {"st": "gate"}),
    ((1, 1000, 2, 96, 192), BF16, {"st": "scaled"}),
    ((1, 300, 1, 256, 256), BF16, {}),
    ((1, 300, 1, 256, 256), FP32, {}),
    ((1, 2000, 4, 64, 64), FP32, {}),
    ((1, 1000, 2, 128, 128), FP16, {"st": "none"}),
]
CHUNK: list[tuple[Shape, int, torch.dtype, dict[str, Any]]] = [
    ((1, 1, 1, 32, 32), 16, BF16, {}),
    ((2, 100, 3, 60, 64), 32, FP16, {"own_chunk": "candidate", "tau": 0.7}),
    ((1, 129, 2, 64, 64), 128, BF16, {}),
    ((2, 257, 1, 128, 128), 64, FP32, {"own_chunk": "never", "router_grad": "scaled"}),
    ((1, 1000, 2, 96, 192), 128, BF16, {"router": "exact"}),
    ((1, 300, 1, 256, 256), 128, BF16, {}),
    ((1, 2000, 4, 64, 64), 128, FP32, {"router": "exact", "own_chunk": "candidate"}),
    ((1, 2000, 4, 64, 64), 128, BF16, {"router_grad": "none"}),
    ((1, 1000, 2, 128, 128), 128, FP16, {}),
]


def tensors(
    shape: tuple[int, int, int, int, int], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v and dO."""
    B, T, H, K, V = shape
    generator = torch.Generator("cuda").manual_seed(T)
    make = [torch.randn(B, T, H, D, generator=generator, device="cuda").to(dtype) for D in (K, K, V, V)]
    return make[0], make[1], make[2], make[3]


def documents(shape: tuple[int, ...], packed: bool) -> Tensor | None:
    ids = torch.arange(shape[1], device="cuda") // 90
    return ids.expand(shape[0], -1).contiguous() if packed else None


def close(found: list[Tensor], expected: list[Tensor], dtype: torch.dtype) -> None:
    """By the root mean square and by the worst row, which a global mean would hide."""
    for a, b in zip(found, expected, strict=True):
        assert a.isfinite().all()
        error, size = (a.float() - b.float()), b.float()
        scale = size.square().mean().sqrt() + 1e-3
        assert error.square().mean().sqrt() <= TOLERANCE[dtype] * scale
        assert error.square().mean(-1).sqrt().max() <= 10 * TOLERANCE[dtype] * (size.abs().max() + 1e-3)


def gradients(o: Tensor, do: Tensor, x: tuple[Tensor, ...]) -> list[Tensor]:
    return [o.detach(), *torch.autograd.grad((o.float() * do.float()).sum(), x)]


@pytest.mark.parametrize(("shape", "dtype", "rule"), ELEMENT, ids=str)
def test_element(
    shape: Shape, dtype: torch.dtype, rule: dict[str, Any], record_property: Callable[[str, object], None]
) -> None:
    """With the kernel's choice forced upon the reference; choices differ only where the best two tie."""
    q, k, v, do = tensors(shape, dtype)
    x = tuple(y.requires_grad_() for y in (q, k, v))
    visible = visible_keys(q, k, documents(shape, shape[1] > 100), None, True)
    options = Rule(shape[3] ** -0.5, **rule)
    o, index = element_launch.select(*x, visible, options)
    found = gradients(o, do, x)
    again, _ = element_launch.select(*x, visible, options)
    for a, b in zip(found, gradients(again, do, x), strict=True):
        assert torch.equal(a, b)
    wide = tuple(y.detach().double().requires_grad_() for y in x)
    forced, _ = element_reference.select(*wide, visible, options, None, index)
    close(found, gradients(forced, do, wide), dtype)
    _, exact = element_reference.select(*wide, visible, options)
    differ = (exact != index).float().mean().item()
    record_property("different_choices", differ)
    assert differ <= {torch.float32: 1e-4, torch.float16: 0.01, torch.bfloat16: 0.05}[dtype]
    gap = score(wide, exact, options) - score(wide, index, options)
    row = (
        torch.linalg.vector_norm(wide[0], dim=-1)
        * torch.linalg.vector_norm(wide[1], dim=-1).amax()
        * options.scale
    )
    assert (gap <= 2**-7 * row).all()


def score(x: tuple[Tensor, ...], index: Tensor, rule: Rule) -> Tensor:
    q, k, _ = x
    return (q * k.gather(1, index.unsqueeze(-1).expand_as(q))).sum(-1) * rule.scale


@pytest.mark.parametrize(("shape", "C", "dtype", "switches"), CHUNK, ids=str)
def test_chunk(shape: Shape, C: int, dtype: torch.dtype, switches: dict[str, Any]) -> None:
    q, k, v, do = tensors(shape, dtype)
    x, ids = tuple(y.requires_grad_() for y in (q, k, v)), documents(shape, shape[1] == 257)
    options = Options(C, **switches)
    T = shape[1]
    chunks = torch.arange(T, device="cuda") // C
    forced = (chunks // 2)[None, :, None].expand(shape[:3]) if ids is None else None
    found, again, expected = (
        gradients(top1_chunk(*x, options, segment_ids=ids, force_chunk=forced, backend=backend)[0], do, x)
        for backend in ("triton", "triton", "reference")
    )
    for a, b in zip(found, again, strict=True):
        assert torch.equal(a, b)
    if forced is not None or dtype == torch.float32:  # else a near-tie may fall either way
        close(found, expected, dtype)


def test_the_model_dtype_chooses_mostly_the_same_chunks() -> None:
    shape = (1, 2048, 4, 64, 64)
    q, k, _, _ = tensors(shape, torch.bfloat16)
    first = torch.zeros(1, 16, dtype=torch.int32, device="cuda")
    means = k.unflatten(1, (16, 128)).float().mean(2)
    low, _, _ = router_launch.approx_forward(q, means, None, first, 128, 0.125, None)
    high, _, _ = router_launch.approx_forward(q.float(), means, None, first, 128, 0.125, None)
    assert (low != high).float().mean() < 0.05


def test_a_long_training_step_fits_its_memory_bound() -> None:
    x = tuple(
        torch.randn(1, 100_000, 12, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in "qkv"
    )
    do = torch.randn_like(x[0])
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.autograd.grad(top1_chunk(*x, backend="triton")[0], x, do)
    assert torch.cuda.max_memory_allocated() - before <= training_bytes(1, 100_000, 12, 64, torch.bfloat16)


def test_more_heads_than_a_second_grid_axis_could_hold() -> None:
    x = tuple(torch.randn(7000, 16, 10, 16, device="cuda", dtype=torch.bfloat16) for _ in "qkv")
    for op in (
        lambda: top1_element(*x, backend="triton")[0],
        lambda: top1_chunk(*x, Options(16), backend="triton")[0],
    ):
        o = op()
        assert torch.equal(o[:, 0], x[2][:, 0])  # the first token sees itself alone
        assert o.isfinite().all()


def test_offsets_beyond_two_to_the_31() -> None:
    """2.2e9 elements a tensor: 4.4 GB each."""
    if torch.cuda.get_device_properties(0).total_memory < 40 * 2**30:
        pytest.skip("needs 40 GB")
    v = torch.zeros(1, 1, 1, 1, device="cuda", dtype=torch.bfloat16).expand(70_000, 256, 2, 64).contiguous()
    v[-1, 0] = 1
    o, _ = top1_element(v, v, v, backend="triton")
    assert (o[-1] == 1).all()
    assert not o[:-1].any()


def test_compiled_equals_eager() -> None:
    q, k, v, _ = tensors((1, 256, 2, 64, 64), torch.bfloat16)

    def both(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (
            top1_element(q, k, v, backend="triton")[0] + top1_chunk(q, k, v, Options(64), backend="triton")[0]
        )

    torch.testing.assert_close(torch.compile(both)(q, k, v), both(q, k, v), rtol=2e-2, atol=2e-2)
