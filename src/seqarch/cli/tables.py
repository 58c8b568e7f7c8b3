"""Gather the tables of all runs: losses by domain, by position, training curves, downstream tasks."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from seqarch.analysis.spec import TablesJob
from seqarch.analysis.tables import gathered, training
from seqarch.cli.common import run_step, step_parser
from seqarch.files import write_table
from seqarch.provenance import record
from seqarch.schema import parse

BY_POINT = ["setting", "arch", "seed", "length", "step", "role", "domain"]


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_parser("tables", __doc__ or "")
    parser.add_argument("--losses", nargs="+", type=Path, help="domains.parquet of every run")
    parser.add_argument("--positions", nargs="+", type=Path, help="positions.parquet of every run")
    parser.add_argument("--metrics", nargs="+", type=Path, help="metrics.parquet of every run")
    parser.add_argument("--downstream", nargs="+", type=Path, help="scores.parquet of every run")
    for name in ("losses", "positions", "training", "downstream"):
        parser.add_argument(f"--out-{name}", type=Path, help=f"{name}.parquet; a .csv is written beside it")
    return run_step("tables", parser, _tables, argv)


def _tables(args: argparse.Namespace) -> None:
    experiment = parse(TablesJob, args.spec).experiment
    if args.out_losses:
        _write(args, args.out_losses, args.losses, gathered(args.losses or [], BY_POINT))
    if args.out_positions:
        order = [*BY_POINT, "bucket_lo"]
        _write(args, args.out_positions, args.positions, gathered(args.positions or [], order))
    if args.out_downstream:
        order = ["setting", "arch", "seed", "task"]
        _write(args, args.out_downstream, args.downstream, gathered(args.downstream or [], order))
    if args.out_training:
        _write(args, args.out_training, args.metrics, training(args.metrics or [], experiment))


def _write(args: argparse.Namespace, out: Path, paths: Sequence[Path], table: pa.Table) -> None:
    inputs = {f"run {i}": path for i, path in enumerate(sorted(paths))}
    write_table(out.with_suffix(""), table, record("tables", args.spec, args.code, inputs, ("pyarrow",)))


if __name__ == "__main__":
    raise SystemExit(main())
