"""Documents from the archives of pinned packages. Archives are read, never unpacked; none of their code
runs."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqarch.corpus.archives import damage_as_error, matcher, members
from seqarch.corpus.catalogue import ArchiveSpec, TextsSpec
from seqarch.corpus.document import BadRow, Document, document_or_bad_row
from seqarch.corpus.errors import CorruptFileError, SourceError
from seqarch.corpus.sources.extract import FORMATS, Format
from seqarch.files import sha256_file


def list_files(source: Mapping[str, Any], archives: Path) -> list[dict[str, Any]]:
    """Fetch the archives of a slice; one entry each with name, size, sha256. Raises as `index.fetch`."""
    from seqarch.corpus.sources.index import fetch  # an HTTP client, which the shards do not need

    pins = [ArchiveSpec.model_validate(pin) for _, pin in sorted(source["archives"].items())]
    for pin in pins:
        fetch(pin, archives)
    return [{"name": pin.file, "size": pin.size, "sha256": pin.sha256} for pin in pins]


def iter_documents(
    source: Mapping[str, Any], files: Sequence[Mapping[str, Any]], archives: Path, shard: int, n_shards: int
) -> Iterator[Document | BadRow]:
    """The documents of shard `shard`: of each domain the rows shard, shard + n_shards, …, in archive order.

    Raises SourceError if an archive is missing, is not the pinned one, or has no member that a glob asks
    for, and CorruptFileError if it is damaged.
    """
    pinned = {entry["name"]: entry["sha256"] for entry in files}
    pins = {name: ArchiveSpec.model_validate(pin) for name, pin in source["archives"].items()}
    for pin in pins.values():
        _check(archives / pin.file, pinned.get(pin.file))
    for domain, entries in source["texts"].items():
        texts = [TextsSpec.model_validate(entry) for entry in entries]
        rows = itertools.chain.from_iterable(
            _rows(archives / pins[each.archive].file, each) for each in texts
        )
        for row in itertools.islice(rows, shard, None, n_shards):
            yield from _parse(row, domain)


@dataclass(frozen=True, slots=True)
class _Row:
    source: str
    number: int  # from 1, in its member
    data: bytes
    encoding: str
    format: Format


def _rows(archive: Path, texts: TextsSpec) -> Iterator[_Row]:
    found = False
    with damage_as_error(archive):
        for member, file in members(archive, matcher(texts.members, texts.exclude)):
            found = True
            for number, data in enumerate(FORMATS[texts.format].rows(file), start=1):
                yield _Row(f"{archive.name}/{member}", number, data, texts.encoding, FORMATS[texts.format])
    if not found:
        raise SourceError(
            f"{archive} has no member like {', '.join(texts.members)}: the catalogue is for another version"
        )


def _parse(row: _Row, domain: str) -> Iterator[Document | BadRow]:
    try:
        texts, page = row.format.parse(row.data.decode(row.encoding))
    except UnicodeDecodeError as error:
        yield BadRow("invalid_utf8", row.source, str(row.number), str(error))
        return
    if row.format.page_is_member:
        page = row.source
    for part, text in enumerate(texts, start=1):
        number = str(row.number) if len(texts) == 1 else f"{row.number}.{part}"
        if text.strip():  # an empty file or line is no document, and no damage either
            yield document_or_bad_row(text, domain, row.source, number, page)


def _check(archive: Path, sha256: str | None) -> None:
    if not archive.is_file():
        raise SourceError(f"{archive} is missing: run the `sources` step again")
    if sha256_file(archive) != sha256:
        raise CorruptFileError(
            f"{archive} is not the archive that was listed: delete it and run `sources` again"
        )
