"""Tokenize one shard of one group: every split and domain, packed for training and evaluation."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from seqarch.cli.common import run_step, step_parser
from seqarch.files import write_json
from seqarch.progress import progress
from seqarch.provenance import record
from seqarch.schema import parse
from seqarch.tokens.packing import pack
from seqarch.tokens.spec import TokenizeStep
from seqarch.tokens.text import text_files
from seqarch.tokens.tokenizer import Tokenizer

SPLITS = ("train", "validation", "test")


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_parser("tokenize", str(__doc__))
    parser.add_argument("--text", type=Path, required=True, help="folder of the filtered text")
    parser.add_argument("--manifest", type=Path, required=True, help="of the group's text")
    parser.add_argument("--tokenizer", type=Path, required=True, help="manifest.json of the tokenizer")
    parser.add_argument("--tokens", type=Path, required=True, help="folder of the token files")
    parser.add_argument("--out", type=Path, required=True, help="the shard's manifest")
    return run_step("tokenize", parser, _run, argv)


def _run(args: argparse.Namespace) -> None:
    spec = parse(TokenizeStep, args.spec)
    tokenizer = Tokenizer.load(args.tokenizer)
    inputs = {"text": args.manifest, "tokenizer": args.tokenizer}
    provenance = record("tokenize", args.spec, args.code, inputs, ["pyarrow", "tokenizers"])
    files = [
        file
        for file in text_files([args.manifest], args.text, spec.domains, SPLITS)
        if int(file.shard) == spec.shard
    ]
    entries = []
    with progress("tokenize") as advance:
        for file in files:
            entry = pack(file, args.tokens / file.split / file.domain, tokenizer, provenance, advance)
            entries.append({"domain": file.domain, "split": file.split, **entry})
    manifest = {
        "group": spec.group,
        "shard": spec.shard,
        "dtype": tokenizer.dtype_name,
        "vocab_size": tokenizer.vocab_size,
        "bos_id": tokenizer.bos_id,
        "tokenizer_sha256": tokenizer.sha256,
        "files": entries,
        "provenance": provenance,
    }
    write_json(args.out, manifest)


if __name__ == "__main__":
    raise SystemExit(main())
