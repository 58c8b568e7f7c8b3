"""The fla adapter without a GPU: what it refuses and why, how it packs documents, that no other file
imports fla.
"""

import importlib.metadata
import importlib.util
import re
from pathlib import Path

import pytest
import torch

import seqarch
from seqarch.ops import fla_adapter
from seqarch.ops.backend import BackendUnavailable
from seqarch.ops.delta_rule.op import delta_rule
from seqarch.ops.fla_adapter import KERNELS, pack, unsupported

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As on a machine with fla, an A100 and triton 3.7.1."""
    machine(monkeypatch, (8, 0), "3.7.1")
    return monkeypatch


def machine(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], triton: str) -> None:
    monkeypatch.setattr(fla_adapter, "available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: triton)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_cpu_is_refused_for_every_kernel(kernel: str) -> None:
    assert "need a GPU" in (unsupported(kernel, CPU, torch.float32) or "")


@pytest.mark.parametrize("kernel", KERNELS)
def test_bfloat16_on_a_gpu_is_served(kernel: str, gpu: pytest.MonkeyPatch) -> None:
    assert unsupported(kernel, CUDA, torch.bfloat16, K=64, V=128) is None


def test_limits_of_types_and_widths(gpu: pytest.MonkeyPatch) -> None:
    assert "float64" in (unsupported("gla", CUDA, torch.float64, K=64, V=64) or "")
    assert "float32" in (unsupported("delta_rule", CUDA, torch.float32, K=64, V=64) or "")
    assert unsupported("gated_delta_rule", CUDA, torch.float32, K=64, V=64) is None
    assert "wider than 256" in (unsupported("gated_delta_rule", CUDA, torch.bfloat16, K=257, V=64) or "")
    assert "at least 16" in (unsupported("gla", CUDA, torch.bfloat16, K=8, V=64) or "")
    assert "boundaries" in (unsupported("diag_scan", CUDA, torch.float32, resets=True) or "")


@pytest.mark.parametrize(
    ("capability", "triton", "refused"),
    [
        ((9, 0), "3.3.1", False),
        ((9, 0), "3.4.0", True),
        ((9, 0), "3.6.0+git1234", True),
        ((9, 0), "3.7.0", True),
        ((9, 0), "3.7.1", False),
        ((8, 0), "3.6.0", False),
        ((10, 0), "3.6.0", False),
    ],
)
def test_hopper_guard(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], triton: str, refused: bool
) -> None:
    """fla issue 640."""
    machine(monkeypatch, capability, triton)
    for kernel in ("gated_delta_rule", "simple_gla"):
        reason = unsupported(kernel, CUDA, torch.bfloat16, K=64, V=64)
        assert (reason is not None and "640" in reason) == refused
        assert unsupported(kernel, CUDA, torch.bfloat16, K=64, V=64, needs_grad=False) is None
    assert unsupported("gla", CUDA, torch.bfloat16, K=64, V=64) is None


def test_without_fla_the_reason_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not fla_adapter.available()
    assert fla_adapter.version() is None
    assert "seqarch[gpu]" in (unsupported("gla", CUDA, torch.bfloat16) or "")


def test_asking_for_fla_on_a_cpu_raises_the_reason() -> None:
    q = torch.rand(1, 4, 1, 16)
    with pytest.raises(BackendUnavailable, match="need a GPU"):
        delta_rule(q, q, q, q[..., 0], backend="fla")
    with pytest.raises(BackendUnavailable, match="no backend 'flash'"):
        delta_rule(q, q, q, q[..., 0], backend="flash")


def test_kernel_choice_of_linear_attention() -> None:
    choose = fla_adapter.linear_attention_kernel
    gates = {
        None: "linear_attention",
        (3,): "simple_gla",
        (1, 2, 3): "simple_gla",
        (1, 2, 3, 4): "gla",
        (3, 4): "gla",
    }
    for shape, kernel in gates.items():
        assert choose(None if shape is None else torch.zeros(shape), None) == kernel
    assert choose(torch.zeros(1, 2, 3, 4), torch.zeros(3, 4)) == "rwkv6"


def test_kernels_exist_where_fla_is_installed() -> None:
    """Modules move between releases: found in the source, without importing it (no kernel can run here)."""
    spec = importlib.util.find_spec("fla")
    if spec is None:
        pytest.skip("fla-core is an extra")
    root = Path(spec.submodule_search_locations[0])  # type: ignore[index]
    for path in KERNELS.values():
        module, function = path.split(".")
        assert function in (root / "ops" / module / "__init__.py").read_text()


def test_documents_are_packed_into_one_sequence() -> None:
    segment_ids = torch.tensor([[0, 0, 1, 1, 1], [4, 4, 4, 4, 4], [1, 2, 2, 3, 3]])
    packing = pack(segment_ids)
    assert packing.cu_seqlens.tolist() == [0, 2, 5, 10, 11, 13, 15]
    assert packing.first.tolist() == [0, 2, 3]
    assert packing.last.tolist() == [1, 2, 5]


def test_no_other_file_imports_fla() -> None:
    root = Path(seqarch.__file__).parent
    imports = re.compile(r"^\s*(import fla|from fla)\b|import_module\([^)]*fla", re.MULTILINE)
    found = [str(f.relative_to(root)) for f in root.rglob("*.py") if imports.search(f.read_text())]
    assert found == ["ops/fla_adapter.py"]
