"""Let a trained run answer the samples of one file."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from seqarch.architecture import mixers_of_step
from seqarch.cli.common import run_step, step_parser
from seqarch.evaluation.generation import OwnModel
from seqarch.evaluation.long_context_spec import PredictStep
from seqarch.evaluation.predict import predict
from seqarch.evaluation.ruler import records
from seqarch.evaluation.ruler.encoder import PromptEncoder
from seqarch.evaluation.ruler.errors import RulerError
from seqarch.provenance import record
from seqarch.schema import parse
from seqarch.training.checkpoint import load_model


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_parser("predict", str(__doc__))
    parser.add_argument("--data", type=Path, required=True, help="samples, .jsonl")
    parser.add_argument("--tokenizer", type=Path, required=True, help="manifest of the tokenizer")
    parser.add_argument("--run", type=Path, required=True, help="folder of the run, with checkpoints/")
    parser.add_argument("--out", type=Path, required=True, help="predictions, .jsonl; .json goes beside it")
    return run_step("predict", parser, _run, argv, mixers=mixers_of_step)


def _run(args: argparse.Namespace) -> None:
    spec = parse(PredictStep, args.spec)
    torch.set_num_threads(spec.torch_threads)
    checkpoint = args.run / "checkpoints" / f"{spec.checkpoint}.safetensors"
    inputs = {"data": args.data, "tokenizer": args.tokenizer, "checkpoint": checkpoint}
    provenance = record(
        "predict", args.spec, args.code, inputs, ["torch", "tokenizers"], origins=[args.run / "run.json"]
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    lines, header = records.read(args.data)
    encoder = PromptEncoder.load(args.tokenizer, spec.special_tokens)
    model, metadata = load_model(checkpoint, device)
    if metadata.model != spec.model:
        raise RulerError(
            f"{checkpoint} is of another model than the configuration's {spec.architecture}: train it again"
        )
    rows = predict(OwnModel(model), encoder, lines, header, batch_tokens=spec.batch_tokens)
    about = {"model": spec.architecture, "checkpoint": spec.checkpoint, "provenance": provenance}
    records.write_predictions(args.out, rows, header, about)


if __name__ == "__main__":
    raise SystemExit(main())
