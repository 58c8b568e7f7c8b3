"""One shard of one group: raw documents to text by split and domain, in bounded memory."""

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from seqarch.corpus.document import SPLITS, BadRow, Document, split_of, text_digest
from seqarch.corpus.errors import BadRowsError, disk_full_as_error
from seqarch.corpus.spec import FilterSpec, SplitSpec
from seqarch.files import PROVENANCE_KEY, atomic_path, canonical_json, sha256_file, write_json
from seqarch.progress import progress

SCHEMA = pa.schema(
    [
        ("doc_id", pa.string()),
        ("domain", pa.string()),
        ("source", pa.string()),
        ("text", pa.string()),
        ("n_bytes", pa.int64()),  # of the text in UTF-8
        ("text_sha256", pa.string()),  # of the normalised text, in hexadecimal
    ]
)
_GROUP_BYTES, _GROUP_ROWS = 4 << 20, 4096  # a row group is written when either is reached
_EARLY = 100_000  # rows after which too many bad ones stop a shard before its end
_MAX_NAMES = 1000  # other domain names that are told apart


def filter_shard(
    documents: Iterable[Document | BadRow],
    *,
    group: str,
    domains: Sequence[str],
    options: FilterSpec,
    shares: SplitSpec,
    shard: int,
    text_dir: Path,
    part: Path,
    provenance: Mapping[str, Any],
) -> None:
    """Write text_dir/<split>/<domain>/<shard>.parquet and, last, the manifest `part`.

    Dropped, each with a count: bad rows by kind, documents of other domains by name, documents shorter than
    `min_bytes`, and exact duplicates (equal normalised text) within the shard and split. Memory: a row group
    a split and domain, and about 100 bytes a document for the duplicates.

    Raises:
        BadRowsError: more than `max_bad_fraction` of the shard's rows are bad.
        DiskFullError: no space is left. In either case nothing of this shard is left behind.
    """
    counts = _Counts(options.max_bad_fraction, f"shard {shard} of {group}")
    part.unlink(missing_ok=True)
    _remove_earlier(text_dir, domains, shard)
    seen: set[bytes] = set()
    with disk_full_as_error(text_dir), _Outputs(text_dir, shard, provenance) as outputs:
        with progress(f"filter {group} {shard}") as advance:
            for item in documents:
                counts.rows += 1
                if counts.rows % 1000 == 0:
                    advance(1000)
                if isinstance(item, BadRow):
                    counts.bad(item)
                elif item.domain not in domains:
                    counts.other_domain(item.domain)
                else:
                    _keep(item, seen, outputs, counts, options, shares)
        counts.check()
        files = outputs.finish()
    write_json(
        part,
        {
            "group": group,
            "shard": shard,
            "domains": list(domains),
            "rows": counts.rows,
            "files": files,
            "duplicates": counts.duplicates,
            "skipped": dict(counts.skipped),
            "unknown_domains": dict(counts.other_domains),
            "provenance": dict(provenance),
        },
    )


def _keep(
    document: Document,
    seen: set[bytes],
    outputs: "_Outputs",
    counts: "_Counts",
    options: FilterSpec,
    shares: SplitSpec,
) -> None:
    n_bytes = len(document.text.encode())
    if n_bytes < options.min_bytes:
        counts.skipped["short"] += 1
        return
    digest = text_digest(document.text)
    split = split_of(document, digest, shares)
    key = digest[:16] + bytes([SPLITS.index(split)])
    if key in seen:
        of_split = counts.duplicates.setdefault(document.domain, {})
        of_split[split] = of_split.get(split, 0) + 1
        return
    seen.add(key)
    outputs.add(split, document, n_bytes, digest)


def _remove_earlier(text_dir: Path, domains: Sequence[str], shard: int) -> None:
    """This shard's files of an earlier run, and what a killed one left: no two jobs write one shard."""
    for split in SPLITS:
        for domain in domains:
            folder = text_dir / split / domain
            for file in [*folder.glob(f".{shard:05d}.parquet.*.tmp*"), folder / f"{shard:05d}.parquet"]:
                file.unlink(missing_ok=True)


@dataclass
class _Counts:
    max_bad_fraction: float
    where: str
    rows: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    other_domains: Counter[str] = field(default_factory=Counter)
    duplicates: dict[str, dict[str, int]] = field(default_factory=dict)  # domain -> split -> count
    n_bad: int = 0
    first_bad: BadRow | None = None

    def bad(self, row: BadRow) -> None:
        self.skipped[row.kind] += 1
        self.n_bad += 1
        self.first_bad = self.first_bad or row
        if self.n_bad > self.max_bad_fraction * max(self.rows, _EARLY):
            self.check()

    def other_domain(self, name: str) -> None:
        known = name in self.other_domains or len(self.other_domains) < _MAX_NAMES
        self.other_domains[name if known else "(more names)"] += 1

    def check(self) -> None:
        if self.n_bad <= self.max_bad_fraction * self.rows or self.first_bad is None:
            return
        kinds = ", ".join(f"{kind} {n}" for kind, n in sorted(self.skipped.items()) if kind != "short")
        first = self.first_bad
        raise BadRowsError(
            f"{self.n_bad} of {self.rows} rows of {self.where} are bad ({kinds}), more than the share "
            f"{self.max_bad_fraction:g} that is allowed. The first: {first.source}, line {first.row}: "
            f"{first.kind}: {first.detail}. Repair the data, or raise corpus.filter.max_bad_fraction"
        )


class _Outputs:
    """One Parquet file a split and domain, opened for its first document, renamed when all are whole."""

    def __init__(self, text_dir: Path, shard: int, provenance: Mapping[str, Any]) -> None:
        self.text_dir, self.shard = text_dir, shard
        self.schema = SCHEMA.with_metadata({PROVENANCE_KEY: canonical_json(dict(provenance))})
        self.stack = contextlib.ExitStack()
        self.open: dict[tuple[str, str], _Output] = {}

    def __enter__(self) -> "_Outputs":
        return self

    def __exit__(self, *error: Any) -> None:
        self.stack.__exit__(*error)

    def add(self, split: str, document: Document, n_bytes: int, digest: bytes) -> None:
        key = (split, document.domain)
        if key not in self.open:
            path = self.text_dir / split / document.domain / f"{self.shard:05d}.parquet"
            temporary = self.stack.enter_context(atomic_path(path))
            self.open[key] = _Output(path, temporary, self.schema, self.stack)
        self.open[key].add(document, n_bytes, digest)

    def finish(self) -> list[dict[str, Any]]:
        """Close all files and describe them; they get their names when the `with` block ends."""
        entries = []
        for (split, domain), output in sorted(self.open.items()):
            output.close()
            entries.append(
                {
                    "path": output.path.relative_to(self.text_dir).as_posix(),
                    "split": split,
                    "domain": domain,
                    "shard": self.shard,
                    "rows": output.rows,
                    "text_bytes": output.text_bytes,
                    "lengths": histogram_json(output.lengths),
                    "bytes": output.temporary.stat().st_size,
                    "sha256": sha256_file(output.temporary),
                }
            )
        return entries


class _Output:
    def __init__(self, path: Path, temporary: Path, schema: pa.Schema, stack: contextlib.ExitStack) -> None:
        self.path, self.temporary = path, temporary
        self.writer = pq.ParquetWriter(
            temporary, schema, compression="zstd", use_dictionary=["domain", "source"]
        )
        stack.callback(self._abandon)
        self.buffer: list[tuple[str, str, str, str, int, str]] = []
        self.buffered = self.rows = self.text_bytes = 0
        self.lengths: Counter[int] = Counter()

    def add(self, document: Document, n_bytes: int, digest: bytes) -> None:
        self.buffer.append(
            (document.doc_id, document.domain, document.source, document.text, n_bytes, digest.hex())
        )
        self.rows += 1
        self.text_bytes += n_bytes
        self.lengths[length_bin(n_bytes)] += 1
        self.buffered += n_bytes
        if self.buffered >= _GROUP_BYTES or len(self.buffer) >= _GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self.buffer:
            columns = zip(*self.buffer, strict=True)
            arrays = [pa.array(column, each.type) for column, each in zip(columns, SCHEMA, strict=True)]
            self.writer.write_table(pa.Table.from_arrays(arrays, schema=self.writer.schema))
            self.buffer, self.buffered = [], 0

    def close(self) -> None:
        self._flush()
        self.writer.close()

    def _abandon(self) -> None:
        with contextlib.suppress(OSError):  # on a full disk the footer fails, too; the file is deleted anyway
            self.writer.close()


def length_bin(n_bytes: int) -> int:
    """k with 2^k <= n_bytes < 2^(k+1)."""
    return n_bytes.bit_length() - 1


def histogram_json(lengths: Counter[int]) -> dict[str, int]:
    """Documents by length: "k" -> how many have 2^k to 2^(k+1) - 1 bytes."""
    return {str(k): n for k, n in sorted(lengths.items()) if n}
