"""Score predictions on RULER or needle samples; no model is needed."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from seqarch.cli.common import run_step, step_parser
from seqarch.evaluation.ruler.score_tables import score
from seqarch.evaluation.ruler.spec import ScoreStep
from seqarch.provenance import record
from seqarch.schema import parse


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_parser("ruler_score", str(__doc__))
    parser.add_argument("--data", type=Path, required=True, help="samples, .jsonl")
    parser.add_argument(
        "--predictions", type=Path, required=True, help="predictions of these samples, .jsonl"
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="stem: .parquet, .csv and .samples.parquet are written"
    )
    return run_step("ruler_score", parser, _run, argv)


def _run(args: argparse.Namespace) -> None:
    spec = parse(ScoreStep, args.spec)
    inputs = {"data": args.data, "predictions": args.predictions}
    provenance = record("ruler_score", args.spec, args.code, inputs, ["scipy", "pyarrow"])
    score(args.data, args.predictions, args.out, spec.model_dump(), provenance)


if __name__ == "__main__":
    raise SystemExit(main())
