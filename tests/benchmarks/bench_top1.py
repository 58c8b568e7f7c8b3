"""Top-1 element and chunk selection on a CPU against torch's causal attention: time, growth, memory.

B = 1, 4 heads of 32 channels, chunks of 128, float32, forward + backward, two threads. Beside its rows it
writes results/bench/top1.parquet (and .csv), time and peak memory against length, and draws them:
results/bench/speed.svg (and .png, .csv).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import peers
import pyarrow as pa
import torch
import torch.nn.functional as F
from peak_memory import PeakMemory  # beside this file
from timing import NO_SLOWER, Call, seconds, tensors, train_step
from torch import Tensor

from seqarch.cli import figure
from seqarch.files import write_table
from seqarch.ops.top1_chunk.op import top1_chunk
from seqarch.ops.top1_element.op import top1_element

H, D, THREADS = 4, 32, 2  # chunks of 128, the op's default
LENGTHS = (1024, 2048, 4096, 8192, 16384)
QUADRATIC_UP_TO = 8192  # attention takes seconds beyond
CHUNK_GROWTH, ELEMENT_GROWTH = 2.6, 4.6  # at most, per doubling; element selection is quadratic
CHUNK_MEMORY = 4  # of attention's, at most
TABLE, FIGURE = Path("results/bench/top1"), Path("results/bench/speed")


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


class Series(NamedTuple):
    """By length: median seconds of forward + backward, peak bytes, cores that others used meanwhile."""

    seconds: dict[int, float]
    peak: dict[int, int]
    load: dict[int, float]


def rows() -> Iterator[dict[str, Any]]:
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        yield from _rows()
    finally:
        torch.set_num_threads(before)


def _rows() -> Iterator[dict[str, Any]]:
    ours = _series(chunk, LENGTHS)
    attention = _series(peers.sdpa, [T for T in LENGTHS if T <= QUADRATIC_UP_TO])
    by_element = _series(element, LENGTHS[:3])
    by_masks = _series(element_by_masks, LENGTHS[:1])
    for T in attention.seconds:
        row = _row("top1_chunk", "top1_chunk", T, ours, attention) | {"peer": "SDPA"}
        yield row | ({"goal": 3.0} if T == 8192 else {"pass": True})  # shorter: for the record
    for T in (8192, 16384):
        yield _growth("top1_chunk", T, ours, CHUNK_GROWTH)
    factor = ours.peak[8192] / attention.peak[8192]
    name = f"top1_chunk, peak memory {factor:.2f} of SDPA's (at most {CHUNK_MEMORY})"
    yield _row(name, "top1_chunk", 8192, ours) | {"pass": factor <= CHUNK_MEMORY}
    factor = ours.peak[16384] / ours.peak[4096]
    name = f"top1_chunk, peak memory {factor:.2f} times that at T4096 (at most 4.4)"
    yield _row(name, "top1_chunk", 16384, ours) | {"pass": factor <= 4.4}
    row = _row("top1_element", "top1_element", 1024, by_element, by_masks)
    yield row | {"peer": "autograd through masks", "goal": NO_SLOWER}
    yield _growth("top1_element", 4096, by_element, ELEMENT_GROWTH)
    _write({"top1-chunk": ours, "transformer": attention, "top1-element": by_element})


def _write(series: dict[str, Series]) -> None:
    lines = [
        {
            "device": f"CPU, {THREADS} threads",
            "arch": arch,
            "work": "forward + backward",
            "length": T,
            "seconds": each.seconds[T],
            "peak_bytes": each.peak[T],
        }
        for arch, each in series.items()
        for T in each.seconds
    ]
    write_table(TABLE, pa.Table.from_pylist(lines), {"benchmark": "bench_top1", "torch": torch.__version__})
    table = f"{TABLE}.parquet"
    if figure.main(["--spec", '{"figure": "speed"}', "--table", table, "--out", str(FIGURE)]) != 0:
        raise RuntimeError(f"{table} could not be drawn")


def _growth(name: str, T: int, series: Series, limit: float) -> dict[str, Any]:
    growth = series.seconds[T] / series.seconds[T // 2]
    name = f"{name}, {growth:.2f} times T{T // 2} (at most {limit})"
    row = _row(name, name.split(",")[0], T, series)
    return row | {"load": max(series.load[T], series.load[T // 2]), "pass": growth <= limit}


def _row(name: str, ours: str, T: int, series: Series, peer: Series | None = None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "benchmark": name,
        "shape": f"B1 T{T} H{H} D{D}",
        "threads": THREADS,
        "ours": ours,
        "ours_seconds": series.seconds[T],
        "goal": 0.0,
        "load": series.load[T],
    }
    if peer is not None:
        row |= {"peer_seconds": peer.seconds[T], "load": max(series.load[T], peer.load[T])}
    return row


def _series(op: Call, lengths: Sequence[int]) -> Series:
    series = Series({}, {}, {})
    for T in lengths:
        inputs = tensors(*[(1, T, H, D)] * 3)
        step = train_step(op, inputs)
        with PeakMemory() as memory:
            step()
        series.peak[T] = memory.peak
        measured = seconds([step], repeats=5)
        series.seconds[T], series.load[T] = measured.times[0], measured.load
    return series


if __name__ == "__main__":
    for row in rows():
        print(row)
