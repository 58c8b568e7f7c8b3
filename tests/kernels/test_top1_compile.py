"""The Top-1 kernels compiled ahead of time for GPUs that are not here: they compile, and fit the shared
memory.

A few combinations in every run (each kernel meets every dtype and width, each dtype every width); all of them
with
`-m torture`.
"""

import itertools
from typing import Any, NamedTuple

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from seqarch.ops.top1_chunk import kernels as chunk
from seqarch.ops.top1_chunk import router_kernels as router
from seqarch.ops.top1_chunk import tiling
from seqarch.ops.top1_element import kernels as element
from seqarch.ops.top1_element import launch as element_launch

SHARED = {80: 166_912, 90: 232_448}  # bytes a block may use
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
WIDTHS = (32, 64, 128, 256)
C = 128
INTEGERS = {
    *("lo_ptr", "hi_ptr", "forced_ptr", "index_ptr", "order_ptr", "offsets_ptr", "first_ptr", "chosen_ptr"),
    *("tile_chunk_ptr", "tile_start_ptr"),
}
FLOATS = {f"{name}_ptr" for name in ("slope", "lse", "p", "delta", "g", "part", "rp", "t", "own")}


class Kernel(NamedTuple):
    """A kernel, the constants of one use, and its arguments that are float32 whatever the inputs are."""

    function: Any
    constants: dict[str, bool]
    wide: tuple[str, ...] = ()


KERNELS = [
    Kernel(element.forward, {"ALIBI": True, "FORCED": False, "SOFT": True}),
    Kernel(element.backward_keys, {"ALIBI": True, "DENSE": True, "SCORES": True, "SOFT_VALUES": False}),
    Kernel(element.backward_queries, {"ALIBI": False, "DENSE": True}),
    Kernel(chunk.local_forward, {}, ("o_ptr",)),
    Kernel(chunk.chosen_forward, {"ALWAYS": True}, ("o_ptr",)),
    Kernel(chunk.backward_keys, {"ALWAYS": True}),
    Kernel(chunk.local_backward_queries, {"ALWAYS": True}, ("dq_ptr",)),
    Kernel(chunk.chosen_backward_queries, {}, ("dq_ptr",)),
    Kernel(router.approx_forward, {"FORCED": False, "OWN": True}),
    Kernel(router.approx_backward_queries, {}),
    Kernel(router.approx_backward_summaries, {}),
    Kernel(router.exact_forward, {"FORCED": False, "OWN": False}),
    Kernel(router.exact_backward_queries, {}),
    Kernel(router.exact_backward_keys, {}),
]
MORE = [  # switches that the list above leaves out
    Kernel(element.forward, {"ALIBI": False, "FORCED": True, "SOFT": False}),
    Kernel(element.backward_keys, {"ALIBI": False, "DENSE": False, "SCORES": True, "SOFT_VALUES": False}),
    Kernel(element.backward_keys, {"ALIBI": False, "DENSE": True, "SCORES": True, "SOFT_VALUES": True}),
    Kernel(element.backward_keys, {"ALIBI": False, "DENSE": False, "SCORES": False, "SOFT_VALUES": False}),
    Kernel(element.backward_queries, {"ALIBI": True, "DENSE": False}),
    Kernel(chunk.chosen_forward, {"ALWAYS": False}, ("o_ptr",)),
    Kernel(chunk.backward_keys, {"ALWAYS": False}),
    Kernel(chunk.local_backward_queries, {"ALWAYS": False}, ("dq_ptr",)),
    Kernel(router.approx_forward, {"FORCED": True, "OWN": False}),
    Kernel(router.exact_forward, {"FORCED": True, "OWN": True}),
]


def served(kernel: Kernel, dtype: str, width: int) -> bool:
    """float32 heads of 256 channels are refused by the chunk op (`op.unsupported`)."""
    return kernel.function.__module__ == element.__name__ or (dtype, width) != ("fp32", 256)


def some() -> list[tuple[Kernel, str, int, int]]:
    """Every kernel at every width (float32 up to 64: wide ones take long to unroll), dtypes and devices in
    turn.
    """
    chosen = []
    for i, kernel in enumerate(KERNELS):
        dtypes = [("bf16", "fp16"), ("fp16", "bf16")][i % 2]
        chosen += [(kernel, dtypes[0], 256, 80), (kernel, dtypes[1], 128, 90)]
        chosen.append((kernel, "fp32", (32, 64)[i % 2], (90, 80)[i // 2 % 2]))
        chosen.append((kernel, dtypes[i // 2 % 2], (64, 32)[i % 2], (80, 90)[i // 2 % 2]))
    return chosen


def every() -> list[tuple[Kernel, str, int, int]]:
    combinations = itertools.product(KERNELS + MORE, DTYPES, WIDTHS, SHARED)
    return [combination for combination in combinations if served(*combination[:3])]


def label(value: object) -> str:
    return value.function.__name__ if isinstance(value, Kernel) else str(value)


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "dtype", "width", "capability"), some(), ids=label)
def test_compiles_and_fits(kernel: Kernel, dtype: str, width: int, capability: int) -> None:
    compile_ahead(kernel, dtype, width, capability)


@pytest.mark.torture
@pytest.mark.parametrize(("kernel", "dtype", "width", "capability"), every(), ids=label)
def test_everything_compiles_and_fits(kernel: Kernel, dtype: str, width: int, capability: int) -> None:
    compile_ahead(kernel, dtype, width, capability)


def compile_ahead(kernel: Kernel, dtype: str, width: int, capability: int) -> None:
    names = kernel.function.arg_names
    if kernel.function.__module__ == element.__name__:
        sizes = element_launch.block_sizes(DTYPES[dtype], width)
    else:
        sizes = tiling.block_sizes(DTYPES[dtype], width, C)
    options = {name: sizes.pop(name) for name in ("num_warps", "num_stages")}
    widths = {"C": C, "K": width, "V": width, "BLOCK_K": width, "BLOCK_V": width}
    constants = {name: value for name, value in (widths | sizes).items() if name in names} | kernel.constants
    source = ASTSource(
        fn=kernel.function,
        signature={name: argument_type(name, dtype, constants, kernel.wide) for name in names},
        constexprs=constants,
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert compiled.asm["cubin"]
    assert compiled.metadata.shared <= SHARED[capability]


def argument_type(name: str, dtype: str, constants: dict[str, Any], wide: tuple[str, ...]) -> str:
    if name in constants:
        return "constexpr"
    if name in INTEGERS:
        return "*i32"
    if name in FLOATS or name in wide:
        return "*fp32"
    if name.endswith("_ptr"):
        return f"*{dtype}"
    if name in ("scale", "inv_tau", "inv_tau_r"):
        return "fp32"
    return "i64" if name[-2:] in ("_b", "_t", "_h") else "i32"
