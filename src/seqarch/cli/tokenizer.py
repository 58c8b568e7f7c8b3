"""Train the tokenizer on the in-domain training text, or take over a pretrained one."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from seqarch.cli.common import run_step, step_parser
from seqarch.files import write_json
from seqarch.provenance import record
from seqarch.schema import parse
from seqarch.tokens.spec import PretrainedTokenizer, TokenizerStep
from seqarch.tokens.text import TextFile, text_files
from seqarch.tokens.training import take_pretrained, train_bpe


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_parser("tokenizer", str(__doc__))
    parser.add_argument("--text", type=Path, required=True, help="folder of the filtered text")
    parser.add_argument(
        "--manifests", type=Path, nargs="*", default=[], help="of the groups with in-domain text"
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="tokenizer.json; manifest.json is written beside it"
    )
    return run_step("tokenizer", parser, _run, argv)


def _run(args: argparse.Namespace) -> None:
    spec = parse(TokenizerStep, args.spec)
    if isinstance(spec.tokenizer, PretrainedTokenizer):
        files: list[TextFile] = []
        tokenizer = take_pretrained(spec.tokenizer, args.out)
    else:
        files = text_files(args.manifests, args.text, spec.domains, ["train"])
        tokenizer = train_bpe(spec.tokenizer, files, args.out)
    manifest = {
        "kind": spec.tokenizer.kind,
        "file": args.out.name,
        "sha256": tokenizer.sha256,
        "vocab_size": tokenizer.vocab_size,
        "bos": tokenizer.bos,
        "bos_id": tokenizer.bos_id,
        "domains": sorted({file.domain for file in files}),
        "provenance": record(
            "tokenizer", args.spec, args.code, {path.stem: path for path in args.manifests}, ["tokenizers"]
        ),
    }
    write_json(args.out.with_name("manifest.json"), manifest)


if __name__ == "__main__":
    raise SystemExit(main())
