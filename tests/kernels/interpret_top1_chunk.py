"""Run by test_top1_interpreter.py with TRITON_INTERPRET=1: Top-1 chunk kernels against the PyTorch path.

Compared with the kernel's own choice forced upon the other, and the rate of different choices bounded.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from seqarch.ops.top1_chunk import launch, op, summary, tiling
from seqarch.ops.top1_chunk.functions import Parts, PyTorch
from seqarch.ops.top1_chunk.grouped import make_tiles
from seqarch.ops.top1_chunk.layout import make_grid
from seqarch.ops.top1_chunk.op import top1_chunk
from seqarch.ops.top1_chunk.options import Options
from seqarch.ops.top1_chunk.reference import Inputs, Rule

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy on masked entries

TOLERANCE = {torch.float32: 3e-6, torch.float16: 6e-3}
Shape = tuple[int, int, int, int, int]

# B, T, H, K, V; C
PAIRS: list[tuple[Shape, int, torch.dtype, dict[str, Any], bool]] = [
    ((2, 50, 2, 32, 32), 16, torch.float32, {}, False),
    ((1, 65, 1, 32, 48), 32, torch.float32, {"own_chunk": "candidate", "tau": 0.6}, True),
    ((1, 49, 2, 20, 32), 16, torch.float32, {"own_chunk": "never", "router_grad": "scaled"}, True),
    ((1, 50, 1, 16, 16), 16, torch.float32, {"router": "exact", "tau_r": 0.8}, True),
    ((1, 65, 1, 16, 16), 32, torch.float32, {"router": "exact", "own_chunk": "candidate"}, False),
    ((1, 15, 1, 16, 16), 16, torch.float32, {}, False),
    ((1, 257, 1, 64, 64), 128, torch.float16, {}, False),
    ((1, 40, 1, 128, 128), 16, torch.float32, {"router_grad": "none"}, False),
]
EVERY = [
    ((1 + T % 2, T, 1, K, V), C, torch.float32, switches, T % 2 == 0)
    for T in (1, 2, 3, 15, 16, 17, 31, 63, 64, 65, 100, 127, 128, 129, 257)
    for (K, V), C in (((16, 16), 16), ((60, 64), 64), ((100, 100), 128))
    for switches in (
        [
            {},
            {"own_chunk": "candidate"},
            {"router": "exact"},
            {"own_chunk": "never", "router_grad": "scaled"},
        ][(T + K) % 4],
    )
]


def run(
    parts: Parts,
    x: tuple[Tensor, ...],
    do: Tensor,
    options: Options,
    ids: Tensor | None,
    forced: Tensor | None,
) -> tuple[Tensor, list[Tensor]]:
    q, k, v = x = tuple(y.detach().requires_grad_() for y in x)
    C = options.chunk_size
    grid = make_grid(q.shape[0], q.shape[1], C, q.device, ids, None)
    rule = Rule(
        q.shape[-1] ** -0.5,
        own_chunk=options.own_chunk,
        router=options.router,
        router_grad=options.router_grad,
        tau_r=options.tau_r,
        tau=options.tau,
    )
    keys = grid.spread(k)
    by_summary = options.own_chunk == "candidate" and options.router == "approx"
    own = summary.prefix(keys, C, "mean", None) if by_summary else None
    queries, chunks = grid.queries(q), summary.whole(keys, C, "mean", None)
    on_grid = Inputs(queries, keys, grid.spread(v), queries, keys, chunks, own)
    o, chosen = op.fast(on_grid, grid, rule, parts, forced)
    o = grid.collect(o, q.shape[1])
    return chosen, [o.detach(), *torch.autograd.grad((o.float() * do.float()).sum(), x)]


def compare(shape: Shape, C: int, dtype: torch.dtype, switches: dict[str, Any], packed: bool) -> None:
    B, T, H, K, V = shape
    torch.manual_seed(T + K)
    x = tuple(torch.randn(B, H, T, D).to(dtype).transpose(1, 2) for D in (K, K, V))
    do, options = torch.randn(B, T, H, V).to(dtype), Options(C, **switches)
    ids = (torch.arange(T) // 21).expand(B, T) if packed else None
    torch.use_deterministic_algorithms(True)  # torch.empty gives NaN
    chosen, found = run(launch.Kernels(), x, do, options, ids, None)
    again = run(launch.Kernels(), x, do, options, ids, None)[1]
    own, _ = run(PyTorch(), x, do, options, ids, None)
    _, expected = run(PyTorch(), x, do, options, ids, chosen)
    _, forced = run(launch.Kernels(), x, do, options, ids, chosen)
    assert (own != chosen).float().mean() <= (0 if dtype == torch.float32 else 0.02)
    for a, b, c, d in zip(found, again, forced, expected, strict=True):
        assert torch.equal(a, b)
        scale = d.float().abs().max().clamp(min=1)  # of the terms, which may cancel to 0
        assert (a.float() - d.float()).abs().max() <= TOLERANCE[dtype] * scale
        assert (c.float() - d.float()).abs().max() <= TOLERANCE[dtype] * scale


@pytest.mark.parametrize(("shape", "C", "dtype", "switches", "packed"), PAIRS)
def test_kernels_equal_the_pytorch_path(
    shape: Shape, C: int, dtype: torch.dtype, switches: dict[str, Any], packed: bool
) -> None:
    compare(shape, C, dtype, switches, packed)


@pytest.mark.torture
@pytest.mark.parametrize(("shape", "C", "dtype", "switches", "packed"), EVERY)
def test_every_shape(
    shape: Shape, C: int, dtype: torch.dtype, switches: dict[str, Any], packed: bool
) -> None:
    compare(shape, C, dtype, switches, packed)


@pytest.mark.parametrize("granularity", ["query_shared", "query_block"])
def test_the_op_takes_the_kernels_by_name(granularity: str) -> None:
    x = tuple(torch.randn(1, 50, 2, 16) for _ in range(3))
    options = Options(16, granularity=granularity)
    found, _ = top1_chunk(*x, options, backend="triton")
    torch.testing.assert_close(found, top1_chunk(*x, options, backend="reference")[0], rtol=0, atol=1e-5)


def test_continuing_from_a_state() -> None:
    x = tuple(torch.randn(1, 60, 2, 16) for _ in range(3))
    expected, _ = top1_chunk(*x, Options(16), backend="triton")
    _, state = top1_chunk(*(y[:, :37] for y in x), Options(16), return_state=True, backend="triton")
    o, _ = top1_chunk(*(y[:, 37:] for y in x), Options(16), initial_state=state, backend="triton")
    torch.testing.assert_close(o, expected[:, 37:], rtol=0, atol=1e-5)


def test_ties_go_to_the_earliest_chunk() -> None:
    q, means = torch.ones(1, 608, 1, 16), torch.ones(1, 38, 1, 16)
    first_chunk = torch.zeros(1, 38, dtype=torch.int32)
    means[:, 20:] = 2  # beyond one tile of summaries
    chosen, _, _ = launch.approx_forward(q, means, None, first_chunk, 16, 0.25, None)
    chunk = torch.arange(608) // 16
    expected = torch.where(chunk == 0, -1, torch.where(chunk <= 20, 0, 20))
    assert torch.equal(chosen.flatten(), expected)


def test_nan_shows_wherever_its_chunk_was_a_candidate() -> None:
    q, k, v = (torch.randn(1, 80, 2, 16) for _ in range(3))
    k[0, 20, 1, 3] = torch.nan
    o, _ = top1_chunk(q, k, v, Options(16), backend="triton")
    assert o[0, 20:, 1].isnan().all()
    o[0, 16:, 1] = 0
    assert not o.isnan().any()


def test_the_schedule_is_that_of_the_pytorch_path() -> None:
    chosen = torch.randint(-1, 6, (2, 3, 64))
    plan, tiles = tiling.schedule(chosen, 6, 16), make_tiles(chosen, 6, 16)
    rows = []
    for head in range(6):
        for chunk, start in zip(plan.tile_chunk[head].tolist(), plan.tile_start[head].tolist(), strict=True):
            if chunk < 6:
                stop = min(start + 16, int(plan.offsets[head, chunk + 1]))
                rows += [head * 64 + int(r) for r in plan.order[head, start:stop]]
    assert rows == tiles.rows[tiles.valid].tolist()
