"""The Hugging Face source on a data set of SlimPajama's schema that lies on this machine."""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from seqarch.corpus.catalogue import source_slice
from seqarch.corpus.document import BadRow, Document
from seqarch.corpus.errors import CorruptFileError, SourceError
from seqarch.corpus.sources.registry import iter_documents, list_files
from seqarch.corpus.spec import CorpusSpec

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SETS = ("RedPajamaCommonCrawl", "RedPajamaC4", "RedPajamaArXiv")
NAMES = {"cc": "RedPajamaCommonCrawl", "c4": "RedPajamaC4"}


def rows(file: int) -> list[dict[str, Any]]:
    return [
        {"text": f"text {i} of file {file}", "meta": {"redpajama_set_name": SETS[i % 3]}, "extra": i}
        for i in range(9)
    ]


def write_jsonl_zst(folder: Path) -> None:
    for file in range(3):
        path = folder / f"train/chunk1/example_train_{file}.jsonl.zst"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(row) + "\n" for row in rows(file))
        path.write_bytes(zstandard.ZstdCompressor().compress(lines.encode()))
    other = folder / "validation/chunk1/example_holdout_0.jsonl.zst"
    other.parent.mkdir(parents=True)
    other.write_bytes(zstandard.ZstdCompressor().compress(json.dumps(rows(99)[0]).encode() + b"\n"))


def write_parquet(folder: Path) -> None:
    (folder / "data").mkdir(parents=True)
    for file in range(3):
        pq.write_table(
            pa.Table.from_pylist(rows(file)), folder / f"data/train-{file:05d}-of-00003-ab12.parquet"
        )


def source(path: str | Path, **changes: Any) -> dict[str, Any]:
    value = {"kind": "huggingface", "path": str(path), "names": NAMES} | changes
    corpus = CorpusSpec.model_validate({"name": "c", "source": value, "domains": {"cc": "in", "c4": "in"}})
    return source_slice(corpus, "in", Path("config"))


def read(value: dict[str, Any], shard: int = 0, n_shards: int = 1) -> list[Document | BadRow]:
    files = list_files(value, Path("archives"))
    return list(iter_documents(value, files, Path("archives"), ["cc", "c4"], shard, n_shards))


@pytest.fixture(params=[write_jsonl_zst, write_parquet], ids=["jsonl.zst", "parquet"])
def data_set(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    request.param(tmp_path / "set")
    return tmp_path / "set"


def test_the_documents_are_those_that_datasets_streams(data_set: Path) -> None:
    streamed = datasets.load_dataset(str(data_set), split="train", streaming=True)
    theirs = [(row["meta"]["redpajama_set_name"], row["text"]) for row in streamed]
    ours = [(NAMES.get(item.domain, item.domain), item.text) for item in read(source(data_set))]  # type: ignore[union-attr]
    assert len(ours) == 27
    assert ours == theirs


def test_domains_get_the_names_of_the_configuration(data_set: Path) -> None:
    assert {item.domain for item in read(source(data_set))} == {"cc", "c4", "RedPajamaArXiv"}  # type: ignore[union-attr]


@pytest.mark.parametrize("n_shards", [2, 5])
def test_shards_share_out_files_or_rows(data_set: Path, n_shards: int) -> None:
    shards = [read(source(data_set), shard, n_shards) for shard in range(n_shards)]
    texts = sorted(item.text for shard in shards for item in shard)  # type: ignore[union-attr]
    assert texts == sorted(item.text for item in read(source(data_set)))  # type: ignore[union-attr]
    assert all(shards)


def test_bad_rows_do_not_stop_the_stream(tmp_path: Path) -> None:
    write_jsonl_zst(tmp_path / "set")
    path = tmp_path / "set/train/chunk1/example_train_1.jsonl.zst"
    good = json.dumps(rows(1)[0]).encode()
    path.write_bytes(zstandard.ZstdCompressor().compress(good + b"\nnot json\n" + good + b"\n"))
    found = read(source(tmp_path / "set"))
    [bad] = [item for item in found if isinstance(item, BadRow)]
    assert (bad.kind, bad.source, bad.row) == ("not_json", "train/chunk1/example_train_1.jsonl.zst", "2")
    assert len(found) == 9 + 3 + 9


def test_other_formats_go_through_datasets(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    with open(tmp_path / "set/train.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([["text", "kind"], ["one, two", "RedPajamaC4"], ["three", "RedPajamaCommonCrawl"]])
    found = read(source(tmp_path / "set", domain_field="kind"))
    assert [(item.domain, item.text) for item in found] == [("c4", "one, two"), ("cc", "three")]  # type: ignore[union-attr]


def test_a_truncated_file_names_itself(tmp_path: Path) -> None:
    write_jsonl_zst(tmp_path / "set")
    path = tmp_path / "set/train/chunk1/example_train_2.jsonl.zst"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CorruptFileError, match=r"example_train_2\.jsonl\.zst"):
        read(source(tmp_path / "set"))


def test_a_split_that_is_not_there_names_those_that_are(data_set: Path) -> None:
    with pytest.raises(SourceError, match="has no split 'trian': it has train"):
        list_files(source(data_set, split="trian"), Path("archives"))


def test_a_directory_without_data_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot read the data set"):
        list_files(source(tmp_path), Path("archives"))


# --- HF_HUB_OFFLINE=1, which is read when the hub's library is imported -------------------------------


def warm_cache(home: Path, fill: Callable[[Path], None]) -> None:
    """The hub's cache as its client lays it out: files by hash, links by commit, a name for the commit."""
    repository = home / "hub/datasets--cerebras--SlimPajama-627B"
    fill(repository / "files")
    for path in sorted(file for file in (repository / "files").rglob("*") if file.is_file()):
        blob = repository / "blobs" / f"{abs(hash(path)):064d}"
        blob.parent.mkdir(exist_ok=True)
        link = repository / "snapshots" / COMMIT / path.relative_to(repository / "files")
        link.parent.mkdir(parents=True, exist_ok=True)
        path.rename(blob)
        link.symlink_to(os.path.relpath(blob, link.parent))
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(COMMIT)


def run_offline(home: Path, out: Path) -> subprocess.CompletedProcess[str]:
    value = source("cerebras/SlimPajama-627B")
    step = {"source": value, "group": "in", "domains": ["cc", "c4"]}
    filter_step = step | {
        "filter": {"min_bytes": 1, "max_bad_fraction": 0, "dedup": "global"},
        "split": {"validation": 0.1, "test": 0.2},
        "n_shards": 1,
        "shard": 0,
    }
    code = (
        "import sys\n"
        "from seqarch.cli import filter, sources\n"
        f"out, archives = {str(out)!r}, ['--archives', {str(out)!r}]\n"
        f"done = sources.main(['--spec', {json.dumps(step)!r}, *archives, '--out', out + '/in.json'])\n"
        "if done: sys.exit(done)\n"
        "paths = ['--sources', out + '/in.json', '--text', out + '/text', '--out', out + '/part.json']\n"
        f"sys.exit(filter.main(['--spec', {json.dumps(filter_step)!r}, *archives, *paths]))\n"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(home)}
    for name in ("HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_DATASETS_OFFLINE"):
        environment.pop(name, None)
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("fill", [write_jsonl_zst, write_parquet], ids=["jsonl.zst", "parquet"])
def test_offline_with_a_warm_cache(tmp_path: Path, fill: Callable[[Path], None]) -> None:
    warm_cache(tmp_path / "home", fill)
    done = run_offline(tmp_path / "home", tmp_path)
    assert done.returncode == 0, done.stderr
    files = json.loads((tmp_path / "in.json").read_text())["files"]
    assert len(files) == 3
    for entry in files:  # as listed over the network
        assert entry["url"] == f"hf://datasets/cerebras/SlimPajama-627B@{COMMIT}/{entry['name']}"
        assert len(entry["sha256"]) == 64
    part = json.loads((tmp_path / "part.json").read_text())
    assert part["rows"] == 27
    assert part["unknown_domains"] == {"RedPajamaArXiv": 9}


def test_offline_without_a_cache_names_the_alternatives(tmp_path: Path) -> None:
    done = run_offline(tmp_path / "home", tmp_path)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    for alternative in ("HF_HUB_OFFLINE", "hf download", "kind: files", "kind: packages"):
        assert alternative in done.stderr
    assert not (tmp_path / "in.json").exists()
