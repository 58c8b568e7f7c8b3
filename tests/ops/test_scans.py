"""The elementwise scan and the selective scan: chunks against the recurrence, in every regime."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from seqarch.ops.diag_scan.op import diag_scan
from seqarch.ops.diag_scan.reference import diag_scan_recurrent
from seqarch.ops.segments import starts
from seqarch.ops.selective_scan import reference
from seqarch.ops.selective_scan.op import selective_scan
from seqarch.ops.selective_scan.reference import selective_scan_recurrent

Inputs = dict[str, Tensor]
SCANS = ["diag", "selective"]
LENGTHS = [1, 2, 3, 15, 16, 17, 33, 64, 130]


def make(
    scan: str, B: int, T: int, D: int, S: int = 3, rate: float = 1.0, dtype: torch.dtype = torch.float64
) -> Inputs:
    """Inputs of one scan; log decays of size `rate`."""
    generator = torch.Generator().manual_seed(T * D + S)

    def draw(function: Callable[..., Tensor], *shape: int) -> Tensor:
        return function(shape, generator=generator, dtype=torch.float64)

    if scan == "diag":
        x = {"a": torch.exp(-rate * draw(torch.rand, B, T, D)), "x": draw(torch.randn, B, T, D)}
        x["initial_state"] = draw(torch.randn, B, D)
    else:
        x = {"u": draw(torch.randn, B, T, D), "delta": draw(torch.rand, B, T, D)}
        x["A"] = -rate * draw(torch.rand, D, S)
        x |= {"B": draw(torch.randn, B, T, S), "C": draw(torch.randn, B, T, S)}
        x["initial_state"] = draw(torch.randn, B, D, S)
    return {name: z.to(dtype).requires_grad_() for name, z in x.items()}


def chunked(
    x: Inputs, segment_ids: Tensor | None = None, chunk_size: int | None = None
) -> tuple[Tensor, Tensor]:
    op: Callable[..., tuple[Tensor, Tensor]] = diag_scan if "a" in x else selective_scan
    return op(**x, return_state=True, segment_ids=segment_ids, chunk_size=chunk_size)


def recurrent(x: Inputs, segment_ids: Tensor | None = None) -> tuple[Tensor, Tensor]:
    first = None if segment_ids is None else starts(segment_ids)
    if "a" in x:
        a = x["a"] if first is None else x["a"].masked_fill(first[..., None], 0)
        h = diag_scan_recurrent(a, x["x"], initial_state=x["initial_state"])
        return h, h[:, -1]
    return selective_scan_recurrent(**x, starts=first)


def gradients(outputs: tuple[Tensor, Tensor], x: Inputs) -> tuple[Tensor, ...]:
    y, h = outputs
    generator = torch.Generator().manual_seed(7)
    dy, dh = (torch.randn(z.shape, generator=generator, dtype=torch.float64) for z in (y, h))
    return torch.autograd.grad((y * dy).sum() + (h * dh).sum(), list(x.values()))


def assert_same(got: tuple[Tensor, ...], wanted: tuple[Tensor, ...], tolerance: float) -> None:
    for a, b in zip(got, wanted, strict=True):
        assert torch.isfinite(a).all()
        assert (a - b).abs().max() <= tolerance * max(1.0, b.abs().max().item())


def part(x: Inputs, window: slice, state: Tensor | None = None) -> Inputs:
    cut = {n: z if n in ("initial_state", "A") else z[:, window] for n, z in x.items()}
    return cut if state is None else cut | {"initial_state": state}


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two chunks a block, so that short sequences have many blocks."""
    monkeypatch.setattr(reference, "BLOCK_ELEMENTS", 1)
    monkeypatch.setattr(reference, "MIN_CHUNKS", 2)


@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("rate", [1e-6, 1.0, 50.0])
@pytest.mark.parametrize("T", LENGTHS)
def test_chunks_equal_the_recurrence(scan: str, rate: float, T: int, small_blocks: None) -> None:
    x = make(scan, 2, T, 5, rate=rate)
    got, wanted = chunked(x), recurrent(x)
    assert_same(got, wanted, 1e-10)
    assert_same(gradients(got, x), gradients(wanted, x), 1e-10)


@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("C", [1, 4, 16, 64])
def test_any_chunk_size_gives_the_same(scan: str, C: int) -> None:
    x = make(scan, 1, 45, 5)
    got, wanted = chunked(x, chunk_size=C), recurrent(x)
    assert_same(got, wanted, 1e-10)
    assert_same(gradients(got, x), gradients(wanted, x), 1e-10)


@pytest.mark.parametrize("scan", SCANS)
def test_gradcheck(scan: str, small_blocks: None) -> None:
    x = make(scan, 2, 11, 3, 2)
    names = list(x)
    ids = torch.tensor([[0] * 4 + [1] * 7, [0] * 11])
    for segment_ids in (None, ids):
        assert torch.autograd.gradcheck(
            lambda *z, ids=segment_ids: chunked(dict(zip(names, z, strict=True)), ids, chunk_size=4),
            tuple(x.values()),
        )


@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("cut", [1, 15, 64])
def test_state_splits_anywhere(scan: str, cut: int) -> None:
    x = make(scan, 2, 70, 5)
    first, state = chunked(part(x, slice(0, cut)))
    second, end = chunked(part(x, slice(cut, None), state))
    assert_same((torch.cat([first, second], 1), end), chunked(x), 1e-12)


@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("rate", [0.5, 40.0])
def test_documents_are_separate(scan: str, rate: float, small_blocks: None) -> None:
    lengths = (1, 10, 3, 31, 16, 16)
    x = make(scan, 1, 77, 4, rate=rate)
    ids = torch.repeat_interleave(torch.arange(6), torch.tensor(lengths))[None]
    got = chunked(x, ids)
    outputs, begin, state = [], 0, x["initial_state"]
    for length in lengths:
        y, end = chunked(part(x, slice(begin, begin + length), state))
        outputs.append(y)
        begin, state = begin + length, torch.zeros_like(end)
    wanted = (torch.cat(outputs, 1), end)
    assert_same(got, wanted, 1e-12)
    assert_same(gradients(got, x), gradients(wanted, x), 1e-11)
    assert_same(got, recurrent(x, ids), 1e-12)


@pytest.mark.parametrize("scan", SCANS)
def test_causal_to_the_bit(scan: str) -> None:
    x = {name: z.detach() for name, z in make(scan, 1, 100, 5).items()}
    fixed = ("A", "initial_state")
    changed = {n: z if n in fixed else torch.cat([z[:, :41], z[:, 41:] * 0.3], 1) for n, z in x.items()}
    assert torch.equal(chunked(x)[0][:, :41], chunked(changed)[0][:, :41])


@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("rate", [0.01, 1.0, 10.0, 40.0])
def test_float32_is_accurate(scan: str, rate: float) -> None:
    single = {
        n: z.detach().requires_grad_() for n, z in make(scan, 1, 257, 32, 16, rate, torch.float32).items()
    }
    double = {n: z.detach().double().requires_grad_() for n, z in single.items()}
    got, wanted = chunked(single), chunked(double)
    assert got[1].dtype == torch.float32
    assert_same(got, wanted, 1e-5)
    assert_same(gradients(got, single), gradients(wanted, double), 2e-5)


@pytest.mark.parametrize("scan", SCANS)
def test_bfloat16_inputs_keep_a_wide_state(scan: str) -> None:
    x = {n: z.detach() for n, z in make(scan, 1, 40, 8, dtype=torch.bfloat16).items()}
    y, h = chunked(x)
    assert (y.dtype, h.dtype) == (torch.bfloat16, torch.float32)
    wide = chunked({n: z.float() for n, z in x.items()})
    assert torch.equal(h, wide[1])
    assert torch.equal(y, wide[0].bfloat16())


@pytest.mark.parametrize("scan", SCANS)
def test_decay_zero_is_exact(scan: str) -> None:
    """Decays that underflow give 0 states, not NaN, forward and backward."""
    x = make(scan, 1, 50, 4, rate=1e4, dtype=torch.float32)
    got = chunked(x)
    assert all(torch.isfinite(z).all() for z in (*got, *gradients(got, x)))


@pytest.mark.parametrize("scan", SCANS)
def test_partial_gradients_strides_and_batches(scan: str) -> None:
    x = make(scan, 3, 40, 6)
    strided = {
        n: z.detach() if n == "A" else z.detach().transpose(0, 1).contiguous().transpose(0, 1)
        for n, z in x.items()
    }
    name = "x" if scan == "diag" else "u"
    strided[name].requires_grad_()
    y, h = chunked(strided)
    assert_same((y, h), chunked(x), 1e-12)
    wanted = torch.autograd.grad(chunked(x)[0].sum(), x[name])
    assert_same(torch.autograd.grad(y.sum(), strided[name]), wanted, 1e-12)
    for row in range(3):
        alone = chunked({n: z if n == "A" else z[row : row + 1] for n, z in x.items()})
        assert_same(alone, (y[row : row + 1], h[row : row + 1]), 1e-12)


def test_diag_scan_takes_any_trailing_shape() -> None:
    x = make("diag", 2, 20, 6)
    flat = chunked(x)
    shaped = chunked({n: z.unflatten(-1, (2, 3)) for n, z in x.items()})
    assert_same(tuple(z.flatten(-2) for z in shaped), flat, 0.0)


def test_memory_of_the_selective_scan_is_bounded_by_blocks() -> None:
    """What the backward pass needs grows with T D, not with T D S: one state a chunk is saved."""
    x = make("selective", 1, 512, 8, 16)
    saved: list[int] = []

    def pack(z: Tensor) -> Tensor:
        saved.append(z.numel())
        return z

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda z: z):
        chunked(x)
    assert sum(saved) < 512 * 8 * 16 / 2


def test_wrong_shapes_are_refused() -> None:
    x = make("selective", 1, 4, 3)
    with pytest.raises(ValueError, match=r"expected A \[3, 3\], got \[2, 3\]"):
        chunked(x | {"A": x["A"][:2]})
    with pytest.raises(ValueError, match="without empty dimensions"):
        chunked({n: z if n == "A" else z[:0] for n, z in x.items()})
    y = make("diag", 1, 4, 3)
    with pytest.raises(ValueError, match=r"expected initial_state \[1, 3\]"):
        chunked(y | {"initial_state": y["initial_state"][:, :2]})
    with pytest.raises(ValueError, match="of one shape"):
        chunked(y | {"a": y["a"][:, :2]})


def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uninitialised memory reads as NaN: whatever is not written shows."""
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        original = getattr(owner, name)

        def poisoned(*args: Any, original: Callable[..., Tensor] = original, **options: Any) -> Tensor:
            return original(*args, **options).fill_(torch.nan)

        monkeypatch.setattr(owner, name, poisoned)


@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("T", [1, 16, 45])
def test_all_memory_is_written(scan: str, T: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = make(scan, 2, T, 5)
    wanted = chunked(x)
    wanted_gradients = gradients(wanted, x)
    poison(monkeypatch)
    got = chunked(x)
    assert_same(got, wanted, 0.0)
    assert_same(gradients(got, x), wanted_gradients, 0.0)
