"""Files that are whole or absent: every output is written to a temporary name, fsynced and renamed."""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # pyarrow takes 0.2 s to load: the workflow and the JSON steps start without it
    import pyarrow as pa

PROVENANCE_KEY = "seqarch"  # where an output carries its provenance, in Parquet and safetensors metadata


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, no NaN, non-ASCII kept.

    Raises ValueError for NaN or infinity and TypeError for what JSON cannot hold.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha256_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_file(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path in the target's directory; renamed to `path` on success, deleted on any error.

    The data is on disk before the name is (fsync of file and directory), so a crash leaves the old file or
    the new one, never a part.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=f".tmp{path.suffix}", dir=path.parent)
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp makes files private; an output follows the user's umask
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        _fsync_directory(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _fsync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(path: Path, data: bytes) -> None:
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def write_json(path: Path, value: Any) -> None:
    """Readable JSON with sorted keys: equal values give equal bytes."""
    text = json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    write_bytes(path, (text + "\n").encode())


def read_json(path: Path) -> Any:
    return json.loads(Path(path).read_text(encoding="utf-8"))


def write_parquet(path: Path, table: "pa.Table", provenance: Mapping[str, Any]) -> None:
    """A Parquet file that carries its provenance in the schema metadata."""
    import pyarrow.parquet as pq

    metadata = dict(table.schema.metadata or {})
    metadata.pop(b"pandas", None)  # pandas writes its version here, which would differ between equal runs
    metadata[PROVENANCE_KEY.encode()] = canonical_json(provenance).encode()
    with atomic_path(path) as temporary:
        pq.write_table(table.replace_schema_metadata(metadata), temporary, compression="zstd")


def read_parquet_provenance(path: Path) -> dict[str, Any] | None:
    """The provenance inside a Parquet file, or None if it carries none."""
    import pyarrow.parquet as pq

    metadata = pq.read_schema(path).metadata or {}
    text = metadata.get(PROVENANCE_KEY.encode())
    return None if text is None else json.loads(text)


def write_table(stem: Path, table: "pa.Table", provenance: Mapping[str, Any]) -> None:
    """`stem`.parquet (with provenance) and `stem`.csv (for eyes and spreadsheets), the same rows."""
    import pyarrow.csv

    stem = Path(stem)
    write_parquet(stem.with_name(stem.name + ".parquet"), table, provenance)
    with atomic_path(stem.with_name(stem.name + ".csv")) as temporary:
        pyarrow.csv.write_csv(table, temporary)
