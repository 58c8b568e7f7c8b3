"""The filtered text of the corpus stage, in batches of bounded size, without the duplicates."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from seqarch.errors import SeqarchError
from seqarch.files import read_json

BATCH_BYTES = 1_000_000  # text in memory at a time; encoding takes some hundred times as much
READ_ROWS = 16  # rows decoded at a time: books are long
COLUMNS = ["doc_id", "text", "n_bytes", "text_sha256"]


class TextError(SeqarchError):
    """Filtered text is missing or not what its manifest describes."""


@dataclass(frozen=True)
class TextFile:
    """One shard of one split of one domain."""

    domain: str
    split: str
    path: Path
    n_bytes: int  # its part of the split's text, by its part of the rows
    duplicates: Path | None  # the group's drop list

    @property
    def shard(self) -> str:
        """The shard's number as the file spells it."""
        return self.path.stem


@dataclass(frozen=True)
class TextBatch:
    """Some documents of one file, in its order."""

    doc_ids: list[str]
    texts: list[str]
    n_bytes: list[int]
    text_sha256: list[str]


def text_files(
    manifests: Sequence[Path], text: Path, domains: Sequence[str], splits: Sequence[str]
) -> list[TextFile]:
    """What manifests of `cli.deduplicate` list for these domains and splits, in their order.

    Args:
        manifests: of the groups that hold the domains.
        text: the folder that the manifests' paths start from.

    Raises TextError if a domain is in none of the manifests, or a file they list is missing.
    """
    files = []
    found: dict[str, tuple[Path, dict[str, Any]]] = {}
    try:
        for manifest in manifests:
            for domain, by_split in read_json(manifest)["domains"].items():
                found[domain] = (Path(manifest), by_split)
        for domain in domains:
            manifest, by_split = found[domain]
            drop = Path(text) / "duplicates" / f"{manifest.stem}.parquet"
            for split in splits:
                entries = by_split[split]["files"]
                rows = sum(entry["rows"] for entry in entries)
                for entry in entries:
                    path, share = Path(text) / entry["path"], entry["rows"] / rows
                    duplicates = drop if drop.is_file() else None
                    n_bytes = round(by_split[split]["bytes"] * share)
                    files.append(TextFile(domain, split, path, n_bytes, duplicates))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TextError(
            f"{', '.join(map(str, manifests))}: {type(error).__name__}: {error}: expected manifests of "
            f"`python -m seqarch.cli.deduplicate` that have the domains {', '.join(domains)}"
        ) from error
    for file in files:
        if not file.path.is_file():
            raise TextError(f"{file.path} is missing, its manifest lists it: run the filter again")
    return files


def read_batches(file: TextFile, batch_bytes: int = BATCH_BYTES) -> Iterator[TextBatch]:
    """The file's documents but duplicates, in batches of about `batch_bytes` of text; no document is cut."""
    rows: list[dict[str, Any]] = []
    size = 0
    dropped = _dropped(file)
    parquet = _open(file.path)
    for part in parquet.iter_batches(batch_size=READ_ROWS, columns=COLUMNS, use_threads=False):
        for row in part.to_pylist():
            if row["doc_id"] not in dropped:
                rows.append(row)
                size += row["n_bytes"]
        if size >= batch_bytes:
            yield _batch(rows)
            rows, size = [], 0
    if rows:
        yield _batch(rows)


def _open(path: Path) -> pq.ParquetFile:
    try:
        # Small buffered reads: without them a whole row group is in memory.
        parquet = pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
    except (OSError, pa.ArrowInvalid) as error:
        raise TextError(f"{path} is no Parquet file, or truncated: {error}; run the filter again") from error
    missing = [name for name in COLUMNS if name not in parquet.schema_arrow.names]
    if missing:
        raise TextError(
            f"{path} has no column {', '.join(missing)}: expected filtered text; run the filter again"
        )
    return parquet


def _batch(rows: list[dict[str, Any]]) -> TextBatch:
    return TextBatch(
        [row["doc_id"] for row in rows],
        [row["text"] for row in rows],
        [row["n_bytes"] for row in rows],
        [row["text_sha256"] for row in rows],
    )


def _dropped(file: TextFile) -> frozenset[str]:
    """The ids of the file's documents that are copies of others."""
    if file.duplicates is None:
        return frozenset()
    here = (pc.field("domain") == file.domain) & (pc.field("split") == file.split)
    table = pq.read_table(
        file.duplicates, columns=["doc_id"], filters=here & (pc.field("shard") == int(file.shard))
    )
    return frozenset(table.column("doc_id").to_pylist())
