"""Gather the ruler scores of all models: intervals, means, and the published figures beside them."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from seqarch.analysis.long_context import ruler_table
from seqarch.analysis.published import Published
from seqarch.cli.common import run_step, step_parser
from seqarch.evaluation.long_context_spec import LongContextTable
from seqarch.files import write_table
from seqarch.provenance import record
from seqarch.schema import parse


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_parser("ruler_table", str(__doc__))
    parser.add_argument(
        "--scores",
        type=Path,
        nargs="+",
        required=True,
        help="<length>.parquet of cli.ruler_score; its samples lie beside it",
    )
    parser.add_argument("--published", type=Path, nargs="*", default=[], help="files of config/published")
    parser.add_argument("--out", type=Path, required=True, help="stem: .parquet and .csv are written")
    return run_step("ruler_table", parser, _run, argv)


def _run(args: argparse.Namespace) -> None:
    spec = parse(LongContextTable, args.spec)
    inputs = {f"scores {i}": path for i, path in enumerate(sorted(args.scores))}
    inputs |= {path.stem: path for path in args.published}
    provenance = record("ruler_table", args.spec, args.code, inputs, ["pyarrow", "numpy", "scipy"])
    write_table(args.out, ruler_table(args.scores, spec, Published(args.published)), provenance)


if __name__ == "__main__":
    raise SystemExit(main())
