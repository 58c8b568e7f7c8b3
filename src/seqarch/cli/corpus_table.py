"""Documents, bytes, tokens, duplicates and lengths of every domain and split."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from seqarch.cli.common import run_step, step_parser
from seqarch.files import write_table
from seqarch.provenance import record
from seqarch.schema import parse
from seqarch.tokens.corpus_table import CorpusTableStep, corpus_table


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_parser("corpus_table", str(__doc__))
    parser.add_argument("--text-manifests", type=Path, nargs="+", required=True, help="of all groups")
    parser.add_argument(
        "--token-manifests", type=Path, nargs="+", required=True, help="of all splits and domains"
    )
    parser.add_argument("--out", type=Path, required=True, help="the table without its ending")
    return run_step("corpus_table", parser, _run, argv)


def _run(args: argparse.Namespace) -> None:
    spec = parse(CorpusTableStep, args.spec)
    table = corpus_table(spec, args.text_manifests, args.token_manifests)
    inputs = {f"text {path.stem}": path for path in args.text_manifests}
    inputs |= {f"tokens {path.parent.parent.name} {path.parent.name}": path for path in args.token_manifests}
    write_table(args.out, table, record("corpus_table", args.spec, args.code, inputs, ["pyarrow"]))


if __name__ == "__main__":
    raise SystemExit(main())
