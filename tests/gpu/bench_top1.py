"""One table for a machine with a GPU: time, TFLOP/s, share of the bound and peak memory against length.

    python tests/gpu/bench_top1.py            # after the correctness suite, which must be green

Ours beside torch's flash attention, fla's attention, fla's mixture of block attention and Mamba-2's
recurrence (fla). Forward, and forward + backward, bfloat16, B = 1, H = 12, D = 64 (the 110M scale). Runs
unattended in some minutes and writes each row as it comes: results/bench/gpu/top1.csv (at the end .parquet,
and speed.svg, its picture), and what it ran on beside it in .json.
"""

import argparse
import csv
import importlib
import importlib.metadata
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from seqarch.cli import figure
from seqarch.files import write_json, write_parquet
from seqarch.ops.top1_chunk.op import top1_chunk
from seqarch.ops.top1_chunk.options import Options
from seqarch.ops.top1_element.op import top1_element

ROOT = Path(__file__).parents[2]
LENGTHS = (2048, 8192, 32_768, 100_000)
B, H, D, C, STATE = 1, 12, 64, 128, 128
PEAK_TFLOPS = {
    "H200": 989,
    "H100": 989,
    "A100": 312,
    "L40S": 362,
    "L4": 121,
}  # bfloat16, dense, of data sheets
COLUMNS = (
    "device",
    "arch",
    "work",
    "length",
    "seconds",
    "low",
    "high",
    "tflops",
    "bound_share",
    "peak_bytes",
    "note",
)


class Contender(NamedTuple):
    """Who computes it, the forward FLOPs per token and head at length T, and the inputs it takes."""

    call: Callable[..., Tensor]
    flops: Callable[[int], float]
    inputs: Callable[[int], tuple[Tensor, ...]]


def qkv(T: int) -> tuple[Tensor, ...]:
    return tuple(
        torch.randn(B, T, H, D, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in "qkv"
    )


def flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True)


def moba(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    bounds = torch.tensor([0, q.shape[1]], dtype=torch.int32, device="cuda")
    return fla("moba", "parallel_moba")(q[0], k[0], v[0], bounds, q.shape[1], C, 2)


def mamba2_inputs(T: int) -> tuple[Tensor, ...]:
    """Twice the width in heads of 64 with a state of 128, as Mamba-2 at the same model width."""
    shapes = ((B, T, 2 * H, STATE), (B, T, 2 * H, STATE), (B, T, 2 * H, D))
    x = tuple(torch.randn(s, device="cuda", dtype=torch.bfloat16, requires_grad=True) for s in shapes)
    return *x, torch.randn(B, T, 2 * H, device="cuda").sigmoid().log().requires_grad_()


def mamba2(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    return fla("simple_gla", "chunk_simple_gla")(q, k, v, g=g)[0]


def fla(module: str, name: str) -> Callable[..., Any]:
    return getattr(
        importlib.import_module(f"fla.ops.{module}.parallel" if module == "moba" else f"fla.ops.{module}"),
        name,
    )


def attention_flops(T: int) -> float:
    return 2 * D * (T + 1)


def element_flops(T: int) -> float:
    return D * (T + 1)


def chunk_flops(T: int) -> float:
    return D * (T / C - 1) + 4 * D * ((C + 1) / 2 + C * (T - C) / T)


CONTENDERS = {
    "top1_chunk": Contender(lambda q, k, v: top1_chunk(q, k, v, backend="triton")[0], chunk_flops, qkv),
    "top1_chunk exact": Contender(
        lambda q, k, v: top1_chunk(q, k, v, Options(C, router="exact"), backend="triton")[0],
        lambda T: chunk_flops(T) + D * (T - C),
        qkv,
    ),
    "top1_element": Contender(lambda q, k, v: top1_element(q, k, v, backend="triton")[0], element_flops, qkv),
    "attention (SDPA flash)": Contender(flash, attention_flops, qkv),
    "attention (fla)": Contender(lambda q, k, v: fla("attn", "parallel_attn")(q, k, v), attention_flops, qkv),
    "mixture of block attention (fla)": Contender(moba, chunk_flops, qkv),
    "mamba2 (fla)": Contender(mamba2, lambda T: 2 * 5 * STATE * D, mamba2_inputs),
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "bench" / "gpu" / "top1.csv")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument(
        "--unchecked", action="store_true", help="time although the correctness suite was not run"
    )
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("error: no CUDA device; the benchmark of a CPU is `make bench`", file=sys.stderr)
        return 2
    if not args.unchecked and not correct():
        print("error: the correctness suite is red; nothing is timed", file=sys.stderr)
        return 1
    args.out.parent.mkdir(parents=True, exist_ok=True)
    about = surroundings()
    write_json(args.out.with_suffix(".json"), about)
    with open(args.out, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for row in rows(args.lengths):
            writer.writerow(row)
            file.flush()
            show(row)
    table = pd.read_csv(args.out)
    write_parquet(args.out.with_suffix(".parquet"), pa.Table.from_pandas(table, preserve_index=False), about)
    print(f"wrote {args.out}")
    if args.out.stem != "top1":  # the name by which the figure knows its table
        return 0
    drawn = ["--table", str(args.out.with_suffix(".parquet")), "--out", str(args.out.with_name("speed"))]
    return figure.main(["--spec", '{"figure": "speed"}', *drawn])


def correct() -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "gpu", "tests/gpu"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def surroundings() -> dict[str, Any]:
    def version(name: str) -> str | None:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return None

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    packages = {name: version(name) for name in ("torch", "triton", "fla-core", "flash-attn", "mamba-ssm")}
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver,
        "cuda": torch.version.cuda,
        "packages": packages,
    }


def rows(lengths: list[int]) -> Iterator[dict[str, Any]]:
    """Every contender at every length; one that can't run gives a row that says why."""
    device = torch.cuda.get_device_name()
    peak = next((value for name, value in PEAK_TFLOPS.items() if name in device), None)
    for name, contender in CONTENDERS.items():
        for T in lengths:
            for work in ("forward", "forward + backward"):
                row = {"device": device, "arch": name, "work": work, "length": T, "note": ""}
                try:
                    measured = measure(contender, T, backward=work != "forward")
                except Exception as error:  # a missing package, or too much memory: the others go on
                    torch.cuda.empty_cache()
                    yield row | {"note": f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"}
                    continue
                factor = 1 if work == "forward" else 3  # the backward pass counts as twice the forward
                tflops = factor * contender.flops(T) * B * H * T / measured["seconds"] / 1e12
                share = None if peak is None else tflops / peak
                yield row | measured | {"tflops": tflops, "bound_share": share}


def measure(contender: Contender, T: int, backward: bool) -> dict[str, float]:
    import triton

    x = contender.inputs(T)
    with torch.set_grad_enabled(backward):
        do = torch.randn_like(contender.call(*x))

        def step() -> None:
            o = contender.call(*x)
            if backward:
                torch.autograd.grad(o, x, do)

        step()  # compiled and tuned
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        used = torch.cuda.max_memory_allocated() - before
        middle, low, high = triton.testing.do_bench(step, warmup=25, rep=100, quantiles=[0.5, 0.2, 0.8])
    return {"seconds": middle / 1e3, "low": low / 1e3, "high": high / 1e3, "peak_bytes": used}


def show(row: dict[str, Any]) -> None:
    head = f"{row['arch']:34s} {row['work']:19s} T {row['length']:7d}"
    if row["note"]:
        print(f"{head}  {row['note']}")
        return
    share = "" if row["bound_share"] is None else f"{row['bound_share']:6.1%} of the peak"
    time, memory = f"{row['seconds'] * 1e3:9.3f} ms", f"{row['peak_bytes'] / 1e9:.2f} GB"
    print(f"{head}  {time}  {row['tflops']:7.1f} TFLOP/s {share}  {memory}")


if __name__ == "__main__":
    raise SystemExit(main())
