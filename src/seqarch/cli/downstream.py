"""Evaluate the last checkpoint of one run on downstream tasks through lm_eval."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from seqarch.architecture import mixers_of_step
from seqarch.cli.common import run_step, step_parser
from seqarch.evaluation.downstream import evaluate, table
from seqarch.evaluation.downstream_score import Answerer, DownstreamError
from seqarch.evaluation.downstream_spec import DownstreamJob
from seqarch.evaluation.generation import OwnModel
from seqarch.files import write_table
from seqarch.provenance import record
from seqarch.schema import parse
from seqarch.tokens.tokenizer import Tokenizer
from seqarch.training.checkpoint import load_model


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_parser("downstream", str(__doc__))
    parser.add_argument("--run", type=Path, required=True, help="folder of the run, with checkpoints/")
    parser.add_argument("--tokenizer", type=Path, required=True, help="manifest of the tokenizer")
    parser.add_argument("--out", type=Path, required=True, help="the table, without .parquet and .csv")
    return run_step("downstream", parser, _downstream, argv, mixers=mixers_of_step)


def _downstream(args: argparse.Namespace) -> None:
    job = parse(DownstreamJob, args.spec)
    torch.set_num_threads(job.torch_threads)
    checkpoint = args.run / "checkpoints" / f"{job.checkpoint}.safetensors"
    inputs = {"tokenizer": args.tokenizer, "checkpoint": checkpoint}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = Tokenizer.load(args.tokenizer)
    model, metadata = load_model(checkpoint, device)
    if metadata.model != job.model:
        raise DownstreamError(
            f"{checkpoint} is of another model than the configuration's {job.architecture}: train it again"
        )
    own = OwnModel(model)
    longest = job.downstream.max_length or job.sequence_length
    answerer = Answerer(
        model=model,
        generator=own,
        encode=lambda text: tokenizer.encode_batch([text])[0].tolist(),
        decode=lambda ids: tokenizer.decode(np.asarray(ids, dtype=np.int64)),
        bos=tokenizer.bos_id,
        max_length=longest if own.context is None else min(longest, own.context),
        batch_tokens=job.downstream.batch_tokens,
        device=device,
    )
    rows = evaluate(answerer, job.downstream)
    packages = ["torch", "tokenizers", "lm_eval"]
    origins = [args.run / "run.json"]
    provenance = record("downstream", args.spec, args.code, inputs, packages, origins)
    write_table(args.out, table(rows, job, tokenizer.sha256, provenance["spec_sha256"]), provenance)


if __name__ == "__main__":
    raise SystemExit(main())
