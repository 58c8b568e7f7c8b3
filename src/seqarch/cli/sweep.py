"""Try learning rates for one run on a Slurm cluster, without Snakemake: one job a rate, all at once.

The workflow does the same for every architecture (`train.learning_rate: {grid: …}`); this is for trying
things. A job that comes to its time limit saves its state and puts itself into the queue again. `--spec` is a
run's: `provenance.spec` of a `run.json`, for one. Trials that an earlier call finished in `--out`
are not made again.
"""

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seqarch.architecture import mixers_of_step
from seqarch.cli.common import run_step, step_parser
from seqarch.files import write_json
from seqarch.provenance import ProvenanceError, read_record, record
from seqarch.schema import parse
from seqarch.training.choice import ChoiceJob, choose, trial
from seqarch.training.data import name_manifests
from seqarch.training.job import Job
from seqarch.training.launcher import Allocation, submit
from seqarch.training.spec import RunSpec

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_parser("sweep", __doc__ or "")
    parser.add_argument("--grid", required=True, nargs="+", type=float, help="learning rates")
    parser.add_argument("--manifests", required=True, nargs="+", type=Path, help="token manifests")
    parser.add_argument("--out", required=True, type=Path, help="folder for the trials and choice.json")
    parser.add_argument(
        "--cluster",
        choices=("slurm", "local"),
        default="slurm",
        help="local: all at once on this machine",
    )
    parser.add_argument("--minutes", type=int, default=720, help="time limit of a job")
    parser.add_argument("--partition", help="Slurm's partition")
    parser.add_argument("--account", help="Slurm's account")
    parser.add_argument("--gpus", type=int, default=1, help="of a job; 0: on the CPU")
    parser.add_argument("--cpus", type=int, default=1, help="of each process")
    parser.add_argument("--memory-gb", type=float, default=16)
    parser.add_argument("--save-seconds", type=float, default=300.0, help="save the state this often")
    return run_step("sweep", parser, _sweep, argv, mixers=mixers_of_step)


def _sweep(args: argparse.Namespace) -> None:
    manifests = name_manifests([path.absolute() for path in args.manifests])
    out = args.out.absolute()
    jobs, runs = [], []
    for rate in sorted(set(args.grid)):
        spec = args.spec | {"train": args.spec["train"] | {"learning_rate": rate}}
        made = record("sweep", spec, args.code, manifests, packages=("torch",))
        runs.append(out / f"lr{rate:g}" / "run.json")
        if _is_finished(runs[-1], made):
            continue
        jobs.append(
            Job(
                spec=parse(RunSpec, spec),
                manifests=manifests,
                work=out / "work",
                run=runs[-1].parent,
                record=made,
                device="auto" if args.gpus else "cpu",
                save_seconds=args.save_seconds,
                trial=True,
                verify=args.verify,
            )
        )
    names = ("cluster", "minutes", "partition", "account", "gpus", "cpus", "memory_gb")
    submit(jobs, out / "jobs", Allocation(**{name: getattr(args, name) for name in names}))
    rates = tuple(sorted(set(args.grid)))
    asked = ChoiceJob(setting=args.spec["setting"], architecture=args.spec["architecture"], rates=rates)
    choice = choose(asked, [trial(run) for run in runs])
    inputs = {f"trial {run.parent.name}": run.with_name("metrics.parquet") for run in runs}
    provenance = record("sweep", args.spec, args.code, inputs, origins=runs)
    write_json(out / "choice.json", {**choice, "provenance": provenance})
    for each in choice["trials"]:
        log.info("%g: %s", each["learning_rate"], each["validation_loss"])
    edge = ", at an edge of the grid: widen it" if choice["at_edge"] else ""
    log.info("best: %g%s", choice["learning_rate"], edge)


def _is_finished(run: Path, made: dict[str, Any]) -> bool:
    """Whether an earlier sweep made this trial. Raises ProvenanceError if it made another one there."""
    if not run.exists():
        return False
    found = read_record(run) or {}
    differing = [key for key in ("spec_sha256", "code", "inputs") if found.get(key) != made[key]]
    if differing:
        raise ProvenanceError(
            f"{run.parent} holds a trial of another sweep: it differs from this one in "
            f"{', '.join(differing).replace('_sha256', '')}. Choose another --out, or delete that folder"
        )
    return True


if __name__ == "__main__":
    raise SystemExit(main())
