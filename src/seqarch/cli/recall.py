"""Train one architecture on one recall task, at each learning rate and with each seed, and score it.

Exit codes: 0 both tables are written; 75 stopped by SIGTERM or SIGINT: the same command goes on from there;
1, 2 an error, which the last line explains.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from seqarch.architecture import mixers_of_step
from seqarch.cli.common import run_step, step_parser
from seqarch.evaluation.recall import Recall
from seqarch.evaluation.recall_spec import RecallJob
from seqarch.files import write_parquet
from seqarch.provenance import record
from seqarch.schema import parse


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_parser("recall", __doc__ or "")
    parser.add_argument("--work", required=True, type=Path, help="where unfinished runs keep their state")
    parser.add_argument("--out", required=True, type=Path, help="folder for scores.parquet and sweep.parquet")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    return run_step("recall", parser, _recall, argv, mixers=mixers_of_step)


def _recall(args: argparse.Namespace) -> None:
    job = parse(RecallJob, args.spec)
    torch.set_num_threads(job.torch_threads)
    recall = Recall(job, args.work, args.code, args.device)
    tables = recall.evaluate()
    provenance = record("recall", args.spec, args.code, packages=("torch",))
    write_parquet(args.out / "scores.parquet", tables.scores, provenance)
    write_parquet(args.out / "sweep.parquet", tables.sweep, provenance)
    recall.clear()


if __name__ == "__main__":
    raise SystemExit(main())
