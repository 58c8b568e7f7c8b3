"""Draw one figure from tables: .svg and .png, .csv with the plotted rows, .json with where it comes from."""

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from seqarch.cli.common import run_step, step_parser
from seqarch.figures.errors import FigureError
from seqarch.figures.render import render, save
from seqarch.figures.spec import FigureJob
from seqarch.figures.style import guessed_mixers, styles
from seqarch.provenance import record
from seqarch.schema import parse


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_parser("figure", __doc__ or "")
    parser.add_argument(
        "--table", required=True, nargs="+", type=Path, help="tables, known by name: losses.parquet …"
    )
    parser.add_argument("--out", required=True, type=Path, help="the figure without its ending")
    return run_step("figure", parser, _figure, argv, modules=lambda spec: [_module(parse(FigureJob, spec))])


def _module(job: FigureJob) -> str:
    return f"seqarch.figures.{job.figure}"


def _figure(args: argparse.Namespace) -> None:
    job = parse(FigureJob, args.spec)
    module = importlib.import_module(_module(job))
    tables = {path.stem: pd.read_parquet(path) for path in args.table}
    if missing := [name for name in module.TABLES if name not in tables]:
        raise FigureError(f"{job.figure} is drawn from {', '.join(missing)}.parquet: pass it with --table")
    frame = module.plotted(tables, job)
    names = set(frame["arch"].dropna()) if "arch" in frame else set()
    look = styles({name: guessed_mixers(name) for name in names} | job.architectures)
    images = render(module.draw, frame, look, job.formats, job.dpi)
    inputs = {path.stem: path for path in args.table}
    provenance = record("figure", args.spec, args.code, inputs, ("matplotlib", "pandas"))
    save(args.out, images, frame, provenance, job.figure)


if __name__ == "__main__":
    raise SystemExit(main())
