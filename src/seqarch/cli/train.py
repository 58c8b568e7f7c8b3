"""Train one architecture on one setting with one seed.

Exit codes: 0 the run directory is complete; 75 stopped with its state saved, by a signal or before its time
was up: the same command goes on from there; 1, 2 an error, which the last line explains.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seqarch.architecture import mixers_of_step
from seqarch.cli.common import run_step, step_parser
from seqarch.provenance import INVOCATION_VARIABLE, record
from seqarch.schema import parse
from seqarch.training.choice import read_choice
from seqarch.training.data import name_manifests
from seqarch.training.job import Job
from seqarch.training.launcher import launch
from seqarch.training.spec import RunSpec


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_parser("train", __doc__ or "")
    parser.add_argument(
        "--manifests", required=True, nargs="+", type=Path, help="token manifests, in any order"
    )
    parser.add_argument("--work", required=True, type=Path, help="where unfinished runs keep their state")
    parser.add_argument("--run", required=True, type=Path, help="the run directory to make")
    parser.add_argument(
        "--choice", nargs="?", type=Path, help="choice.json: the learning rate where it is null"
    )
    parser.add_argument(
        "--trial",
        action="store_true",
        help="the run tries a learning rate: divergence is a result, and no checkpoint is kept",
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--save-seconds", type=float, default=300.0, help="save the state this often")
    parser.add_argument(
        "--ends",
        type=float,
        help="when this process will be killed, in seconds since 1970: it saves its state and ends before; "
        "in a Slurm job, that job's end where it is not given",
    )
    return run_step("train", parser, _train, argv, mixers=mixers_of_step, verifies=True)


def _train(args: argparse.Namespace) -> None:
    spec = parse(RunSpec, _with_choice(args.spec, args.choice))
    manifests = name_manifests(args.manifests)
    inputs = manifests | ({"choice": args.choice} if args.choice else {})
    launch(
        Job(
            spec=spec,
            manifests=manifests,
            work=args.work,
            run=args.run,
            record=record("train", args.spec, args.code, inputs, packages=("torch",)),
            device=args.device,
            save_seconds=args.save_seconds,
            trial=args.trial,
            ends=args.ends,
            invocation=os.environ.get(INVOCATION_VARIABLE),
            verify=args.verify,
        )
    )


def _with_choice(spec: dict[str, Any], choice: Path | None) -> dict[str, Any]:
    """The spec with the learning rate that was chosen, if there was a choice."""
    if choice is None:
        return spec
    return spec | {"train": spec["train"] | {"learning_rate": read_choice(choice)}}


if __name__ == "__main__":
    raise SystemExit(main())
