"""Gather the recall scores of all architectures and tasks, and the learning rates that were tried."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from seqarch.analysis.spec import TablesJob
from seqarch.analysis.tables import gathered
from seqarch.cli.common import run_step, step_parser
from seqarch.files import write_table
from seqarch.provenance import record
from seqarch.schema import parse

SCORES = ["task", "arch", "seed", "length", "n_pairs", "depth"]
SWEEP = ["task", "arch", "learning_rate", "seed"]


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_parser("recall_table", __doc__ or "")
    parser.add_argument("--scores", required=True, nargs="+", type=Path, help="scores.parquet of every job")
    parser.add_argument("--sweeps", required=True, nargs="+", type=Path, help="sweep.parquet of every job")
    parser.add_argument("--out", required=True, type=Path, help="stem: .parquet and .csv, <stem>_sweep.…")
    return run_step("recall_table", parser, _tables, argv)


def _tables(args: argparse.Namespace) -> None:
    parse(TablesJob, args.spec)
    inputs = {f"scores {i}": path for i, path in enumerate(sorted(args.scores))}
    inputs |= {f"sweep {i}": path for i, path in enumerate(sorted(args.sweeps))}
    provenance = record("recall_table", args.spec, args.code, inputs, ("pyarrow",))
    write_table(args.out, gathered(args.scores, SCORES), provenance)
    write_table(args.out.with_name(f"{args.out.name}_sweep"), gathered(args.sweeps, SWEEP), provenance)


if __name__ == "__main__":
    raise SystemExit(main())
