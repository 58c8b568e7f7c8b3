"""Find the duplicates across the shards of a group and write the group's manifest."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from seqarch.cli.common import run_step, step_parser
from seqarch.corpus.deduplicate import deduplicate
from seqarch.corpus.spec import DeduplicateStep
from seqarch.provenance import record
from seqarch.schema import parse


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_parser("deduplicate", __doc__ or "")
    parser.add_argument(
        "--parts", type=Path, nargs="+", required=True, help="the shards' manifests (cli.filter)"
    )
    parser.add_argument("--text", type=Path, required=True, help="the folder of filtered text")
    parser.add_argument("--out", type=Path, required=True, help="the group's manifest to write (.json)")
    return run_step("deduplicate", parser, _run, argv)


def _run(args: argparse.Namespace) -> None:
    step = parse(DeduplicateStep, args.spec)
    deduplicate(
        args.parts,
        group=step.group,
        n_shards=step.n_shards,
        across_shards=step.filter.dedup == "global",
        text_dir=args.text,
        out=args.out,
        provenance=record(
            "deduplicate", args.spec, args.code, {part.name: part for part in args.parts}, ["pyarrow"]
        ),
    )


if __name__ == "__main__":
    raise SystemExit(main())
