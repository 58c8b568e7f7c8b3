import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from seqarch.corpus.document import Document, text_digest
from seqarch.corpus.filter import filter_shard
from seqarch.corpus.spec import FilterSpec, SplitSpec
from seqarch.files import sha256_file
from seqarch.provenance import read_record

GOOD = [{"text": f"document number {i}"} for i in range(200)]


def data_files(text: Path) -> list[str]:
    return sorted(path.relative_to(text).as_posix() for path in text.rglob("*") if path.is_file())


def test_documents_come_out_whole_with_their_hashes(group: Callable[..., Any]) -> None:
    made = group(GOOD)
    assert made.run_filter() == 0
    found = made.documents()
    assert sorted(row["text"] for row in found) == sorted(row["text"] for row in GOOD)
    assert {row["split"] for row in found} == {"train", "validation", "test"}
    for row in found:
        line = int(row["doc_id"].removeprefix("data.jsonl:"))
        assert row["text"] == GOOD[line - 1]["text"]
        assert (row["domain"], row["source"]) == ("web", "data.jsonl")
        assert row["n_bytes"] == len(row["text"].encode())
        assert row["text_sha256"] == text_digest(row["text"]).hex()


def test_the_manifest_describes_the_files(group: Callable[..., Any]) -> None:
    made = group(GOOD)
    made.run_filter()
    part = made.part()
    assert sum(file["rows"] for file in part["files"]) == part["rows"] == len(GOOD)
    for file in part["files"]:
        path = made.text / file["path"]
        assert (path.stat().st_size, sha256_file(path)) == (file["bytes"], file["sha256"])
        assert sum(file["lengths"].values()) == file["rows"] == pq.read_metadata(path).num_rows
        assert read_record(path) == part["provenance"] == read_record(made.part_path())
    assert part["provenance"]["inputs"] == {"sources": sha256_file(made.folder / "sources/web.json")}


def test_bad_rows_are_counted_by_kind_and_the_rest_is_kept(group: Callable[..., Any]) -> None:
    bad = [b"{", b"[]", b"{}", b'{"text": "\xff"}', b'{"text": ""}', b'{"text": "\\u0000"}', b"}"]
    made = group([*GOOD, *bad], max_bad_fraction=0.04)
    assert made.run_filter() == 0
    kinds = {"not_json": 2, "wrong_type": 1, "no_text": 1, "invalid_utf8": 1, "empty": 1, "nul": 1}
    assert made.part()["skipped"] == kinds
    assert len(made.documents()) == len(GOOD)


def test_too_many_bad_rows_name_file_and_line_and_leave_nothing(
    group: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    made = group([*GOOD[:120], b"{", *GOOD[120:], b"]"], max_bad_fraction=0.0098)
    assert made.run_filter() == 1
    error = capsys.readouterr().err
    assert "data.jsonl, line 121: not_json" in error
    assert "2 of 202 rows" in error
    assert "max_bad_fraction" in error
    assert data_files(made.text) == []
    made.options["max_bad_fraction"] = 0.01
    assert made.run_filter() == 0


def test_too_many_bad_rows_stop_a_large_shard_early(
    group: Callable[..., Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seqarch.corpus.filter._EARLY", 100)
    made = group([b"{"] * 50 + GOOD, max_bad_fraction=0.1)
    assert made.run_filter() == 1
    assert "11 of 11 rows" in capsys.readouterr().err


def test_short_documents_are_dropped_with_a_count(group: Callable[..., Any]) -> None:
    made = group([{"text": "é"}, {"text": "abc"}], min_bytes=3)
    made.run_filter()
    assert made.part()["skipped"] == {"short": 1}
    assert [row["text"] for row in made.documents()] == ["abc"]


def test_duplicates_within_a_shard_are_dropped_with_a_count(group: Callable[..., Any]) -> None:
    made = group([{"text": "a  b"}, {"text": "a\nb "}, {"text": "a B"}, {"text": "a b"}])
    made.run_filter()
    assert [row["text"] for row in made.documents() if row["text"] != "a B"] == ["a  b"]
    assert sum(made.part()["duplicates"]["web"].values()) == 2


def test_copies_in_two_splits_stay_within_a_shard(group: Callable[..., Any]) -> None:
    # Parts of pages can be copies; `deduplicate` then keeps one. Each split keeps its own until then.
    pages = [Document("the same words", "web", "pages", str(i), f"page {i}") for i in range(20)]
    made = group([])
    filter_shard(
        pages,
        group="web",
        domains=["web"],
        options=FilterSpec(),
        shares=SplitSpec(validation=0.2, test=0.3),
        shard=0,
        text_dir=made.text,
        part=made.part_path(),
        provenance={},
    )
    assert sorted(row["split"] for row in made.documents()) == ["test", "train", "validation"]


def test_other_domains_are_counted_by_name(group: Callable[..., Any]) -> None:
    rows = [
        {"text": f"{name} {i}", "meta": {"set": name}} for name in ("c4", "cc", "books") for i in range(5)
    ]
    made = group(rows, domains=("cc", "c4"), domain_field="meta.set")
    made.run_filter()
    assert made.part()["unknown_domains"] == {"books": 5}
    assert {row["domain"] for row in made.documents()} == {"cc", "c4"}
    assert {path.parts[-2] for path in made.text.glob("*/*/*.parquet")} == {"cc", "c4"}


def test_a_domain_may_have_another_name_in_the_data(group: Callable[..., Any]) -> None:
    rows = [{"text": f"text {i}", "meta": {"set": "RedPajamaC4"}} for i in range(5)]
    made = group(rows, domains=("c4",), domain_field="meta.set")
    made.source["names"] = {"c4": "RedPajamaC4"}
    made.run_filter()
    assert {row["domain"] for row in made.documents()} == {"c4"}
    assert made.part()["unknown_domains"] == {}


@pytest.mark.parametrize("n_shards", [1, 2, 5])
def test_any_number_of_shards_holds_the_same_documents(group: Callable[..., Any], n_shards: int) -> None:
    made = group(GOOD, n_shards=n_shards)
    assert made.run_filter() == 0
    assert len(list(made.text.glob("train/web/*.parquet"))) == n_shards
    found = {(row["doc_id"], row["text"], row["split"]) for row in made.documents()}
    made.n_shards = 1
    for path in made.text.glob("*/web/*.parquet"):
        path.unlink()
    made.run_filter()
    assert found == {(row["doc_id"], row["text"], row["split"]) for row in made.documents()}


def test_equal_runs_give_equal_bytes(group: Callable[..., Any]) -> None:
    made = group(GOOD)
    made.run_filter()
    first = {name: (made.text / name).read_bytes() for name in data_files(made.text)}
    made.run_filter()
    assert first == {name: (made.text / name).read_bytes() for name in data_files(made.text)}
    assert len(first) == 4


def test_files_of_an_earlier_run_do_not_stay(group: Callable[..., Any]) -> None:
    made = group(GOOD)
    made.run_filter()
    stale = made.text / "train/web/.00000.parquet.abc.tmp.parquet"
    stale.write_bytes(b"part")
    (made.folder / "data/data.jsonl").write_text(json.dumps(GOOD[0]) + "\n")
    made.run_sources()
    made.run_filter()
    assert len(data_files(made.text)) == 2  # one document in one split, and the manifest


def test_a_truncated_file_leaves_nothing(
    group: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    made = group([{"text": os.urandom(500).hex()} for _ in range(2000)], name="data.jsonl.zst")
    file = made.folder / "data/data.jsonl.zst"
    file.write_bytes(file.read_bytes()[:500_000])
    assert made.run_filter() == 1  # listed with another size
    assert "run the `sources` step again" in capsys.readouterr().err
    made.run_sources()
    assert made.run_filter() == 1
    assert "data.jsonl.zst is truncated" in capsys.readouterr().err
    assert data_files(made.text) == []


# --- killed jobs, full disks --------------------------------------------------------------------------


def start(made: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "seqarch.cli.filter", *made.filter_argv()]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def wait_for_temporary(made: Any, process: subprocess.Popen[bytes]) -> None:
    """Until the job is in the middle of writing."""
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size > 100_000 for path in made.text.rglob(".*.tmp.parquet")):
        assert process.poll() is None, "the job ended before it could be stopped: give it more to do"
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def large(group: Callable[..., Any]) -> Any:
    return group([{"text": os.urandom(20_000).hex()} for _ in range(500)])  # 20 MB


def test_a_killed_job_leaves_nothing_that_is_taken_as_whole(large: Any) -> None:
    assert large.run_filter() == 0
    whole = {name: (large.text / name).read_bytes() for name in data_files(large.text)}
    process = start(large)
    wait_for_temporary(large, process)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    left = [Path(name).name for name in data_files(large.text)]
    assert left
    assert all(name.startswith(".") for name in left)
    assert large.run_filter() == 0
    assert whole == {name: (large.text / name).read_bytes() for name in data_files(large.text)}


def test_a_terminated_job_cleans_up(large: Any) -> None:
    process = start(large)
    wait_for_temporary(large, process)
    process.terminate()
    assert process.wait() == 143
    assert data_files(large.text) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    folder = tmp_path / "small disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small tmpfs takes root and the right to mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_an_error_that_leaves_nothing(
    large: Any, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (small_disk / "text").mkdir()
    (large.folder / "text").symlink_to(small_disk / "text")
    assert large.run_filter() == 1
    error = capsys.readouterr().err
    assert "no space left" in error
    assert "text" in error
    assert data_files(small_disk) == []
