"""Compare out-of-domain losses at equal in-domain loss: deltas, intervals, tests and verdicts."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa

from seqarch.analysis.curves import with_roles
from seqarch.analysis.equal_loss import equal_loss
from seqarch.analysis.spec import EqualLossJob
from seqarch.cli.common import run_step, step_parser
from seqarch.files import write_table
from seqarch.provenance import record
from seqarch.schema import parse


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_parser("equal_loss", __doc__ or "")
    parser.add_argument("--docs", required=True, nargs="+", type=Path, help="docs.parquet of every run")
    parser.add_argument("--out", required=True, type=Path, help="the table, without .parquet and .csv")
    return run_step("equal_loss", parser, _equal_loss, argv)


def _equal_loss(args: argparse.Namespace) -> None:
    job = parse(EqualLossJob, args.spec)
    docs = pd.concat([pd.read_parquet(path) for path in sorted(args.docs)], ignore_index=True)
    table = equal_loss(with_roles(docs, job.domains), job.studies, job.statistics)
    table.insert(0, "experiment", docs["experiment"].iloc[0])
    inputs = {f"docs {i}": path for i, path in enumerate(sorted(args.docs))}
    packages = ("numpy", "scipy", "statsmodels")
    provenance = record("equal_loss", args.spec, args.code, inputs, packages)
    write_table(args.out, pa.Table.from_pandas(table, preserve_index=False), provenance)


if __name__ == "__main__":
    raise SystemExit(main())
