"""Draw the fixed set of test documents that every model is scored on in one domain."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from seqarch.cli.common import run_step, step_parser
from seqarch.provenance import record
from seqarch.schema import parse
from seqarch.tokens.evaluation_build import EvaluationSetStep, build


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_parser("evaluation_set", str(__doc__))
    parser.add_argument("--manifest", type=Path, required=True, help="of the domain's test tokens")
    parser.add_argument(
        "--train-manifest", type=Path, help="of its training tokens: to check that no document is in both"
    )
    parser.add_argument("--tokenizer", type=Path, required=True, help="manifest of the tokenizer of both")
    parser.add_argument(
        "--out", type=Path, required=True, help="<domain>.json; .bin and .docs.parquet go beside it"
    )
    return run_step("evaluation_set", parser, _run, argv)


def _run(args: argparse.Namespace) -> None:
    spec = parse(EvaluationSetStep, args.spec)
    inputs = {"test": args.manifest, "tokenizer": args.tokenizer}
    inputs |= {"train": args.train_manifest} if args.train_manifest else {}
    provenance = record("evaluation_set", args.spec, args.code, inputs, ["pyarrow", "tokenizers"])
    build(spec, args.manifest, args.train_manifest, args.tokenizer, args.out, provenance)


if __name__ == "__main__":
    raise SystemExit(main())
