"""Filter one shard of a group: raw documents to text by split and domain."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from seqarch.cli.common import run_step, step_parser
from seqarch.corpus.filter import filter_shard
from seqarch.corpus.sources.registry import PACKAGES, iter_documents
from seqarch.corpus.spec import FilterStep
from seqarch.files import read_json
from seqarch.provenance import record
from seqarch.schema import parse


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_parser("filter", __doc__ or "")
    parser.add_argument("--sources", type=Path, required=True, help="the group's list of files (cli.sources)")
    parser.add_argument("--archives", type=Path, required=True, help="the folder of fetched files")
    parser.add_argument("--text", type=Path, required=True, help="the folder that filtered text goes to")
    parser.add_argument("--out", type=Path, required=True, help="the shard's manifest to write (.json)")
    return run_step("filter", parser, _run, argv)


def _run(args: argparse.Namespace) -> None:
    step = parse(FilterStep, args.spec)
    domains = list(step.domains)
    files = read_json(args.sources)["files"]
    packages = PACKAGES[str(step.source["kind"])]
    filter_shard(
        iter_documents(step.source, files, args.archives, domains, step.shard, step.n_shards),
        group=step.group,
        domains=domains,
        options=step.filter,
        shares=step.split,
        shard=step.shard,
        text_dir=args.text,
        part=args.out,
        provenance=record("filter", args.spec, args.code, {"sources": args.sources}, packages),
    )


if __name__ == "__main__":
    raise SystemExit(main())
