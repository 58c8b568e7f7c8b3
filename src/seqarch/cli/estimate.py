"""What an experiment will cost: accelerator-hours by architecture, memory, disk and number of jobs.

Hours are FLOPs / (peak x MFU). The MFU is an assumption, and the largest one: a run's log and run.json tell
yours. Memory counts weights, gradients, AdamW's moments and what backward needs; "recomputed" is with
activation checkpointing. The formulas stand in seqarch/estimate.py.
"""

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seqarch.errors import SeqarchError
from seqarch.estimate import Machine, by_architecture, disk, jobs
from seqarch.plan import Plan, open_experiment

CONFIG = Path(__file__).parents[3] / "config"
UNCOUNTED = ("downstream", "recall", "predict", "predict_pretrained")  # their hours are not estimated


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m seqarch.cli.estimate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--configfile", required=True, type=Path)
    parser.add_argument("--part", metavar="NAME", help="of the file's `parts`: this one alone")
    parser.add_argument(
        "--peak-tflops", type=_positive, default=989.0, help="of one accelerator, dense bf16; H100"
    )
    parser.add_argument("--mfu", type=_share, default=0.35, help="share of the peak that training reaches")
    parser.add_argument("--at-once", type=_count, default=8, help="accelerators at work, for the days")
    parser.add_argument("--format", choices=["table", "csv", "json"], default="table")
    args = parser.parse_args(argv)
    machine = Machine(args.peak_tflops * 1e12, args.mfu, args.at_once)
    try:
        plan = open_experiment(args.configfile, CONFIG, args.part)
        rows = list(by_architecture(plan, machine))
    except SeqarchError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if args.format == "csv":
        writer = csv.DictWriter(sys.stdout, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    elif args.format == "json":
        print(json.dumps({"architectures": rows, "disk": disk(plan, rows), "jobs": jobs(plan)}, indent=1))
    else:
        _print(plan, machine, rows)
    return 0


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, not {text}")
    return value


def _share(text: str) -> float:
    if not 0 < float(text) <= 1:
        raise argparse.ArgumentTypeError(f"expected a share above 0, at most 1, not {text}")
    return float(text)


def _count(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, not {text}")
    return int(text)


def _print(plan: Plan, machine: Machine, rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    title = f"{plan.experiment.experiment} at {_number(machine.peak * machine.mfu / 1e12)} TFLOP/s each"
    view = Table(title=title)
    for column in (
        *(
            "architecture",
            "params M",
            "runs",
            "G tokens",
            "GPUs",
            "hours a run",
            "training h",
            "trials h",
            "loss h",
        ),
        *("GB each", "GB recomputed"),
    ):
        view.add_column(column, justify="left" if column == "architecture" else "right")
    for row in rows:
        view.add_row(
            row["architecture"],
            f"{row['parameters'] / 1e6:,.1f}",
            str(row["runs"]),
            _number(row["tokens_per_run"] / 1e9),
            str(row["accelerators_per_run"]),
            *(
                _number(row[f"{name}"])
                for name in ("hours_per_run", "training_hours", "trial_hours", "loss_hours")
            ),
            *(_number(row[name] / 1e9) for name in ("memory_bytes", "memory_bytes_recomputed")),
        )
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(view)
    hours = sum(row["training_hours"] + row["trial_hours"] + row["loss_hours"] for row in rows)
    days = hours / machine.at_once / 24
    print(f"in all {_number(hours)} accelerator-hours: {_number(days)} days on {machine.at_once}")
    counted = jobs(plan)
    if left_out := [f"{counted[rule]:,} {rule}" for rule in UNCOUNTED if rule in counted]:
        print(f"without the hours of these jobs: {', '.join(left_out)}")
    for kind, size in disk(plan, rows).items():
        print(f"disk, {kind}: {_number(size / 1e9)} GB")
    most = sorted(counted, key=lambda rule: -counted[rule])[:5]
    print(f"jobs: {sum(counted.values()):,} ({', '.join(f'{counted[rule]:,} {rule}' for rule in most)} …)")


def _number(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    raise SystemExit(main())
