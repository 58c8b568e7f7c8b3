from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqarch.corpus.deduplicate import deduplicate
from seqarch.corpus.document import Document, text_digest
from seqarch.corpus.errors import CorpusError
from seqarch.corpus.filter import filter_shard
from seqarch.corpus.spec import FilterSpec, SplitSpec
from seqarch.files import read_json

ORDER = ["test", "validation", "train"]


def run(
    folder: Path, shards: list[list[Document]], domains: tuple[str, ...] = ("a", "b"), **options: Any
) -> Any:
    """Filter the shards, then deduplicate; (manifest, dropped doc_ids, all documents in keeping order)."""
    parts = [folder / f"parts/{number}.json" for number in range(len(shards))]
    for number, documents in enumerate(shards):
        filter_shard(
            documents,
            group="in",
            domains=domains,
            options=FilterSpec(),
            shares=SplitSpec(validation=0.2, test=0.3),
            shard=number,
            text_dir=folder,
            part=parts[number],
            provenance={},
        )
    arguments = {"group": "in", "n_shards": len(shards), "across_shards": True, **options}
    deduplicate(parts, text_dir=folder, out=folder / "in.json", provenance={}, **arguments)
    dropped = pq.read_table(folder / "duplicates/in.parquet")
    files = [
        file
        for split in ORDER
        for n in range(len(shards))
        for file in folder.glob(f"{split}/*/{n:05d}.parquet")
    ]
    rows = [row | {"split": file.parts[-3]} for file in sorted(files, key=_keeping) for row in _rows(file)]
    return read_json(folder / "in.json"), dropped, rows


def _keeping(file: Path) -> tuple[int, str, str]:
    return ORDER.index(file.parts[-3]), file.stem, file.parts[-2]


def _rows(file: Path) -> list[dict[str, Any]]:
    return pq.ParquetFile(file).read().to_pylist()


def document(text: str, domain: str, row: int, shard: int, page: str | None = None) -> Document:
    return Document(text, domain, f"file-{shard}", str(row), page)


texts = st.tuples(
    st.sampled_from(["x", "y", "z", "u v", "u  v"]), st.sampled_from("ab"), st.sampled_from([None, "p", "q"])
)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(texts, max_size=6), min_size=1, max_size=3), st.integers(1, 4))
def test_one_of_equal_texts_stays(
    tmp_path_factory: Any, shards: list[list[Any]], partition_rows: int
) -> None:
    made = [
        [document(text, domain, row, number, page) for row, (text, domain, page) in enumerate(shard)]
        for number, shard in enumerate(shards)
    ]
    made[0] += [document(f"only in {domain}", domain, 100 + i, 0) for i, domain in enumerate("ab")]
    manifest, dropped, rows = run(tmp_path_factory.mktemp("text"), made, partition_rows=partition_rows)

    kept: dict[bytes, str] = {}
    for row in rows:  # in keeping order: the first of equals stays
        kept.setdefault(text_digest(row["text"]), row["doc_id"])
    gone = {row["doc_id"] for row in rows} - set(kept.values())
    assert set(dropped["doc_id"].to_pylist()) == gone
    assert len(dropped) == len(gone)

    stay = [row for row in rows if row["doc_id"] not in gone]
    for domain, splits in manifest["domains"].items():
        for split, count in splits.items():
            mine = [row for row in stay if (row["domain"], row["split"]) == (domain, split)]
            assert count["docs"] == len(mine) == sum(count["lengths"].values())
            assert count["bytes"] == sum(row["n_bytes"] for row in mine)
    n_read = sum(map(len, made))
    counts = [count for splits in manifest["domains"].values() for count in splits.values()]
    assert n_read == manifest["rows"] == sum(count["docs"] + count["duplicates"] for count in counts)


def test_no_text_stands_in_two_splits(tmp_path: Path) -> None:
    pages = [document("the same words", "a", i, i % 2, f"page {i}") for i in range(20)]
    manifest, _, rows = run(tmp_path, [pages[0::2], pages[1::2]], ("a",))
    assert {row["split"] for row in rows} == {"train", "validation", "test"}
    assert {split: count["docs"] for split, count in manifest["domains"]["a"].items()} == {
        "train": 0,
        "validation": 0,
        "test": 1,
    }


def test_within_shards_alone_nothing_more_is_dropped(tmp_path: Path) -> None:
    shards = [[document("the same words", "a", 0, number)] for number in range(3)]
    manifest, dropped, _ = run(tmp_path, shards, ("a",), across_shards=False)
    assert len(dropped) == 0
    assert sum(count["docs"] for count in manifest["domains"]["a"].values()) == 3


def test_counts_of_all_shards_are_added(group: Callable[..., Any]) -> None:
    rows = [
        {"text": f"{i} of {name}", "set": name} for name in ("cc", "c4", "books", "wiki") for i in range(10)
    ]
    made = group(
        [*rows, b"{", b"["], domains=("cc", "c4"), domain_field="set", n_shards=3, max_bad_fraction=0.5
    )
    assert (made.run_filter(), made.run_deduplicate()) == (0, 0)
    manifest = made.manifest()
    assert manifest["skipped"] == {"not_json": 2}
    assert manifest["unknown_domains"] == {"books": 10, "wiki": 10}
    for splits in manifest["domains"].values():
        assert sum(count["docs"] for count in splits.values()) == 10
        listed = Counter(file["path"] for count in splits.values() for file in count["files"])
        assert all((made.text / path).is_file() for path in listed)
    assert len(manifest["provenance"]["inputs"]) == 3


def test_equal_runs_give_equal_bytes_and_no_spill_stays(group: Callable[..., Any]) -> None:
    made = group([{"text": f"{i % 30}"} for i in range(100)], n_shards=2)
    made.run_filter()
    made.run_deduplicate()
    outputs = [made.manifest_path, made.text / "duplicates/web.parquet"]
    first = [path.read_bytes() for path in outputs]
    assert made.run_deduplicate() == 0
    assert first == [path.read_bytes() for path in outputs]
    assert list(made.text.glob(".deduplicate-*")) == []


def test_files_without_rows_are_told_from_names_that_are_not_there(
    group: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    made = group([])
    assert made.run_filter() == 0
    assert made.run_deduplicate() == 1
    assert "its files hold no rows" in capsys.readouterr().err


def test_a_domain_without_documents_names_what_the_data_have(
    group: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    made = group(
        [{"text": "a", "set": "arXiv"}, {"text": "b", "set": "c4"}],
        domains=("c4", "arxiv"),
        domain_field="set",
    )
    made.run_filter()
    assert made.run_deduplicate() == 1
    error = capsys.readouterr().err
    assert "'arxiv'" in error
    assert "arXiv" in error
    assert "corpus.source.names" in error
    assert not made.manifest_path.exists()


def test_a_missing_shard_is_an_error(group: Callable[..., Any], tmp_path: Path) -> None:
    made = group([{"text": "a"}])
    made.run_filter()
    with pytest.raises(CorpusError, match="expected the 2 shards"):
        deduplicate(
            [made.part_path()],
            group="web",
            n_shards=2,
            across_shards=True,
            text_dir=made.text,
            out=tmp_path / "out.json",
            provenance={},
        )


def test_the_drop_list_says_where_a_document_stands(tmp_path: Path) -> None:
    shards = [[document("the same words", "a", 7, number)] for number in range(2)]
    _, dropped, rows = run(tmp_path, shards, ("a",))
    [row] = dropped.to_pylist()
    assert row == {
        "split": rows[1]["split"],
        "domain": "a",
        "shard": 1,
        "doc_id": "file-1:7",
        "n_bytes": 14,
        "text_sha256": text_digest("the same words").hex(),
    }
    assert dropped.schema.field("shard").type == pa.int64()
