"""Documents from JSON Lines and Parquet files at paths and globs, local or any fsspec URL."""

import glob
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import fsspec

from seqarch.corpus.document import BadRow, Document
from seqarch.corpus.errors import SourceError
from seqarch.corpus.rows import Field, read_documents
from seqarch.corpus.sources.sharding import share_out
from seqarch.corpus.spec import FORMATS


def list_files(source: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The files that a slice's globs match, sorted by URL: name (below their common folder), url, size, and
    sha256 unless `checksum` is off.

    Raises SourceError if a glob matches nothing or cannot be listed.
    """
    urls: dict[str, fsspec.AbstractFileSystem] = {}
    for pattern in source["paths"]:
        urls.update(_expand(pattern))
    names = _below_common_folder(sorted(urls))
    return [_entry(urls[url], url, names[url], source["checksum"]) for url in sorted(urls)]


def _expand(pattern: str) -> dict[str, fsspec.AbstractFileSystem]:
    if "://" not in pattern:
        pattern = str(Path(pattern).expanduser().absolute())
    try:
        system, path = fsspec.url_to_fs(pattern)
        found = system.glob(path) if glob.has_magic(path) else [path] if system.exists(path) else []
        files = [each for each in found if each.endswith(FORMATS) and system.isfile(each)]
    except (OSError, ValueError, ImportError) as error:
        raise SourceError(f"cannot list {pattern}: {error}") from error
    if not files:
        raise SourceError(
            f"no file matches {pattern}: check corpus.source.paths ({', '.join(FORMATS)} are read)"
        )
    return {system.unstrip_protocol(each): system for each in files}


def _below_common_folder(urls: Sequence[str]) -> dict[str, str]:
    """Short names that do not say where the reader keeps the data: equal data give equal output anywhere."""
    parents = [PurePosixPath(url).parent.parts for url in urls]
    common = 0
    while parents and all(
        len(parent) > common and parent[common] == parents[0][common] for parent in parents
    ):
        common += 1
    return {url: "/".join(PurePosixPath(url).parts[common:]) for url in urls}


def _entry(system: fsspec.AbstractFileSystem, url: str, name: str, checksum: bool) -> dict[str, Any]:
    entry = {"name": name, "url": url, "size": system.size(url)}
    if checksum:
        with system.open(url, "rb") as file:
            digest = hashlib.sha256()
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        entry["sha256"] = digest.hexdigest()
    return entry


def iter_documents(
    source: Mapping[str, Any],
    files: Sequence[Mapping[str, Any]],
    domains: Sequence[str],
    shard: int,
    n_shards: int,
) -> Iterator[Document | BadRow]:
    """The documents of shard `shard`: files shard, shard + n_shards, … of the listing; with fewer files than
    shards the rows shard, shard + n_shards, … of each.

    Raises SourceError if a file is gone or has another size than when it was listed.
    """
    for entry, wanted in share_out(files, shard, n_shards):
        domain = domains[0] if source["domain_field"] is None else Field(source["domain_field"])
        try:
            system, path = fsspec.url_to_fs(entry["url"])
            size = system.size(path)
        except OSError as error:
            raise SourceError(f"cannot open {entry['url']}: {error}; run the `sources` step again") from error
        if entry["size"] is not None and size != entry["size"]:
            raise SourceError(
                f"{entry['url']} has {size} bytes but had {entry['size']} when it was listed: "
                "run the `sources` step again (snakemake --forcerun) to use it as it is now"
            )
        with system.open(path, "rb") as file:
            yield from read_documents(file, entry["name"], source["text_field"], domain, wanted)
