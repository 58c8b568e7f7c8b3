"""Choose the learning rate of an architecture from its trials, by in-domain validation loss."""

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path

from seqarch.cli.common import run_step, step_parser
from seqarch.files import write_json
from seqarch.provenance import record
from seqarch.schema import parse
from seqarch.training.choice import ChoiceJob, choose, trial

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_parser("choice", __doc__ or "")
    parser.add_argument(
        "--trials",
        required=True,
        nargs="+",
        type=Path,
        help="run.json of every trial; metrics.parquet lies beside",
    )
    parser.add_argument("--out", required=True, type=Path, help="choice.json")
    return run_step("choice", parser, _choice, argv)


def _choice(args: argparse.Namespace) -> None:
    job = parse(ChoiceJob, args.spec)
    choice = choose(job, [trial(path) for path in args.trials])
    if choice["at_edge"]:
        log.warning(
            "%s: the best learning rate, %g, is at an edge of the grid: widen it",
            job.architecture,
            choice["learning_rate"],
        )
    # run.json holds times and the host: equal trials have equal metrics, not equal summaries.
    inputs = {f"trial {each.parent.name}": each.with_name("metrics.parquet") for each in args.trials}
    provenance = record("choice", args.spec, args.code, inputs, origins=args.trials)
    write_json(args.out, {**choice, "provenance": provenance})


if __name__ == "__main__":
    raise SystemExit(main())
