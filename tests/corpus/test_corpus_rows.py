import gzip
import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from seqarch.corpus import rows
from seqarch.corpus.document import BadRow, Document
from seqarch.corpus.errors import CorruptFileError
from seqarch.corpus.rows import Field, read_documents


def read(data: bytes, name: str = "data.jsonl", domain: Any = "web") -> list[Any]:
    return list(read_documents(io.BytesIO(data), name, "text", domain, lambda number: True))


def json_lines(n: int) -> bytes:
    return b"".join(json.dumps({"text": f"document {i}"}).encode() + b"\n" for i in range(n))


def parquet(columns: dict[str, Any]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, row_group_size=100)
    return sink.getvalue()


def compressed(data: bytes, name: str) -> bytes:
    if name.endswith(".zst"):
        return zstandard.ZstdCompressor(write_checksum=True).compress(data)  # as the command line tool
    return gzip.compress(data) if name.endswith(".gz") else data


def what(found: list[Any]) -> list[str]:
    return [item.kind if isinstance(item, BadRow) else item.text for item in found]


BAD_LINES = {
    "not_json": [b'{"text": "cut', b"nothing", b"[" * 100_000, b'{"text": ' + b"9" * 5000 + b"}"],
    "no_text": [b"{}", b'{"text": null}', b'{"other": "a"}'],
    "wrong_type": [b"[1]", b'"text"', b"null", b'{"text": 3}', b'{"text": ["a"]}'],
    "invalid_utf8": [b'{"text": "\xff"}', b'{"text": "\\ud800"}'],
    "empty": [b'{"text": ""}', b'{"text": "  \\n"}'],
    "nul": [b'{"text": "a\\u0000b"}'],
}


@pytest.mark.parametrize(
    ("kind", "line"),
    [(kind, line) for kind, lines in BAD_LINES.items() for line in lines],
    ids=lambda v: str(v)[:20],
)
def test_a_bad_line_is_told_by_kind_and_place(kind: str, line: bytes) -> None:
    found = read(b'{"text": "good"}\n' + line + b'\n{"text": "also good"}')
    assert [type(item) for item in found] == [Document, BadRow, Document]
    assert (found[1].kind, found[1].source, found[1].row) == (kind, "data.jsonl", "2")


def test_a_line_too_long_is_skipped_without_reading_it_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_LINE", 64)
    found = read(b'{"text": "a"}\n{"text": "' + b"b" * 1000 + b'"}\n{"text": "c"}\n')
    assert what(found) == ["a", "too_long", "c"]
    assert [item.row for item in found] == ["1", "2", "3"]


def test_blank_lines_are_no_rows_and_a_byte_order_mark_is_no_text() -> None:
    found = read(b'\xef\xbb\xbf{"text": "a"}\n\n  \n{"text": "b"}')
    assert [(item.text, item.row) for item in found] == [("a", "1"), ("b", "4")]


def test_a_row_names_its_domain_by_a_nested_field() -> None:
    lines = [
        {"text": "a", "meta": {"set": "one"}},
        {"text": "b", "meta": {}},
        {"text": "c", "meta": "two"},
        {"text": "d", "meta": {"set": 3}},
    ]
    found = read("\n".join(map(json.dumps, lines)).encode(), domain=Field("meta.set"))
    assert found[0].domain == "one"
    assert what(found) == ["a", "no_domain", "no_domain", "wrong_type"]


def test_a_key_with_a_dot_is_tried_first() -> None:
    assert Field("meta.set")({"meta.set": "flat", "meta": {"set": "nested"}}) == "flat"


def test_parquet_reads_like_json_lines() -> None:
    one = {"set": "one"}
    table = {
        "text": ["a", None, " ", "b\0", "c"],
        "meta": [one, one, one, one, {"set": None}],
        "extra": [1, 2, 3, 4, 5],
    }
    found = read(parquet(table), "data.parquet", Field("meta.set"))
    assert what(found) == ["a", "no_text", "empty", "nul", "no_domain"]
    assert [item.row for item in found] == ["1", "2", "3", "4", "5"]


def test_parquet_with_another_type_or_without_the_column() -> None:
    assert what(read(parquet({"text": [1, 2]}), "data.parquet")) == ["wrong_type", "wrong_type"]
    assert what(read(parquet({"body": ["a"]}), "data.parquet")) == ["no_text"]


@pytest.mark.parametrize("name", ["data.jsonl", "data.jsonl.zst", "data.jsonl.gz"])
def test_several_frames_hold_the_documents_of_all(name: str) -> None:
    data = compressed(json_lines(500), name) + compressed(json_lines(500), name)
    assert what(read(data, name)) == [f"document {i}" for i in range(500)] * 2


@pytest.mark.parametrize("name", ["data.jsonl.zst", "data.jsonl.gz", "data.parquet"])
@pytest.mark.parametrize("keep", [0.1, 0.5, 0.999])
def test_a_truncated_file_is_an_error_that_names_it(name: str, keep: float) -> None:
    whole = compressed(json_lines(20_000), name) if "json" in name else parquet({"text": ["x" * 50] * 2000})
    with pytest.raises(CorruptFileError, match=name):
        read(whole[: int(len(whole) * keep)], name)


@pytest.mark.parametrize("name", ["data.jsonl.zst", "data.jsonl.gz"])
def test_a_damaged_file_is_an_error_that_names_it(name: str) -> None:
    whole = bytearray(compressed(json_lines(20_000), name))
    whole[len(whole) // 2 : len(whole) // 2 + 50] = b"\xaa" * 50
    with pytest.raises(CorruptFileError, match=name):
        read(bytes(whole), name)


def test_only_wanted_rows_are_parsed() -> None:
    data = b'{"text": "a"}\nnot json\n{"text": "c"}\n'
    found = list(read_documents(io.BytesIO(data), "data.jsonl", "text", "web", lambda number: number != 2))
    assert what(found) == ["a", "c"]
