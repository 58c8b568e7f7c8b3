"""The selective scan's kernels, compiled ahead of time for two GPUs: a CPU can do that."""

import inspect
from typing import Any

import pytest

triton = pytest.importorskip("triton")
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from seqarch.ops.selective_scan import kernels, triton_op  # noqa: E402

SHARED_MEMORY = {80: 166_912, 90: 232_448}  # bytes a block may use
STATES = 16  # as published
ACTIVATIONS = ("u_ptr", "delta_ptr", "B_ptr", "C_ptr", "y_ptr", "dy_ptr", "du_ptr", "d_delta_ptr")


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("name", ["selective_scan_forward", "selective_scan_backward"])
def test_kernel_compiles_within_shared_memory(name: str, dtype: str, capability: int) -> None:
    kernel = getattr(kernels, name)
    constants: dict[str, Any] = {
        "D": 1536,
        "S": STATES,
        **triton_op.blocking(STATES),
        "HAS_INITIAL": True,
        "HAS_KEEP": True,
    }
    signature = {}
    for parameter in inspect.signature(kernel.fn).parameters:
        if parameter in constants:
            signature[parameter] = "constexpr"
        elif parameter == "T":
            signature[parameter] = "i32"
        else:
            signature[parameter] = f"*{dtype}" if parameter in ACTIVATIONS else "*fp32"
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={key: constants[key] for key in signature if key in constants},
    )
    compiled = triton.compile(
        source, target=GPUTarget("cuda", capability, 32), options={"num_warps": triton_op.WARPS}
    )
    assert compiled.asm["cubin"]
    assert compiled.metadata.shared <= SHARED_MEMORY[capability]
