"""Rows of JSON Lines and Parquet files, in constant memory; what cannot be read as a row is a BadRow."""

import io
import json
from collections.abc import Callable, Iterator
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from seqarch.corpus.document import BadRow, Document, document_or_bad_row
from seqarch.corpus.errors import CorpusError, CorruptFileError

MAX_LINE = 64 << 20  # bytes; a longer line is skipped, with a count, instead of filling the memory
_BATCH = 256  # rows of Parquet decoded at once
_COMPRESSION = {".zst": "zstd", ".gz": "gzip"}


def read_documents(
    file: IO[bytes],
    name: str,
    text_field: str,
    domain: str | Callable[[Any], Any],
    wanted: Callable[[int], bool],
) -> Iterator[Document | BadRow]:
    """The documents of one open file.

    Args:
        name: the file's name in the listing; its ending says the format.
        text_field: where the text is; dots go into nested fields.
        domain: the domain of every row, or how to find a row's own (see `Field`).
        wanted: whether this shard takes the row with this number (from 1).

    Raises:
        CorruptFileError: the file is truncated or damaged.
    """
    find_text = Field(text_field)
    find_domain = domain if callable(domain) else (lambda _: domain)
    columns = [text_field] if isinstance(domain, str) else [text_field, getattr(domain, "path", "")]
    rows = _parquet_rows(file, name, columns) if name.endswith(".parquet") else _json_rows(file, name, wanted)
    try:
        for number, row in rows:
            if not wanted(number):
                continue
            if isinstance(row, BadRow):
                yield row
            elif not isinstance(row, dict):
                yield BadRow(
                    "wrong_type", name, str(number), f"expected an object, found {type(row).__name__}"
                )
            else:
                yield document_or_bad_row(find_text(row), find_domain(row), name, str(number))
    except (pa.ArrowException, EOFError) as error:
        raise CorruptFileError(_damaged(name, error)) from error
    except OSError as error:
        if error.errno is not None:  # the disk's or the network's; a decompressor's has none
            raise CorpusError(f"cannot read {name}: {error}") from error
        raise CorruptFileError(_damaged(name, error)) from error


def _damaged(name: str, error: Exception) -> str:
    return f"{name} is truncated or damaged ({error}): fetch it again, or leave it out of the source"


class Field:
    """`Field("meta.name")(row)` is row["meta"]["name"], or None where there is no such thing. The whole path
    is tried as one key first."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.parts = path.split(".")

    def __call__(self, row: Any) -> Any:
        if self.path in row:
            return row[self.path]
        for part in self.parts:
            if not isinstance(row, dict):
                return None
            row = row.get(part)
        return row


def _json_rows(file: IO[bytes], name: str, wanted: Callable[[int], bool]) -> Iterator[tuple[int, Any]]:
    for number, line in _lines(file, name):
        if line is None:
            yield number, BadRow("too_long", name, str(number), f"a line of more than {MAX_LINE} bytes")
        elif not line.isspace() and wanted(number):
            yield number, _json_row(line, name, number)


def _json_row(line: bytes, name: str, number: int) -> Any:
    try:
        return json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        return BadRow("invalid_utf8", name, str(number), str(error))
    except (
        ValueError,
        RecursionError,
    ) as error:  # ValueError: JSONDecodeError, and integers past Python's limit
        return BadRow("not_json", name, str(number), str(error) or "nested too deeply")


def _lines(file: IO[bytes], name: str) -> Iterator[tuple[int, bytes | None]]:
    """(number from 1, line), with None for a line that is too long. A truncated stream raises OSError, which
    the decompressor of zstandard's Python package does not do."""
    compression = next((kind for ending, kind in _COMPRESSION.items() if name.endswith(ending)), None)
    with (
        pa.input_stream(file, compression=compression) as stream,
        io.BufferedReader(stream, 1 << 20) as lines,
    ):
        number = 0
        while line := lines.readline(MAX_LINE):
            number += 1
            if len(line) < MAX_LINE or line.endswith(b"\n"):
                yield number, line
                continue
            while line and not line.endswith(b"\n"):
                line = lines.readline(MAX_LINE)
            yield number, None


def _parquet_rows(file: IO[bytes], name: str, paths: list[str]) -> Iterator[tuple[int, Any]]:
    table = pq.ParquetFile(
        file, buffer_size=1 << 20, pre_buffer=False
    )  # pages as they are needed, not row groups
    tops = {path if path in table.schema_arrow.names else path.split(".")[0] for path in paths}
    present = [name for name in table.schema_arrow.names if name in tops]
    number = 0
    for batch in table.iter_batches(batch_size=_BATCH, columns=present, use_threads=False):
        try:
            rows = batch.to_pylist()
        except UnicodeDecodeError:  # Parquet's strings are whatever was written
            rows = [_parquet_row(batch.slice(i, 1), name, number + 1 + i) for i in range(batch.num_rows)]
        for row in rows:
            number += 1
            yield number, row


def _parquet_row(one: pa.RecordBatch, name: str, number: int) -> Any:
    try:
        return one.to_pylist()[0]
    except UnicodeDecodeError as error:
        return BadRow("invalid_utf8", name, str(number), str(error))
