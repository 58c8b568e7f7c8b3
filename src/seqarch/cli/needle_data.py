"""Make the samples of a needle at fixed depths, with their controls, in one format at one length."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from seqarch.cli.common import run_step, step_parser
from seqarch.evaluation.needle import FORMATS, make
from seqarch.evaluation.ruler.encoder import PromptEncoder
from seqarch.evaluation.ruler.prompt import Setup
from seqarch.evaluation.ruler.records import write
from seqarch.evaluation.ruler.resources import load_haystack, word_lists
from seqarch.evaluation.ruler.spec import NeedleDataStep
from seqarch.provenance import record
from seqarch.schema import parse


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_parser("needle_data", str(__doc__))
    parser.add_argument("--tokenizer", type=Path, required=True, help="manifest of the tokenizer")
    parser.add_argument("--text", type=Path, help="folder of the corpus' text, for a haystack from it")
    parser.add_argument("--manifests", type=Path, nargs="*", default=[], help="of the corpus' text")
    parser.add_argument("--out", type=Path, required=True, help="seed<k>.jsonl; its .json goes beside it")
    return run_step("needle_data", parser, _run, argv)


def _run(args: argparse.Namespace) -> None:
    spec = parse(NeedleDataStep, args.spec)
    inputs = {"tokenizer": args.tokenizer} | {f"text {path.name}": path for path in args.manifests}
    provenance = record("needle_data", args.spec, args.code, inputs, ["tokenizers", "wonderwords"])
    encoder = PromptEncoder.load(args.tokenizer, spec.special_tokens)
    haystack = load_haystack(spec.haystack, args.manifests, args.text) if spec.haystack else None
    setup = Setup(FORMATS[spec.format], "fixed", spec.length, spec.seed, encoder, word_lists(), haystack)
    lines, header = make(setup, spec.format, spec.depths, spec.n)
    write(args.out, lines, {**header, "provenance": provenance})


if __name__ == "__main__":
    raise SystemExit(main())
