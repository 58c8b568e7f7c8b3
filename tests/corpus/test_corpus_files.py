import gzip
import json
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from seqarch.corpus.document import Document
from seqarch.corpus.errors import SourceError
from seqarch.corpus.sources.registry import iter_documents, list_files


def source(*paths: Path | str, **changes: Any) -> dict[str, Any]:
    value = {"kind": "files", "paths": [str(path) for path in paths], "text_field": "text", "names": {}}
    return value | {"domain_field": None, "checksum": True} | changes


def read(
    value: dict[str, Any], shard: int = 0, n_shards: int = 1, files: Any = None
) -> list[tuple[str, str]]:
    files = files or list_files(value, Path("archives"))
    found = list(iter_documents(value, files, Path("archives"), ["web"], shard, n_shards))
    assert all(isinstance(item, Document) and item.domain == "web" for item in found)
    return [(item.source, item.text) for item in found if isinstance(item, Document)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The same four documents a file, in each of the four formats, one of them deeper."""
    root = tmp_path / "some data"
    (root / "deep/er").mkdir(parents=True)
    texts = [f"text {i}" for i in range(4)]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    (root / "a.jsonl").write_bytes(lines)
    (root / "b.jsonl.gz").write_bytes(gzip.compress(lines, mtime=0))
    (root / "deep/c.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(lines))
    pq.write_table(pa.table({"text": texts}), root / "deep/er/d.parquet")
    (root / "notes.txt").write_text("not data")
    return root


def test_globs_find_every_format(folder: Path) -> None:
    value = source(
        *(folder / f"**/*{ending}" for ending in (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"))
    )
    names = ["a.jsonl", "b.jsonl.gz", "deep/c.jsonl.zst", "deep/er/d.parquet"]
    assert [entry["name"] for entry in list_files(value, folder)] == names
    assert read(value) == [(name, f"text {i}") for name in names for i in range(4)]


def test_no_files_are_no_files(tmp_path: Path) -> None:
    assert list_files(source(), tmp_path) == []


def test_a_parquet_row_that_is_no_utf_8_is_one_bad_row(tmp_path: Path) -> None:
    """A column of strings holds whatever bytes were written into it."""
    lengths = pa.array([0, 4, 6, 10], pa.int32()).buffers()[1]
    texts = pa.StringArray.from_buffers(3, lengths, pa.py_buffer(b"good\xff\xfegood"))
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    value = source(tmp_path / "a.parquet")
    files = list_files(value, tmp_path)
    found = list(iter_documents(value, files, tmp_path, ["web"], 0, 1))
    assert [item.text if isinstance(item, Document) else item.kind for item in found] == [
        "good",
        "invalid_utf8",
        "good",
    ]


def test_names_do_not_say_where_the_data_lie(folder: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    names = [entry["name"] for entry in list_files(source(folder / "**/*.jsonl*"), folder)]
    folder.rename(moved)
    assert names == [entry["name"] for entry in list_files(source(moved / "**/*.jsonl*"), folder)]
    assert [entry["name"] for entry in list_files(source(moved / "a.jsonl"), folder)] == ["a.jsonl"]


@pytest.mark.parametrize("n_shards", [1, 2, 3, 4, 7])
def test_shards_share_out_files_or_rows(folder: Path, n_shards: int) -> None:
    value = source(folder / "**/*.jsonl*", folder / "**/*.parquet")
    shards = [read(value, shard, n_shards) for shard in range(n_shards)]
    assert sorted(item for shard in shards for item in shard) == sorted(read(value))
    if n_shards == 2:
        assert {name for name, _ in shards[0]} == {"a.jsonl", "deep/c.jsonl.zst"}
    if n_shards == 7:
        assert [len(shard) for shard in shards] == [4, 4, 4, 4, 0, 0, 0]


def test_any_file_system_of_fsspec(folder: Path) -> None:
    system = fsspec.filesystem("memory")
    system.pipe("/data/one/a.jsonl", (folder / "a.jsonl").read_bytes())
    system.pipe("/data/two/b.jsonl.gz", (folder / "b.jsonl.gz").read_bytes())
    value = source("memory://data/**/*.jsonl*")
    assert read(value) == [
        (name, f"text {i}") for name in ("one/a.jsonl", "two/b.jsonl.gz") for i in range(4)
    ]


def test_a_relative_path_is_read_from_the_working_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert len(read(source("a.jsonl"))) == 4


def test_a_glob_that_matches_nothing_is_an_error(folder: Path) -> None:
    for pattern in (folder / "*.parquet", folder / "none.jsonl"):
        with pytest.raises(SourceError, match=r"corpus\.source\.paths"):
            list_files(source(pattern), folder)
    with pytest.raises(SourceError, match="cannot list nosuch://"):
        list_files(source("nosuch://data/*.jsonl"), folder)


def test_a_file_that_changed_or_went_since_it_was_listed_is_an_error(folder: Path) -> None:
    files = list_files(source(folder / "a.jsonl"), folder)
    (folder / "a.jsonl").write_text('{"text": "other"}\n')
    with pytest.raises(SourceError, match="run the `sources` step again"):
        read(source(folder / "a.jsonl"), files=files)
    (folder / "a.jsonl").unlink()
    with pytest.raises(SourceError, match="run the `sources` step again"):
        read(source(folder / "a.jsonl"), files=files)


def test_the_checksum_can_be_left_out(folder: Path) -> None:
    [with_it] = list_files(source(folder / "a.jsonl"), folder)
    [without] = list_files(source(folder / "a.jsonl", checksum=False), folder)
    assert len(with_it.pop("sha256")) == 64
    assert with_it == without
