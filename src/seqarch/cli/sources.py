"""List, and where needed fetch, the files that a group of domains is read from."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from seqarch.cli.common import run_step, step_parser
from seqarch.corpus.sources.registry import list_files
from seqarch.corpus.spec import SourcesStep
from seqarch.files import write_json
from seqarch.provenance import record
from seqarch.schema import parse


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_parser("sources", __doc__ or "")
    parser.add_argument(
        "--archives", type=Path, required=True, help="the folder of archives; missing ones are fetched to it"
    )
    parser.add_argument("--out", type=Path, required=True, help="the list of files to write (.json)")
    return run_step("sources", parser, _run, argv)


def _run(args: argparse.Namespace) -> None:
    step = parse(SourcesStep, args.spec)
    files = list_files(step.source, args.archives)
    provenance = record("sources", args.spec, args.code)
    listing = {"group": step.group, "domains": step.domains, "kind": step.source["kind"], "files": files}
    write_json(args.out, {**listing, "provenance": provenance})


if __name__ == "__main__":
    raise SystemExit(main())
