"""Top-1 element and chunk selection on a CPU against torch's causal attention: time, growth, memory.

B = 1, 4 heads of 32 channels, chunks of 128, float32, forward + backward. Beside its rows it writes
results/bench/top1.parquet (and .csv): time and peak memory against length, for the figure `speed`.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
import torch.nn.functional as F
from peak_memory import PeakMemory  # beside this file
from torch import Tensor

from seqarch.files import write_table
from seqarch.ops.top1_chunk.op import top1_chunk
from seqarch.ops.top1_element.op import top1_element

H, D, C, THREADS = 4, 32, 128, 2
REPEATS = 5
LENGTHS = (1024, 2048, 4096, 8192, 16384)
QUADRATIC_UP_TO = 8192  # attention takes seconds beyond
TABLE = Path("results/bench/top1")
Op = Callable[[Tensor, Tensor, Tensor], Tensor]


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True)


def chunk(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return top1_chunk(q, k, v)[0]


def element(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return top1_element(q, k, v)[0]


def element_by_masks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """What one would write without the op: straight-through weights H + p - stopgrad(p), whole matrices."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    s = q @ k.transpose(-1, -2) * D**-0.5
    s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    p = s.softmax(-1)
    return (F.one_hot(s.argmax(-1), s.shape[-1]).to(p) + p - p.detach()) @ v


def rows() -> Iterator[dict[str, Any]]:
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        yield from _rows()
    finally:
        torch.set_num_threads(before)


def _rows() -> Iterator[dict[str, Any]]:
    chunk_s, chunk_bytes = _series(chunk, LENGTHS)
    attention_s, attention_bytes = _series(attention, [T for T in LENGTHS if T <= QUADRATIC_UP_TO])
    element_s, element_bytes = _series(element, LENGTHS[:3])
    masks_s, _ = _series(element_by_masks, LENGTHS[:1])
    for T, seconds in attention_s.items():
        goal = 3.0 if T == 8192 else 0.0
        peer = {"peer": "SDPA", "peer_seconds": seconds}
        yield _row("top1_chunk fwd+bwd", "top1_chunk", T, chunk_s) | peer | {"goal": goal}
    for T in (8192, 16384):
        growth = chunk_s[T] / chunk_s[T // 2]
        name = f"top1_chunk growth {growth:.2f} per doubling (at most 2.6)"
        yield _row(name, "top1_chunk", T, chunk_s) | {"pass": growth <= 2.6}
    factor = chunk_bytes[8192] / attention_bytes[8192]
    name = f"top1_chunk memory {factor:.2f} of SDPA's (at most 4)"
    yield _row(name, "top1_chunk", 8192, chunk_s) | {"pass": factor <= 4}
    peer = {"peer": "autograd through masks", "peer_seconds": masks_s[1024]}
    yield _row("top1_element fwd+bwd", "top1_element", 1024, element_s) | peer | {"goal": 0.95}
    series = {
        "top1-chunk": (chunk_s, chunk_bytes),
        "transformer": (attention_s, attention_bytes),
        "top1-element": (element_s, element_bytes),
    }
    lines = [
        {
            "arch": arch,
            "work": "forward + backward",
            "length": T,
            "seconds": seconds[T],
            "peak_bytes": peak[T],
        }
        for arch, (seconds, peak) in series.items()
        for T in seconds
    ]
    table = pa.Table.from_pylist([{"device": f"CPU, {THREADS} threads", **line} for line in lines])
    write_table(TABLE, table, {"benchmark": "bench_top1", "torch": torch.__version__})


def _row(name: str, ours: str, T: int, seconds: dict[int, float]) -> dict[str, Any]:
    shape = f"B1 H{H} T{T} D{D}"
    return {
        "benchmark": name,
        "shape": shape,
        "threads": THREADS,
        "ours": ours,
        "ours_seconds": seconds[T],
        "goal": 0.0,
    }


def _series(op: Op, lengths: Any) -> tuple[dict[int, float], dict[int, int]]:
    """Median seconds and peak bytes of forward + backward at each length."""
    seconds, peak = {}, {}
    for T in lengths:
        x = tuple(torch.randn(1, T, H, D, requires_grad=True) for _ in "qkv")
        with PeakMemory() as memory:  # warms up, too
            op(*x).sum().backward()
        peak[T] = memory.peak
        times = []
        for _ in range(REPEATS):
            begin = time.perf_counter()
            op(*x).sum().backward()
            times.append(time.perf_counter() - begin)
        seconds[T] = statistics.median(times)
    return seconds, peak
