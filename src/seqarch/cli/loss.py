"""Score one run's checkpoints on every domain: nats per token and bits per byte, a row a document."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from seqarch.architecture import mixers_of_step
from seqarch.cli.common import run_step, step_parser
from seqarch.evaluation.loss import evaluate
from seqarch.evaluation.loss_spec import LossJob
from seqarch.files import canonical_json, sha256_text, write_parquet
from seqarch.provenance import record
from seqarch.schema import parse


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_parser("loss", __doc__ or "")
    parser.add_argument("--run", required=True, type=Path, help="folder of the run, with checkpoints/")
    parser.add_argument(
        "--sets", required=True, type=Path, help="folder of the evaluation sets, <domain>.json"
    )
    parser.add_argument(
        "--out", required=True, type=Path, help="folder for docs, positions and domains.parquet"
    )
    return run_step("loss", parser, _loss, argv, mixers=mixers_of_step)


def _loss(args: argparse.Namespace) -> None:
    job = parse(LossJob, args.spec)
    torch.set_num_threads(job.train.torch_threads)
    tables = evaluate(job, args.run, args.sets, sha256_text(canonical_json(args.spec)))
    inputs = {domain: args.sets / f"{domain}.json" for domain in job.domains}
    inputs |= {name: args.run / "checkpoints" / f"{name}.safetensors" for name in job.checkpoints}
    provenance = record("loss", args.spec, args.code, inputs, ("torch",), [args.run / "run.json"])
    for name in ("docs", "positions", "domains"):
        write_parquet(args.out / f"{name}.parquet", getattr(tables, name), provenance)


if __name__ == "__main__":
    raise SystemExit(main())
