"""Gather the scores of all models, of RULER or needles: intervals, means, published figures beside them."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from seqarch.analysis.long_context import needle_table, ruler_table
from seqarch.analysis.published import Published
from seqarch.cli.common import run_step, step_parser
from seqarch.evaluation.long_context_spec import LongContextTable
from seqarch.files import write_table
from seqarch.provenance import record
from seqarch.schema import parse

TABLES = {"ruler": ruler_table, "needle": needle_table}


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_parser("long_context_table", str(__doc__))
    parser.add_argument(
        "--scores",
        type=Path,
        nargs="+",
        required=True,
        help="<length>.parquet of cli.ruler_score; its samples lie beside it",
    )
    parser.add_argument("--published", type=Path, nargs="*", default=[], help="files of config/published")
    parser.add_argument("--out", type=Path, required=True, help="stem: .parquet and .csv are written")
    return run_step("long_context_table", parser, _run, argv)


def _run(args: argparse.Namespace) -> None:
    spec = parse(LongContextTable, args.spec)
    inputs = {f"scores {i}": path for i, path in enumerate(sorted(args.scores))}
    inputs |= {path.stem: path for path in args.published}
    provenance = record("long_context_table", args.spec, args.code, inputs, ["pyarrow", "numpy", "scipy"])
    table = TABLES[spec.kind](args.scores, spec, Published(args.published))
    write_table(args.out, table, provenance)


if __name__ == "__main__":
    raise SystemExit(main())
