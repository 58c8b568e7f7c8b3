"""Fixed evaluation sets: the same documents whatever the tokenizer and the shards; nothing trained on."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from seqarch.cli import corpus_table, evaluation_set
from seqarch.files import read_json
from seqarch.tokens.evaluation_build import choose
from seqarch.tokens.evaluation_set import EvaluationSet, EvaluationSetError
from seqarch.tokens.store import TokenSet
from seqarch.tokens.tokenizer import Tokenizer


def make(chain: Any, out: Path, train: bool = True, manifest: Path | None = None, **change: Any) -> int:
    spec = {"domain": "news", "role": "in", "bytes": 3000, "seed": 0} | change
    arguments = ["--manifest", manifest or chain.manifest("test", spec["domain"]), "--out", out]
    arguments += ["--tokenizer", chain.tokenizer]
    arguments += ["--train-manifest", chain.manifest("train", spec["domain"])] if train else []
    return evaluation_set.main(["--spec", json.dumps(spec), *map(str, arguments)])


@pytest.fixture(scope="module")
def made(chain: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sets") / "news.json"
    assert make(chain, out, train=False) == 0
    return out


def test_documents_are_whole_and_without_bos(chain: Any, made: Path, texts: Any) -> None:
    tokenizer, found = Tokenizer.load(chain.tokenizer), EvaluationSet(made)
    known = {text for shard in range(2) for text in texts["test", "news", shard]}
    decoded = [tokenizer.decode(document.ids.astype(np.uint16)) for document in found]
    assert len(set(decoded)) == len(decoded) == len(found) == found.n_docs
    assert set(decoded) <= known
    assert [document.n_bytes for document in found] == [len(text.encode()) for text in decoded]
    assert found.n_bytes == sum(len(text.encode()) for text in decoded)
    assert found.bos_id not in found.ids
    assert found.ids.dtype == np.int64
    assert (
        found.n_tokens == len(found.ids) == found.offsets[-1] == sum(len(document.ids) for document in found)
    )
    assert all(
        np.array_equal(d.ids, found.ids[a:b])
        for d, a, b in zip(found, found.offsets, found.offsets[1:], strict=False)
    )
    assert all(document.roundtrip_ok for document in found)
    assert (found.domain, found.role, found.tokenizer_sha256) == ("news", "in", tokenizer.sha256)


def test_the_budget_is_reached_by_the_last_document(made: Path) -> None:
    found = EvaluationSet(made)
    assert found.n_bytes >= 3000 > found.n_bytes - found[len(found) - 1].n_bytes
    assert found.low_n == (found.n_docs < 30)


def test_long_documents_are_cut_at_a_character(chain: Any, made: Path, texts: Any, tmp_path: Path) -> None:
    """More documents in the same bytes; what is scored is the beginning of each text, for any tokenizer."""
    cap = 37
    assert make(chain, tmp_path / "news.json", train=False, bytes=600, max_doc_bytes=cap) == 0
    found, tokenizer = EvaluationSet(tmp_path / "news.json"), Tokenizer.load(chain.tokenizer)
    known = [text for shard in range(2) for text in texts["test", "news", shard]]
    assert [d.doc_id for d in found][:3] == [d.doc_id for d in EvaluationSet(made)][:3]
    cut = 0
    for document in found:
        text = tokenizer.decode(document.ids.astype(np.uint16))
        assert any(whole.startswith(text) for whole in known)
        assert document.n_bytes == len(text.encode())
        assert document.n_bytes <= cap
        assert document.roundtrip_ok
        cut += document.n_bytes > cap - 4
    assert cut > 5
    assert found.n_bytes == sum(document.n_bytes for document in found)


def test_choosing_is_the_beginning_of_a_fixed_order() -> None:
    """The heap gives what sorting gives; a larger budget extends; seeds differ; copies count once."""
    documents = [(f"{i:064x}", 1 + i * 7 % 50, (i % 3, i)) for i in range(300)]
    ordered = sorted(documents, key=lambda row: hashlib.sha256(f"9 {row[0]}".encode()).digest())
    for budget in (1, 30, 500, 3000, 10**6):
        total, expected = 0, []
        for _, size, place in ordered:
            if total >= budget:
                break
            expected.append(place)
            total += size
        assert choose(iter(documents), budget, 9) == expected
        assert choose(documents[::-1], budget, 9) == expected
        assert choose(documents + [(d, n, (9, 9)) for d, n, _ in documents], budget, 9) == expected
    assert choose(documents, 500, 9) != choose(documents, 500, 8)


def test_no_tokenizer_has_a_part_in_the_set(
    made: Path, new_chain: Callable[..., Any], texts: Any, tmp_path: Path
) -> None:
    other = new_chain(texts).run({"kind": "bpe", "vocab_size": 257})
    assert make(other, tmp_path / "news.json", train=False) == 0
    one, two = EvaluationSet(made), EvaluationSet(tmp_path / "news.json")
    assert one.sha256 == two.sha256
    assert [document.text_sha256 for document in one] == [document.text_sha256 for document in two]
    assert one.tokenizer_sha256 != two.tokenizer_sha256
    assert one.n_tokens < two.n_tokens


def test_seed_and_budget_change_the_set_and_equal_runs_do_not(chain: Any, made: Path, tmp_path: Path) -> None:
    for name, change in {"same": {}, "seed": {"seed": 1}, "bytes": {"bytes": 6000}}.items():
        assert make(chain, tmp_path / name / "news.json", train=False, **change) == 0
    for ending in (".json", ".bin", ".docs.parquet"):
        same = tmp_path / "same" / f"news{ending}"
        assert same.read_bytes() == made.with_name(f"news{ending}").read_bytes()
    sets = [EvaluationSet(path) for path in (made, tmp_path / "seed/news.json", tmp_path / "bytes/news.json")]
    assert len({each.sha256 for each in sets}) == 3
    texts = [[document.text_sha256 for document in each] for each in sets]
    assert texts[2][: len(texts[0])] == texts[0]


def test_documents_of_the_training_split_are_refused(
    chain: Any, new_chain: Callable[..., Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    texts = {(s, "news", 0): [f"{s} {i} some words here" for i in range(50)] for s in ("train", "test")}
    clean = new_chain(texts, name="clean").run({"kind": "bpe", "vocab_size": 260})
    assert make(clean, tmp_path / "news.json", bytes=10**6) == 0
    assert read_json(tmp_path / "news.json")["train_overlap_checked"] is True
    texts["train", "news", 0][7] = texts["test", "news", 0][30]
    leaky = new_chain(texts, name="leaky").run({"kind": "bpe", "vocab_size": 260})
    assert make(leaky, tmp_path / "leaky.json", bytes=10**6) == 1
    message = capfd.readouterr().err
    assert "1 test documents are also in the training split" in message
    assert "news/0.jsonl:7" in message
    assert not (tmp_path / "leaky.json").exists()


def test_wrong_manifests(chain: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert make(chain, tmp_path / "x.json", manifest=chain.manifest("test", "code")) == 1
    assert "is test of 'code', expected test of 'news'" in capfd.readouterr().err
    assert make(chain, tmp_path / "x.json", manifest=chain.manifest("train", "news")) == 1
    assert "is train of 'news', expected test" in capfd.readouterr().err


def test_a_domain_without_test_documents(
    new_chain: Callable[..., Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    chain = new_chain({("train", "news", 0): ["words and words"] * 3}).run({"kind": "bpe", "vocab_size": 258})
    assert make(chain, tmp_path / "x.json", train=False) == 1
    assert "raise corpus.split.test" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["news.bin", "news.docs.parquet"])
def test_damage_is_found_on_opening(chain: Any, tmp_path: Path, name: str) -> None:
    out = tmp_path / "news.json"
    assert make(chain, out, train=False) == 0
    file = tmp_path / name
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(EvaluationSetError, match="truncated or changed"):
        EvaluationSet(out)
    file.unlink()
    with pytest.raises(EvaluationSetError, match="is missing"):
        EvaluationSet(out)


def test_something_else_is_no_set(chain: Any, tmp_path: Path) -> None:
    for path in (chain.manifest("test", "news"), tmp_path / "nothing.json"):
        with pytest.raises(EvaluationSetError, match="is no evaluation set"):
            EvaluationSet(path)


# --- the table of the corpus --------------------------------------------------------------------------


def test_corpus_table(chain: Any, texts: Any, tmp_path: Path) -> None:
    spec = {"corpus": "small", "domains": {"news": "in", "code": "out"}}
    manifests = [chain.manifest(s, d) for s in ("test", "train", "validation") for d in ("code", "news")]
    arguments = [
        "--text-manifests",
        chain.text_manifest,
        "--token-manifests",
        *manifests,
        "--out",
        tmp_path / "corpus",
    ]
    assert corpus_table.main(["--spec", json.dumps(spec), *map(str, arguments)]) == 0
    rows = pq.read_table(tmp_path / "corpus.parquet").to_pylist()
    assert [(row["domain"], row["role"], row["split"]) for row in rows] == [
        (domain, role, split)
        for domain, role in (("news", "in"), ("code", "out"))
        for split in ("train", "validation", "test")
    ]
    row = rows[4]
    documents = [text for shard in range(2) for text in texts["validation", "code", shard]]
    sizes = sorted(len(text.encode()) for text in documents)
    assert (row["n_docs"], row["n_bytes"], row["n_duplicates"]) == (len(documents), sum(sizes), 0)
    assert (row["doc_bytes_min"], row["doc_bytes_max"]) == (sizes[0], sizes[-1])
    assert row["doc_bytes_p50"] == sizes[(len(sizes) - 1) // 2]
    assert row["n_tokens"] == TokenSet(chain.manifest("validation", "code")).n_tokens
    assert row["low_n"] is False
    assert len((tmp_path / "corpus.csv").read_text().splitlines()) == 7


def test_corpus_table_counts_duplicates_and_names_what_is_missing(
    new_chain: Callable[..., Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    texts = {("train", "news", 0): ["some words here", "some words here"]}
    chain = new_chain(texts, [("train", "news", 0, "news/0.jsonl:1")]).run({"kind": "bpe", "vocab_size": 258})
    manifests = [chain.manifest(split, "news") for split in ("train", "validation", "test")]
    arguments = ["--text-manifests", chain.text_manifest, "--out", tmp_path / "corpus", "--token-manifests"]
    spec = json.dumps({"corpus": "small", "domains": {"news": "in"}})
    assert corpus_table.main(["--spec", spec, *map(str, [*arguments, *manifests])]) == 0
    train, validation, _ = (tmp_path / "corpus.csv").read_text().splitlines()[1:]
    assert train.startswith('"small","news","in","train",1,1,15,')
    assert validation.startswith('"small","news","in","validation",0,0,0,0,0,true,,')
    assert corpus_table.main(["--spec", spec, *map(str, [*arguments, *manifests[1:]])]) == 1
    assert "train of 'news': expected a manifest" in capfd.readouterr().err
