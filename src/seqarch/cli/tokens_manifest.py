"""Merge the tokenized shards of a group: one manifest for each split of each domain."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from seqarch.cli.common import run_step, step_parser
from seqarch.files import write_json
from seqarch.provenance import record
from seqarch.schema import parse
from seqarch.tokens.packing import merge_shards
from seqarch.tokens.spec import TokensManifestStep


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_parser("tokens_manifest", str(__doc__))
    parser.add_argument(
        "--parts", type=Path, nargs="+", required=True, help="manifests of the group's shards"
    )
    parser.add_argument("--tokens", type=Path, required=True, help="folder of the token files")
    return run_step("tokens_manifest", parser, _run, argv)


def _run(args: argparse.Namespace) -> None:
    spec = parse(TokensManifestStep, args.spec)
    provenance = record("tokens_manifest", args.spec, args.code, {path.stem: path for path in args.parts})
    for domain in spec.domains:
        for split in spec.splits:
            manifest = merge_shards(args.parts, domain, split) | {"provenance": provenance}
            write_json(args.tokens / split / domain / "manifest.json", manifest)


if __name__ == "__main__":
    raise SystemExit(main())
