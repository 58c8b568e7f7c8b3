"""Take the tokenizer of a published model, from a folder or from the Hugging Face hub."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from seqarch.cli.common import run_step, step_parser
from seqarch.evaluation.long_context_spec import PublishedStep
from seqarch.evaluation.pretrained import TOKENIZER, locate
from seqarch.evaluation.published_tokenizer import take
from seqarch.provenance import record
from seqarch.schema import parse


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_parser("pretrained_tokenizer", str(__doc__))
    parser.add_argument(
        "--out", type=Path, required=True, help="manifest.json; tokenizer.json is written beside it"
    )
    return run_step("pretrained_tokenizer", parser, _run, argv)


def _run(args: argparse.Namespace) -> None:
    spec = parse(PublishedStep, args.spec)
    folder, commit = locate(spec.path, spec.revision, TOKENIZER)
    provenance = record("pretrained_tokenizer", args.spec, args.code, {}, ["tokenizers"])
    take(folder, args.out.parent, path=spec.path, commit=commit, provenance=provenance)


if __name__ == "__main__":
    raise SystemExit(main())
