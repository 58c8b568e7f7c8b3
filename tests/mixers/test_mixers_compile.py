"""torch.compile changes no mixer's numbers: outputs and gradients, compiled and not, are equal.

Projections, norms and gates are compiled; the references of the ops run as they are
(`ops.common.uncompiled`). A few mixers stand for the kinds of op; together they take most of a minute.
"""

import shutil

import pytest
import torch

from seqarch.mixers import registry

D_MODEL = 64

pytestmark = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("g++", "clang++")), reason="inductor needs a C++ compiler"
)


@pytest.mark.parametrize("name", ["attention", "mamba2", "rglru", "rwkv7", "top1_chunk"])
def test_compiled_equals_eager(name: str) -> None:
    torch.manual_seed(0)
    torch.compiler.reset()
    cls = registry.config_class(name)
    config = cls(**(cls.sizes_for(D_MODEL, None) | {"d_model": D_MODEL, "hidden": 8}))
    layer = registry.module_class(name)(config)
    layer.init_weights()
    with torch.no_grad():  # RWKV's output matrix is zero at the start, which would hide everything
        for parameter in layer.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    x = torch.randn(2, 150, D_MODEL, requires_grad=True)
    weight = torch.randn_like(x)
    leaves = [x, *layer.parameters()]
    results = []
    for call in (layer, torch.compile(layer)):
        y, state = call(x, return_state=False)
        results.append([y, *torch.autograd.grad((y * weight).sum(), leaves)])
        assert state is None
    for eager, compiled in zip(*results, strict=True):
        scale = max(1.0, eager.abs().max().item())
        torch.testing.assert_close(compiled, eager, rtol=0, atol=2e-5 * scale)
    assert results[0][0].abs().max() > 1e-2
