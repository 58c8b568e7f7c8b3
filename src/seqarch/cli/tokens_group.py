"""Gather the manifests of a group's tokenized shards in one."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from seqarch.cli.common import run_step, step_parser
from seqarch.files import write_json
from seqarch.provenance import record
from seqarch.tokens.packing import merge_parts


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_parser("tokens_group", str(__doc__))
    parser.add_argument("--parts", type=Path, nargs="+", required=True, help="manifests of the shards")
    parser.add_argument("--out", type=Path, required=True, help="the manifest of them all")
    return run_step("tokens_group", parser, _run, argv)


def _run(args: argparse.Namespace) -> None:
    provenance = record("tokens_group", args.spec, args.code, {path.stem: path for path in args.parts})
    write_json(args.out, {**merge_parts(args.parts), "provenance": provenance})


if __name__ == "__main__":
    raise SystemExit(main())
