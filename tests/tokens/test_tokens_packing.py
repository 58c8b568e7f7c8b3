"""Packing: what is on disk, byte for byte; drop lists; dtypes; damage."""

import json
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqarch.files import read_json, read_parquet_provenance, sha256_file
from seqarch.tokens import text
from seqarch.tokens.store import TokenSet, TokenStoreError, dtype_name
from seqarch.tokens.tokenizer import Tokenizer

BPE = {"kind": "bpe", "vocab_size": 300}


def test_every_document_is_there_with_bos_first(chain: Any, texts: Any) -> None:
    tokenizer = Tokenizer.load(chain.tokenizer)
    for split in ("train", "validation", "test"):
        for domain in ("news", "code"):
            tokens = TokenSet(chain.manifest(split, domain), verify=True)
            assert [file.path.name for file in tokens.files] == ["00000.bin", "00001.bin"]
            for shard, file in enumerate(tokens.files):
                documents = texts[split, domain, shard]
                pieces = [file.ids[a:b] for a, b in zip(file.offsets[:-1], file.offsets[1:], strict=True)]
                assert [tokenizer.decode(piece[1:]) for piece in pieces] == documents
                assert all(piece[0] == tokenizer.bos_id for piece in pieces)
                assert (file.ids == tokenizer.bos_id).sum() == len(documents)


def test_documents_table_and_counts(chain: Any, texts: Any) -> None:
    manifest = read_json(chain.manifest("test", "code"))
    documents = [text for shard in range(2) for text in texts["test", "code", shard]]
    folder = chain.manifest("test", "code").parent
    docs = pa.concat_tables(pq.read_table(folder / f"{shard:05d}.docs.parquet") for shard in range(2))
    assert docs.column("n_bytes").to_pylist() == [len(text.encode("utf-8")) for text in documents]
    assert all(docs.column("roundtrip_ok").to_pylist())
    assert manifest["n_docs"] == len(documents) == docs.num_rows
    assert manifest["n_tokens"] == sum(docs.column("n_tokens").to_pylist())
    assert manifest["n_bytes"] == sum(docs.column("n_bytes").to_pylist())
    assert manifest["n_roundtrip_fail"] == 0
    assert (manifest["dtype"], manifest["vocab_size"], manifest["bos_id"]) == ("uint16", 300, 0)
    for entry in manifest["files"]:
        path = folder / entry["name"]
        assert path.stat().st_size == 2 * entry["n_tokens"] == entry["bytes"]
        assert entry["idx_sha256"] == sha256_file(path.with_suffix(".idx"))
        assert entry["docs_sha256"] == sha256_file(path.with_suffix(".docs.parquet"))
        assert read_parquet_provenance(path.with_suffix(".docs.parquet"))["step"] == "tokenize"


def test_equal_runs_give_equal_bytes(chain: Any, new_chain: Callable[..., Any], texts: Any) -> None:
    again = new_chain(texts).run()
    files = sorted(path.relative_to(chain.folder) for path in chain.folder.rglob("*") if path.is_file())
    assert files == sorted(
        path.relative_to(again.folder) for path in again.folder.rglob("*") if path.is_file()
    )
    assert [
        file for file in files if (chain.folder / file).read_bytes() != (again.folder / file).read_bytes()
    ] == []


def test_batches_leave_no_trace(
    chain: Any, new_chain: Callable[..., Any], texts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One document at a time gives the files of one batch."""
    monkeypatch.setattr(text.read_batches, "__defaults__", (1,))
    monkeypatch.setattr(text, "READ_ROWS", 1)
    again = new_chain(texts).run()
    for shard in ("00000", "00001"):
        for ending in (".bin", ".idx", ".docs.parquet"):
            path = Path("tokens", "train", "news", shard + ending)
            assert (chain.folder / path).read_bytes() == (again.folder / path).read_bytes()


def test_duplicates_are_left_out(new_chain: Callable[..., Any], texts: Any) -> None:
    duplicates = [("train", "news", 0, "news/0.jsonl:3"), ("train", "news", 1, "news/1.jsonl:0")]
    chain = new_chain(texts, duplicates).run()
    tokenizer = Tokenizer.load(chain.tokenizer)
    tokens = TokenSet(chain.manifest("train", "news"))
    found = [
        tokenizer.decode(file.ids[a + 1 : b])
        for file in tokens.files
        for a, b in zip(file.offsets[:-1], file.offsets[1:], strict=True)
    ]
    kept = texts["train", "news", 0][:3] + texts["train", "news", 0][4:] + texts["train", "news", 1][1:]
    assert found == kept
    assert TokenSet(chain.manifest("validation", "news")).n_docs == len(texts["validation", "news", 0]) * 2


def test_shards_without_documents(new_chain: Callable[..., Any]) -> None:
    """A domain that has no document in a shard or split, or only duplicates, is empty and not an error."""
    texts = {("train", "news", 0): ["some text of the news " * 9], ("train", "code", 1): ["copy"]}
    chain = new_chain(texts, [("train", "code", 1, "code/1.jsonl:0")]).run({"kind": "bpe", "vocab_size": 260})
    assert TokenSet(chain.manifest("train", "news")).n_docs == 1
    for split, domain in (("train", "code"), ("test", "code"), ("validation", "news")):
        tokens = TokenSet(chain.manifest(split, domain))
        assert (tokens.n_tokens, tokens.n_docs, tokens.files) == (0, 0, [])


@pytest.mark.parametrize(
    ("vocab_size", "name"), [(2, "uint16"), (2**16, "uint16"), (2**16 + 1, "uint32"), (2**32, "uint32")]
)
def test_dtype(vocab_size: int, name: str) -> None:
    assert dtype_name(vocab_size) == name


@pytest.mark.parametrize("vocab_size", [0, 2**32 + 1])
def test_no_dtype(vocab_size: int) -> None:
    with pytest.raises(TokenStoreError, match="expected 1 to"):
        dtype_name(vocab_size)


@pytest.mark.parametrize(("vocab_size", "size"), [(2**16, 2), (2**16 + 1, 4)])
def test_the_largest_id_survives(
    new_chain: Callable[..., Any], tmp_path: Path, vocab_size: int, size: int
) -> None:
    """A vocabulary at the boundary, with BOS as its last entry."""
    from tokenizers import Tokenizer as Library
    from tokenizers import models, pre_tokenizers

    words = {f"w{index}": index for index in range(vocab_size - 1)}
    library = Library(models.WordLevel(words, unk_token="w0"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.add_special_tokens(["<s>"])
    library.save(str(tmp_path / "words.json"))
    options = {
        "kind": "pretrained",
        "path": str(tmp_path / "words.json"),
        "vocab_size": vocab_size,
        "bos": "<s>",
    }
    chain = new_chain({("train", "news", 0): [f"w1 w{vocab_size - 2}", "w7"]}).run(options)
    (file,) = TokenSet(chain.manifest("train", "news")).files
    assert file.ids.tolist() == [vocab_size - 1, 1, vocab_size - 2, vocab_size - 1, 7]
    assert file.path.stat().st_size == 5 * size


# --- damage -------------------------------------------------------------------------------------------


@pytest.fixture
def broken(new_chain: Callable[..., Any]) -> Any:
    """A chain to be damaged."""
    return new_chain({("train", "news", 0): ["one two three", "four"]}).run(
        {"kind": "bpe", "vocab_size": 258}
    )


def damage(chain: Any, name: str, change: Callable[[bytes], bytes]) -> Path:
    path = chain.manifest("train", "news").parent / name
    path.write_bytes(change(path.read_bytes()))
    return chain.manifest("train", "news")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("00000.bin", lambda data: data[:-2], "00000.bin is truncated: .* expected .* ids of uint16"),
        ("00000.bin", lambda data: data + b"\0\0", "00000.bin is too long"),
        ("00000.bin", lambda data: b"PK" + data[2:], "begins with id 19280, expected BOS"),
        ("00000.idx", lambda data: data[:-8], "00000.idx is truncated"),
        ("manifest.json", lambda data: data[:40], "no manifest of a token set"),
        ("manifest.json", lambda data: b"[1, 2]", "no manifest of a token set"),
        (
            "manifest.json",
            lambda data: data.replace(b'"n_tokens"', b'"tokens"'),
            "no manifest of a token set",
        ),
    ],
)
def test_damage_is_named_on_opening(
    broken: Any, name: str, change: Callable[[bytes], bytes], message: str
) -> None:
    manifest = damage(broken, name, change)
    with pytest.raises(TokenStoreError, match=message):
        TokenSet(manifest)


def test_a_missing_file_is_named(broken: Any) -> None:
    manifest = broken.manifest("train", "news")
    (manifest.parent / "00000.bin").unlink()
    with pytest.raises(TokenStoreError, match=r"00000\.bin is missing"):
        TokenSet(manifest)


def test_changed_contents_are_found_when_asked_for(broken: Any) -> None:
    manifest = damage(broken, "00000.bin", lambda data: data[:-2] + b"\1\1")
    TokenSet(manifest)
    with pytest.raises(TokenStoreError, match="sha256"):
        TokenSet(manifest, verify=True)


def test_a_wrong_index_is_found_when_read(broken: Any) -> None:
    manifest = damage(broken, "00000.idx", lambda data: data[:8] + data[8:16][::-1] + data[16:])
    with pytest.raises(TokenStoreError, match="does not index"):
        _ = TokenSet(manifest).files[0].offsets


def test_shards_of_two_tokenizers_are_not_merged(broken: Any, capfd: pytest.CaptureFixture[str]) -> None:
    part = read_json(broken.part(0))
    broken.part(1).write_text(json.dumps(part | {"shard": 1, "tokenizer_sha256": "0" * 64, "files": []}))
    broken.shards = [0, 1]
    assert broken.merge() == 1
    assert "different tokenizers" in capfd.readouterr().err


@pytest.mark.parametrize("keep", [0, 100])
def test_truncated_text_leaves_nothing(broken: Any, keep: int, capfd: pytest.CaptureFixture[str]) -> None:
    file = broken.text / "train" / "news" / "00000.parquet"
    file.write_bytes(file.read_bytes()[:keep])
    before = sorted(broken.tokens.rglob("*"))
    assert broken.tokenize(0, {"kind": "bpe", "vocab_size": 258}) == 1
    assert "00000.parquet is no Parquet file, or truncated" in capfd.readouterr().err
    assert sorted(broken.tokens.rglob("*")) == before


def test_a_killed_run_leaves_nothing_that_stays(
    chain: Any, new_chain: Callable[..., Any], texts: Any
) -> None:
    """SIGKILL in the middle of a file; the next run gives what an undisturbed one gives."""
    again = new_chain(texts).run()
    folder = again.manifest("train", "code").parent
    (folder / "00000.bin").unlink()
    script = """
        import os, signal, sys
        from seqarch.cli.tokenize import main
        from seqarch.tokens import packing
        def killed(*_):
            os.kill(os.getpid(), signal.SIGKILL)
        packing._documents = killed
        main(sys.argv[1:])
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script), *again.tokenize_arguments(0, BPE)])
    assert done.returncode == -signal.SIGKILL
    assert [path.name for path in folder.glob(".00000.*")]
    assert again.tokenize(0, BPE) == 0
    names = sorted(path.name for path in folder.iterdir())
    assert names == sorted(path.name for path in chain.manifest("train", "code").parent.iterdir())
    assert (folder / "00000.bin").read_bytes() == (chain.tokens / "train/code/00000.bin").read_bytes()


def test_a_full_disk_is_named(
    new_chain: Callable[..., Any], texts: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    chain = new_chain(texts)
    assert chain.make_tokenizer(BPE) == 0
    chain.tokens = tmp_path / "small"
    chain.tokens.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(chain.tokens)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small tmpfs takes root and the right to mount")
    try:
        assert chain.tokenize(0, BPE) == 1
        left = [path.name for path in chain.tokens.rglob("*") if path.is_file() and path.name.startswith(".")]
        assert left == []
        assert not chain.part(0).exists()
    finally:
        subprocess.run(["umount", str(chain.tokens)], check=True)
    assert "No space left on device" in capfd.readouterr().err


def test_memory_does_not_grow_with_the_shard(new_chain: Callable[..., Any]) -> None:
    """Peak memory on 0.5 MB and on 4.5 MB of text in batches of 0.1 MB, each in a process of its own.

    Encoding takes some hundred bytes a byte of text: to hold what 4 MB more need would show as hundreds.
    """
    script = """
        import sys
        from seqarch.cli.tokenize import main
        from seqarch.tokens import text
        text.read_batches.__defaults__ = (100_000,)
        assert main(sys.argv[1:]) == 0
        # The peak of this program: ru_maxrss would start at what the process that started it held.
        print(next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM")))
    """
    peaks = []
    document = "The quick brown fox jumps over the lazy dog; 0123456789. " * 40
    for n_bytes in (500_000, 4_500_000):
        texts = {("train", "news", 0): [document] * (n_bytes // len(document))}
        chain = new_chain(texts, name=str(n_bytes))
        assert chain.make_tokenizer({**BPE, "max_bytes": 100_000}) == 0
        spec = json.dumps({"group": "all", "shard": 0, "tokenizer": BPE, "domains": ["news"]})
        command = [sys.executable, "-c", textwrap.dedent(script), "--spec", spec, "--text", chain.text]
        command += ["--manifest", chain.text_manifest, "--tokenizer", chain.tokenizer]
        command += ["--tokens", chain.tokens, "--out", chain.part(0)]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout) / 1024)
        assert (chain.tokens / "train" / "news" / "00000.bin").stat().st_size > n_bytes / 10
    assert peaks[1] - peaks[0] < 40, f"peak memory {peaks} MB"
