"""Bring a published model onto this machine (into the cache of the Hugging Face hub), and say which it is."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from seqarch.cli.common import run_step, step_parser
from seqarch.evaluation.long_context_spec import PublishedStep
from seqarch.evaluation.pretrained import WEIGHTS, locate
from seqarch.files import sha256_file, write_json
from seqarch.provenance import record
from seqarch.schema import parse


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_parser("pretrained_model", str(__doc__))
    parser.add_argument("--out", type=Path, required=True, help="model.json: path, commit, files")
    return run_step("pretrained_model", parser, _run, argv)


def _run(args: argparse.Namespace) -> None:
    spec = parse(PublishedStep, args.spec)
    folder, commit = locate(spec.path, spec.revision, WEIGHTS)
    names = sorted({file.name for pattern in WEIGHTS for file in folder.glob(pattern)})
    about = {
        "path": spec.path,
        "revision": spec.revision,
        "commit": commit,
        "files": {name: (folder / name).stat().st_size for name in names},
        "config_sha256": sha256_file(folder / "config.json") if "config.json" in names else None,
        "provenance": record("pretrained_model", args.spec, args.code, {}),
    }
    write_json(args.out, about)


if __name__ == "__main__":
    raise SystemExit(main())
