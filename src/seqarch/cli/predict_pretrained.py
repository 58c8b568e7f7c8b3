"""Let a published model answer the samples of one file."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from seqarch.cli.common import run_step, step_parser
from seqarch.evaluation.long_context_spec import MIXERS, PredictPretrainedStep
from seqarch.evaluation.predict import predict
from seqarch.evaluation.pretrained import WEIGHTS, end_ids, load, locate
from seqarch.evaluation.ruler import records
from seqarch.evaluation.ruler.encoder import PromptEncoder
from seqarch.files import read_json
from seqarch.provenance import record
from seqarch.schema import parse


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_parser("predict_pretrained", str(__doc__))
    parser.add_argument("--data", type=Path, required=True, help="samples, .jsonl")
    parser.add_argument("--tokenizer", type=Path, required=True, help="manifest of the tokenizer")
    parser.add_argument("--model", type=Path, required=True, help="model.json of cli.pretrained_model")
    parser.add_argument("--out", type=Path, required=True, help="predictions, .jsonl; .json goes beside it")
    return run_step("predict_pretrained", parser, _run, argv, mixers=lambda spec: MIXERS)


def _run(args: argparse.Namespace) -> None:
    spec = parse(PredictPretrainedStep, args.spec)
    inputs = {"data": args.data, "tokenizer": args.tokenizer, "model": args.model}
    provenance = record("predict_pretrained", args.spec, args.code, inputs, ["torch", "tokenizers"])
    about = read_json(args.model)
    folder, _ = locate(about["path"], about["commit"] or about["revision"], WEIGHTS)
    lines, header = records.read(args.data)
    encoder = PromptEncoder.load(args.tokenizer, spec.special_tokens)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load(folder, getattr(torch, spec.dtype), device, spec.context)
    rows = predict(model, encoder, lines, header, end_ids(folder), spec.batch_tokens)
    said_by = {"model": spec.name, "path": about["path"], "commit": about["commit"], "dtype": spec.dtype}
    records.write_predictions(args.out, rows, header, {**said_by, "provenance": provenance})


if __name__ == "__main__":
    raise SystemExit(main())
