"""Delete the filtered text of a group that has been tokenized (`keep_text: false`)."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from seqarch.cli.common import run_step, step_parser
from seqarch.files import read_json, write_json
from seqarch.provenance import record


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_parser("discard_text", str(__doc__))
    parser.add_argument("--text", type=Path, required=True, help="folder of the filtered text")
    parser.add_argument("--manifest", type=Path, required=True, help="of the group's text")
    parser.add_argument("--out", type=Path, required=True, help="what was deleted (.json)")
    return run_step("discard_text", parser, _run, argv)


def _run(args: argparse.Namespace) -> None:
    domains = read_json(args.manifest)["domains"]
    files = [file for splits in domains.values() for split in splits.values() for file in split["files"]]
    for file in files:
        (args.text / file["path"]).unlink(missing_ok=True)  # a killed job is run again
    provenance = record("discard_text", args.spec, args.code, {"text": args.manifest})
    discarded = {"files": len(files), "bytes": sum(file["bytes"] for file in files)}
    write_json(args.out, {"discarded": discarded, "provenance": provenance})


if __name__ == "__main__":
    raise SystemExit(main())
