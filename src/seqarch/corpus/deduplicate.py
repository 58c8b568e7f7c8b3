"""Duplicates across the shards of a group, and the group's manifest.

Memory is bounded by partitions: the digests of all documents are spilled to files by their first bits, and
equal digests meet in one partition, which is sorted on its own.
"""

import contextlib
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from seqarch.corpus.document import SPLITS
from seqarch.corpus.errors import CorpusError, disk_full_as_error
from seqarch.corpus.filter import histogram_json, length_bin
from seqarch.files import read_json, write_json, write_parquet

PARTITION_ROWS = 4_000_000  # documents that are sorted at a time: about 300 MB
_RECORD = np.dtype(
    [("hi", "<u8"), ("lo", "<u8"), ("number", "<i8")]
)  # digest's first 16 bytes, running number
_DROPPED = pa.schema(
    [
        ("split", pa.string()),
        ("domain", pa.string()),
        ("shard", pa.int64()),
        ("doc_id", pa.string()),
        ("n_bytes", pa.int64()),
        ("text_sha256", pa.string()),
    ]
)
# A text that stands in two splits, as a part of two pages, is kept where it does most harm to lose it.
_KEEP_FIRST = ("test", "validation", "train")


def deduplicate(
    parts: Sequence[Path],
    *,
    group: str,
    n_shards: int,
    across_shards: bool,
    text_dir: Path,
    out: Path,
    provenance: Mapping[str, Any],
    partition_rows: int = PARTITION_ROWS,
) -> None:
    """Write text_dir/duplicates/<group>.parquet, the documents to be left out, and the manifest `out`.

    Of equal texts one is kept: in the test split before validation before train, then in the lowest shard,
    then in the domain's and the file's order. So no text stands in two splits of a group.

    Raises:
        CorpusError: a part is missing or of another group or number of shards; a domain has no documents at
        all.
        DiskFullError: no space is left.
    """
    shards = _read_parts(parts, group, n_shards)
    files = _in_keeping_order([file for shard in shards for file in shard["files"]])
    with disk_full_as_error(text_dir):
        dropped = _dropped(files, text_dir, partition_rows) if across_shards else {}
        rows = [
            row for at, numbers in sorted(dropped.items()) for row in _describe(files[at], numbers, text_dir)
        ]
        table = pa.Table.from_pylist(rows, schema=_DROPPED)
        write_parquet(text_dir / "duplicates" / f"{group}.parquet", table, provenance)
        manifest = _merge(shards, files, rows)
        _check_domains(manifest, group)
        write_json(out, {"group": group, "n_shards": n_shards, **manifest, "provenance": dict(provenance)})


def _read_parts(parts: Sequence[Path], group: str, n_shards: int) -> list[dict[str, Any]]:
    shards = sorted((read_json(part) for part in parts), key=lambda shard: shard["shard"])
    found = [(shard["group"], shard["shard"]) for shard in shards]
    if found != [(group, number) for number in range(n_shards)]:
        raise CorpusError(
            f"expected the {n_shards} shards of group {group!r}, one manifest each; found {found}"
        )
    return shards


def _in_keeping_order(files: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(files, key=lambda file: (_KEEP_FIRST.index(file["split"]), file["shard"], file["domain"]))


def _dropped(
    files: list[dict[str, Any]], text_dir: Path, partition_rows: int
) -> dict[int, NDArray[np.int64]]:
    """Index of a file -> its rows that are duplicates. A document's running number over all files says which
    of equals comes first."""
    starts = np.cumsum([0, *(file["rows"] for file in files)])
    n_partitions = 1 + int(starts[-1]) // partition_rows
    drops = [np.empty(0, np.int64)]
    with _spill(files, text_dir, starts, n_partitions) as partitions:
        for partition in partitions:
            records = np.fromfile(partition, _RECORD)
            order = np.lexsort((records["number"], records["lo"], records["hi"]))
            hi, lo = records["hi"][order], records["lo"][order]
            again = (hi[1:] == hi[:-1]) & (lo[1:] == lo[:-1])
            drops.append(records["number"][order][1:][again])
    numbers = np.sort(np.concatenate(drops))
    owner = np.searchsorted(starts, numbers, side="right") - 1
    return {int(at): numbers[owner == at] - starts[at] for at in np.unique(owner)}


@contextlib.contextmanager
def _spill(
    files: list[dict[str, Any]], text_dir: Path, starts: NDArray[np.int64], n_partitions: int
) -> Iterator[list[Path]]:
    """Files of `_RECORD`s, equal digests in the same one; deleted at the end."""
    text_dir.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".deduplicate-", dir=text_dir))
    try:
        paths = [folder / f"{partition:05d}" for partition in range(n_partitions)]
        for path in paths:
            path.touch()
        for file, start in zip(files, starts, strict=False):
            for records in _records(text_dir / file["path"], int(start)):
                for partition in range(n_partitions):
                    mine = records[records["hi"] % n_partitions == partition]
                    with open(paths[partition], "ab") as out:
                        out.write(mine.tobytes())
        yield paths
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _records(path: Path, start: int) -> Iterator[NDArray[Any]]:
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=1 << 16, columns=["text_sha256"]):
            digests = np.frombuffer(bytes.fromhex("".join(batch.column(0).to_pylist())), ">u8").reshape(-1, 4)
            records = np.empty(len(digests), _RECORD)
            records["hi"], records["lo"] = digests[:, 0], digests[:, 1]
            records["number"] = np.arange(start, start + len(digests))
            start += len(digests)
            yield records


def _describe(file: dict[str, Any], rows: NDArray[np.int64], text_dir: Path) -> list[dict[str, Any]]:
    columns = pq.read_table(text_dir / file["path"], columns=["doc_id", "n_bytes", "text_sha256"]).take(
        pa.array(rows)
    )
    place = {"split": file["split"], "domain": file["domain"], "shard": file["shard"]}
    return [place | row for row in columns.to_pylist()]


# --- the manifest -------------------------------------------------------------------------------------


def _merge(
    shards: list[dict[str, Any]], files: list[dict[str, Any]], dropped: list[dict[str, Any]]
) -> dict[str, Any]:
    """Counts are of documents that stay; `duplicates` are those that went, within shards and across them."""
    domains = {domain: {split: _Count() for split in SPLITS} for domain in shards[0]["domains"]}
    for file in sorted(files, key=lambda file: file["shard"]):
        domains[file["domain"]][file["split"]].add(file)
    for shard in shards:
        for domain, by_split in shard["duplicates"].items():
            for split, n in by_split.items():
                domains[domain][split].duplicates += n
    for row in dropped:
        domains[row["domain"]][row["split"]].drop(row)
    return {
        "domains": {d: {s: count.as_json() for s, count in splits.items()} for d, splits in domains.items()},
        "rows": sum(shard["rows"] for shard in shards),
        "skipped": dict(_total(shards, "skipped")),
        "unknown_domains": dict(_total(shards, "unknown_domains")),
    }


def _total(shards: list[dict[str, Any]], key: str) -> Counter[str]:
    total: Counter[str] = Counter()
    for shard in shards:
        total.update(shard[key])
    return total


class _Count:
    """What is known about one domain in one split."""

    def __init__(self) -> None:
        self.files: list[dict[str, Any]] = []
        self.docs = self.bytes = self.duplicates = 0
        self.lengths: Counter[int] = Counter()

    def add(self, file: dict[str, Any]) -> None:
        self.files.append({key: file[key] for key in ("path", "shard", "rows", "bytes", "sha256")})
        self.docs += file["rows"]
        self.bytes += file["text_bytes"]
        self.lengths.update({int(k): n for k, n in file["lengths"].items()})

    def drop(self, row: dict[str, Any]) -> None:
        self.docs -= 1
        self.bytes -= row["n_bytes"]
        self.duplicates += 1
        self.lengths[length_bin(row["n_bytes"])] -= 1

    def as_json(self) -> dict[str, Any]:
        return {
            "files": self.files,
            "docs": self.docs,
            "bytes": self.bytes,
            "duplicates": self.duplicates,
            "lengths": histogram_json(self.lengths),
        }


def _check_domains(manifest: dict[str, Any], group: str) -> None:
    """A domain without documents is most often a name that the data spell in another way."""
    for domain, splits in manifest["domains"].items():
        if not any(split["docs"] for split in splits.values()):
            if not manifest["rows"]:
                raise CorpusError(f"group {group!r}, with domain {domain!r}: its files hold no rows")
            others = ", ".join(sorted(manifest["unknown_domains"])) or "none"
            raise CorpusError(
                f"no document of domain {domain!r} in group {group!r} ({manifest['rows']} rows read; other "
                f"names in the data: {others}). Correct corpus.domains, or say the data's name in "
                "corpus.source.names"
            )
