"""Make the comparison at equal in-domain loss again in other ways: do they say the same?"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa

from seqarch.analysis.curves import with_roles
from seqarch.analysis.sensitivity import sensitivity
from seqarch.analysis.spec import SensitivityJob
from seqarch.cli.common import run_step, step_parser
from seqarch.files import write_table
from seqarch.provenance import record
from seqarch.schema import parse
from seqarch.tokens.store import TokenSet


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_parser("sensitivity", __doc__ or "")
    parser.add_argument("--docs", required=True, nargs="+", type=Path, help="docs.parquet of every run")
    parser.add_argument(
        "--manifests", required=True, nargs="+", type=Path, help="training tokens of every in-domain set"
    )
    parser.add_argument("--out", required=True, type=Path, help="the table, without .parquet and .csv")
    return run_step("sensitivity", parser, _sensitivity, argv)


def _sensitivity(args: argparse.Namespace) -> None:
    job = parse(SensitivityJob, args.spec)
    docs = pd.concat([pd.read_parquet(path) for path in sorted(args.docs)], ignore_index=True)
    tokens = {each.domain: each.n_tokens for each in map(TokenSet, args.manifests)}
    table = sensitivity(with_roles(docs, job.domains), job, tokens)
    table.insert(0, "experiment", docs["experiment"].iloc[0])
    inputs = {f"docs {i}": path for i, path in enumerate(sorted(args.docs))}
    inputs |= {f"train {path.parent.name}": path for path in args.manifests}
    packages = ("numpy", "scipy", "statsmodels")
    provenance = record("sensitivity", args.spec, args.code, inputs, packages)
    write_table(args.out, pa.Table.from_pandas(table, preserve_index=False), provenance)


if __name__ == "__main__":
    raise SystemExit(main())
