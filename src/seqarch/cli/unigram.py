"""The loss on each domain of knowing nothing but token frequencies: what learning has to beat."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from seqarch.analysis.spec import UnigramJob
from seqarch.analysis.unigram import unigram
from seqarch.cli.common import run_step, step_parser
from seqarch.files import write_table
from seqarch.provenance import record
from seqarch.schema import parse


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_parser("unigram", __doc__ or "")
    parser.add_argument("--manifests", required=True, nargs="+", type=Path, help="of the training tokens")
    parser.add_argument("--sets", required=True, type=Path, help="folder of the evaluation sets")
    parser.add_argument("--out", required=True, type=Path, help="the table, without .parquet and .csv")
    return run_step("unigram", parser, _unigram, argv)


def _unigram(args: argparse.Namespace) -> None:
    job = parse(UnigramJob, args.spec)
    table = unigram(job, args.manifests, args.sets)
    inputs = {f"set {domain}": args.sets / f"{domain}.json" for domain in job.domains}
    inputs |= {f"train {path.parent.name}": path for path in args.manifests}
    write_table(args.out, table, record("unigram", args.spec, args.code, inputs, ("numpy",)))


if __name__ == "__main__":
    raise SystemExit(main())
