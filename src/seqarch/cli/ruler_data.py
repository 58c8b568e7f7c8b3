"""Make the samples of one RULER task at one length."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from seqarch.cli.common import run_step, step_parser
from seqarch.evaluation.ruler.encoder import PromptEncoder
from seqarch.evaluation.ruler.prompt import Setup
from seqarch.evaluation.ruler.records import make, write
from seqarch.evaluation.ruler.resources import load_haystack, load_questions, word_lists
from seqarch.evaluation.ruler.spec import ESSAY_TASKS, QA_TASKS, RulerDataStep
from seqarch.provenance import record
from seqarch.schema import parse


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_parser("ruler_data", str(__doc__))
    parser.add_argument("--tokenizer", type=Path, required=True, help="manifest of the tokenizer")
    parser.add_argument("--text", type=Path, help="folder of the corpus' text, for a haystack from it")
    parser.add_argument("--manifests", type=Path, nargs="*", default=[], help="of the corpus' text")
    parser.add_argument("--out", type=Path, required=True, help="seed<k>.jsonl; its .json goes beside it")
    return run_step("ruler_data", parser, _run, argv)


def _run(args: argparse.Namespace) -> None:
    spec = parse(RulerDataStep, args.spec)
    inputs = {"tokenizer": args.tokenizer} | {f"text {path.name}": path for path in args.manifests}
    provenance = record("ruler_data", args.spec, args.code, inputs, ["tokenizers", "wonderwords"])
    essay, asks = spec.task in ESSAY_TASKS, spec.task in QA_TASKS  # a configuration gives both to all tasks
    setup = Setup(
        spec.task,
        spec.profile,
        spec.length,
        spec.seed,
        PromptEncoder.load(args.tokenizer, spec.special_tokens),
        word_lists(),
        load_haystack(spec.haystack, args.manifests, args.text) if spec.haystack and essay else None,
        load_questions(spec.task, spec.questions, args.manifests, args.text)
        if spec.questions and asks
        else None,
        spec.wrapper,
        spec.random_offset,
    )
    lines, header = make(setup, spec.n, spec.first)
    write(args.out, lines, {**header, "provenance": provenance})


if __name__ == "__main__":
    raise SystemExit(main())
