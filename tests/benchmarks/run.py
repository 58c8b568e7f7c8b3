"""Run the benchmarks: every `bench_*.py` here yields rows; they are written to results/bench/summary.csv.

A benchmark is a module with `rows() -> Iterator[dict]`. A row says what ran against what:

    benchmark, shape, threads      what it is: name, size of the problem, threads used by both
    ours, peer                     names of the two sides; peer may be empty where a bound is the goal
    ours_seconds, peer_seconds     best or median of repeated runs, measured alternately
    goal                           least ratio (peer_seconds / ours_seconds) that passes
    pass                           only where the goal is not a ratio (memory, say); None: no verdict, because
                                   the peer's package is not installed
    load                           cores that others used meanwhile (left out: measured over the whole row)

Times mean nothing on a busy machine: with other processes on the cores it refuses to start without --busy,
and what was measured beside others (`load`) is marked as busy.
"""

import argparse
import csv
import importlib.util
import os
import signal
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from quiet import QUIET, Others, busy_cores  # beside this file

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
    rows: list[dict[str, Any]] = []
    started, failed = time.monotonic(), False
    try:
        for name in args.only:
            failed = not _run(name, rows, started) or failed
    finally:  # what was measured before an interruption is kept
        _write(rows, args.out)
    unknown = sum(row["pass"] is None for row in rows)
    missed = sum(row["pass"] is False for row in rows)
    busy = sum(row["load"] > QUIET for row in rows)
    print(f"{len(rows)} rows: {missed} missed, {unknown} without a peer, {busy} on a busy machine")
    return int(failed or missed > 0)


def _run(name: str, rows: list[dict[str, Any]], started: float) -> bool:
    """Append a benchmark's rows as they come; False if it broke off."""
    try:
        benchmark = _load(name).rows()
        while True:
            with Others() as others:
                row = next(benchmark, None)
            if row is None:
                return True
            rows.append(complete(row, others.cores))
            _show(rows[-1], time.monotonic() - started)
    except Exception as error:  # the others are worth running
        print(f"error: {name}: {type(error).__name__}: {error}", file=sys.stderr)
        return False


def _write(rows: list[dict[str, Any]], out: Path) -> None:
    with atomic_path(out) as temporary, open(temporary, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    print(f"wrote {out}")


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
    if not isinstance(row["goal"], int | float):
        raise ValueError(f"goal: expected a number, got {row['goal']!r}")
    row = {"peer": "", "peer_seconds": None, **row}
    ratio = row["peer_seconds"] / row["ours_seconds"] if row["peer_seconds"] else None
    passed = row["pass"] if "pass" in row else ratio is not None and ratio >= row["goal"]
    passed = None if passed is None else bool(passed)
    return {"load": round(load, 2), **row, "ratio": ratio, "pass": passed}


def _show(row: dict[str, Any], elapsed: float) -> None:
    """The progress line."""
    verdict = {None: "?   ", True: "ok  ", False: "MISS"}[row["pass"]]
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f} of {row['peer']}"
    busy = f"  BUSY: others used {row['load']} cores" if row["load"] > QUIET else ""
    name = f"{row['benchmark']} {row['shape']} threads {row['threads']}"
    text = f"{name}: {row['ours_seconds']:.4g}  {ratio}  goal {row['goal']:.3g}{busy}"
    print(f"{elapsed:5.0f} s  {verdict} {text}", flush=True)


if __name__ == "__main__":
    os.chdir(HERE.parents[1])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # writes what was measured, as Ctrl-C does
    raise SystemExit(main())
