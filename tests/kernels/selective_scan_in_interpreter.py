"""Run by test_selective_scan_interpreter.py in a process of its own, with TRITON_INTERPRET=1: kernels
against the reference, forward and all gradients. Prints the number of cases.
"""

import torch

from seqarch.ops.selective_scan import triton_op
from seqarch.ops.selective_scan.op import selective_scan

NAMES = ("y", "final", "du", "d_delta", "dA", "dB", "dC", "d_initial")


def run(inputs: list[torch.Tensor], segment_ids: torch.Tensor | None, backend: str) -> list[torch.Tensor]:
    leaves = [x.clone().requires_grad_() for x in inputs]
    u, delta, A, B, C, initial = leaves
    y, final = selective_scan(
        u,
        delta,
        A,
        B,
        C,
        initial_state=initial,
        return_state=True,
        segment_ids=segment_ids,
        backend=backend,
    )
    assert final is not None
    weight = torch.linspace(-1, 1, y.numel()).reshape(y.shape)
    loss = (y.float() * weight).sum() + final.cos().sum()
    return [y, final, *torch.autograd.grad(loss, leaves)]


def main() -> None:
    # Small tiles: the interpreter scans element by element.
    triton_op.BT, triton_op.TILE = 4, 8
    cases = 0
    f32, f16 = torch.float32, torch.float16
    for dtype, T, documents in ((f32, 1, False), (f32, 3, False), (f32, 9, True), (f16, 9, True)):
        torch.manual_seed(T)
        batch, D, S = 2, 3, 3  # neither fills its tile
        acts = [torch.randn(batch, T, D), torch.rand(batch, T, D), torch.randn(2, batch, T, S)]
        u, delta, (B, C) = acts[0].to(dtype), acts[1].to(dtype), acts[2].to(dtype).unbind(0)
        inputs = [u, delta, -3 * torch.rand(D, S), B, C, torch.randn(batch, D, S)]
        segment_ids = torch.arange(T).div(4, rounding_mode="floor").repeat(batch, 1) if documents else None
        tolerance = 1e-5 if dtype == f32 else 2e-3
        pairs = zip(run(inputs, segment_ids, "triton"), run(inputs, segment_ids, "reference"), strict=True)
        for name, (got, wanted) in zip(NAMES, pairs, strict=True):
            assert got.dtype == wanted.dtype, name
            error = (got - wanted).abs().max() / wanted.abs().max().clamp(min=1e-3)
            assert error <= tolerance, f"{name}, {dtype}, T={T}, documents={documents}: error {error:.2e}"
        cases += 1
    print(cases)


if __name__ == "__main__":
    main()
