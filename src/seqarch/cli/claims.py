"""Judge the papers' claims: effect, interval, smallest detectable effect and verdict of each."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa

from seqarch.analysis.claims import evaluate
from seqarch.analysis.claims_spec import ClaimsJob
from seqarch.cli.common import run_step, step_parser
from seqarch.files import write_table
from seqarch.provenance import record
from seqarch.schema import parse


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_parser("claims", __doc__ or "")
    parser.add_argument("--docs", required=True, nargs="+", type=Path, help="docs.parquet of every run")
    parser.add_argument(
        "--scores",
        default=[],
        nargs="*",
        type=Path,
        help="the tables ruler, needle, recall, as far as they are",
    )
    parser.add_argument("--out", required=True, type=Path, help="the table, without .parquet and .csv")
    return run_step("claims", parser, _claims, argv)


def _claims(args: argparse.Namespace) -> None:
    job = parse(ClaimsJob, args.spec)
    inputs = {f"docs {i}": path for i, path in enumerate(sorted(args.docs))}
    inputs |= {f"scores {i}": path for i, path in enumerate(sorted(args.scores))}
    table = evaluate(job, _read(args.docs), _read(args.scores) if args.scores else None)
    provenance = record("claims", args.spec, args.code, inputs, ("numpy", "scipy", "statsmodels"))
    write_table(args.out, pa.Table.from_pandas(table, preserve_index=False), provenance)


def _read(paths: Sequence[Path]) -> pd.DataFrame:
    return pd.concat([pd.read_parquet(path) for path in sorted(paths)], ignore_index=True)


if __name__ == "__main__":
    raise SystemExit(main())
