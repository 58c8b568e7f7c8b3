"""Run the benchmarks: every `bench_*.py` here yields rows; they are written to results/bench/summary.csv.

A benchmark is a module with `rows() -> Iterator[dict]`. A row says what ran against what:

    benchmark, shape, threads      what it is: name, size of the problem, threads used by both
    ours, peer                     names of the two sides; peer may be empty where a bound is the goal
    ours_seconds, peer_seconds     best or median of repeated runs, measured alternately
    goal                           least ratio (peer_seconds / ours_seconds) that passes
    pass                           only where the goal is not a ratio (memory, say)

Times mean nothing on a busy machine: with other processes on the cores it refuses, or with --busy marks the
rows (`load` is the number of cores that others used just before the benchmark).
"""

import argparse
import csv
import importlib.util
import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

from seqarch.files import atomic_path

HERE = Path(__file__).parent
COLUMNS = (
    "benchmark",
    "shape",
    "threads",
    "ours",
    "peer",
    "ours_seconds",
    "peer_seconds",
    "ratio",
    "goal",
    "pass",
    "load",
)
QUIET = 0.15  # cores that others may use


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 all goals are met, 1 some are not or a benchmark failed, 2 nothing was run."""
    names = sorted(file.stem.removeprefix("bench_") for file in HERE.glob("bench_*.py"))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="these benchmarks")
    parser.add_argument("--busy", action="store_true", help="run although other processes use the cores")
    parser.add_argument("--out", type=Path, default=Path("results/bench/summary.csv"))
    args = parser.parse_args(argv)
    load = busy_cores()
    if load > QUIET and not args.busy:
        print(f"error: other processes use {load:.1f} cores; stop them, or pass --busy", file=sys.stderr)
        return 2
    rows, failed = [], False
    for name in args.only:
        try:
            for row in _load(name).rows():
                rows.append(complete(row, busy_cores()))
                _show(rows[-1])
        except Exception as error:  # the others are worth running
            print(f"error: {name}: {type(error).__name__}: {error}", file=sys.stderr)
            failed = True
    with atomic_path(args.out) as temporary, open(temporary, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    print(f"wrote {args.out}")
    return int(failed or not all(row["pass"] for row in rows))


def busy_cores(seconds: float = 1.0) -> float:
    """Cores that other processes are using, measured while this one sleeps."""
    before, started = _busy_seconds(), time.monotonic()
    time.sleep(seconds)
    return (_busy_seconds() - before) / (time.monotonic() - started)


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return times.user + times.system + getattr(times, "nice", 0.0)


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bench_{name}", HERE / f"bench_{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(HERE))  # benchmarks may share helpers
    spec.loader.exec_module(module)
    return module


def complete(row: dict[str, Any], load: float) -> dict[str, Any]:
    """The row with ratio, verdict and load."""
    missing = {"benchmark", "shape", "threads", "ours", "ours_seconds", "goal"} - set(row)
    if unknown := set(row) - set(COLUMNS):
        raise ValueError(f"unknown columns {sorted(unknown)}")
    if missing:
        raise ValueError(f"missing columns {sorted(missing)}")
    row = {"peer": "", "peer_seconds": None, **row}
    ratio = row["peer_seconds"] / row["ours_seconds"] if row["peer_seconds"] else None
    passed = row["pass"] if "pass" in row else ratio is not None and ratio >= row["goal"]
    return {**row, "ratio": ratio, "pass": bool(passed), "load": round(load, 2)}


def _show(row: dict[str, Any]) -> None:
    verdict = "ok  " if row["pass"] else "MISS"
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f} of {row['peer']}"
    name = f"{row['benchmark']} {row['shape']}"
    print(f"{verdict} {name}: {row['ours_seconds']:.4g} s  {ratio}  goal {row['goal']}")


if __name__ == "__main__":
    os.chdir(HERE.parents[1])
    raise SystemExit(main())
