"""Gather the learning rates that were tried, and which were chosen."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from seqarch.analysis.spec import TablesJob
from seqarch.cli.common import run_step, step_parser
from seqarch.files import read_json, write_table
from seqarch.provenance import record
from seqarch.schema import parse


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_parser("learning_rates", __doc__ or "")
    parser.add_argument("--choices", required=True, nargs="+", type=Path, help="choice.json of every sweep")
    parser.add_argument("--out", required=True, type=Path, help="the table, without .parquet and .csv")
    return run_step("learning_rates", parser, _learning_rates, argv)


def _learning_rates(args: argparse.Namespace) -> None:
    experiment = parse(TablesJob, args.spec).experiment
    rows = [
        {
            "experiment": experiment,
            "setting": trial["setting"],
            "arch": trial["architecture"],
            "seed": trial["seed"],
            "learning_rate": trial["learning_rate"],
            "tokens": trial["tokens"],
            "validation_loss": trial["validation_loss"],
            "diverged": trial["diverged"],
            "chosen": trial["learning_rate"] == choice["learning_rate"],
            "at_edge": trial["learning_rate"] == choice["learning_rate"] and choice["at_edge"],
        }
        for choice in map(read_json, sorted(args.choices))
        for trial in choice["trials"]
    ]
    inputs = {f"choice {i}": path for i, path in enumerate(sorted(args.choices))}
    provenance = record("learning_rates", args.spec, args.code, inputs, ("pyarrow",))
    write_table(args.out, pa.Table.from_pylist(rows), provenance)


if __name__ == "__main__":
    raise SystemExit(main())
