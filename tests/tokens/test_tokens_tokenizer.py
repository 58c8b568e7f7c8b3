"""The tokenizer: exact round trips, BOS that no text reaches, training that repeats to the byte."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers, pre_tokenizers

from seqarch.files import read_json, sha256_file
from seqarch.schema import parse
from seqarch.tokens.spec import TokenizerStep
from seqarch.tokens.tokenizer import BOS, Tokenizer, TokenizerError, byte_alphabet

BPE = {"kind": "bpe", "vocab_size": 300}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
PIECES = st.lists(st.one_of(TEXT, st.just(BOS), st.just("\r\n"), st.just("👩‍👩‍👧")), max_size=6).map("".join)


@pytest.fixture(scope="module")
def trained(chain: Any) -> Tokenizer:
    return Tokenizer.load(chain.tokenizer)


@given(texts=st.lists(PIECES, min_size=1, max_size=4))
@settings(max_examples=80, deadline=None)
def test_round_trip_without_bos(trained: Tokenizer, texts: list[str]) -> None:
    for text, ids in zip(texts, trained.encode_batch(texts), strict=True):
        assert ids.dtype == np.uint16
        assert trained.bos_id not in ids
        assert trained.decode(ids) == text
        assert trained.roundtrip(text.encode(), ids)
        assert not trained.roundtrip(text.encode() + b"!", ids)


@given(ids=st.lists(st.integers(0, 299), max_size=20))
@settings(max_examples=80, deadline=None)
def test_decoding_is_the_library_s(trained: Tokenizer, ids: list[int]) -> None:
    """Also of ids that make no valid UTF-8, and of BOS."""
    library = Library.from_file(str(trained.path))
    assert trained.decode(np.array(ids, dtype=np.uint16)) == library.decode(ids, skip_special_tokens=False)


def test_encoding_is_the_library_s(trained: Tokenizer, texts: Any) -> None:
    documents = [text for text in texts["test", "code", 0] if BOS not in text]
    library = Library.from_file(str(trained.path))
    expected = [encoding.ids for encoding in library.encode_batch(documents, add_special_tokens=False)]
    assert [ids.tolist() for ids in trained.encode_batch(documents)] == expected
    assert trained.encode_batch([]) == []


def test_bos_as_text_is_its_characters(trained: Tokenizer) -> None:
    """The library itself would make BOS of it: this is what must not happen."""
    assert trained.bos_id in Library.from_file(str(trained.path)).encode(f"a{BOS}").ids
    (ids,) = trained.encode_batch([f"a{BOS}"])
    assert len(ids) > 2
    assert trained.bos_id not in ids


def test_the_alphabet_is_the_library_s() -> None:
    assert sorted(byte_alphabet()) == sorted(pre_tokenizers.ByteLevel.alphabet())


def test_training_repeats_to_the_byte(new_chain: Callable[..., Any], texts: Any) -> None:
    """In another process with another number of threads and another hash seed."""
    one, two = new_chain(texts, name="one"), new_chain(texts, name="two")
    assert one.make_tokenizer(BPE) == 0
    spec = json.dumps({"tokenizer": BPE, "domains": ["news"]})
    command = [sys.executable, "-m", "seqarch.cli.tokenizer", "--spec", spec, "--text", str(two.text)]
    command += [
        "--manifests",
        str(two.text_manifest),
        "--out",
        str(two.tokenizer.with_name("tokenizer.json")),
    ]
    environment = os.environ | {"RAYON_NUM_THREADS": "3", "PYTHONHASHSEED": "7"}
    subprocess.run(command, env=environment, check=True)
    for name in ("tokenizer.json", "manifest.json"):
        assert one.tokenizer.with_name(name).read_bytes() == two.tokenizer.with_name(name).read_bytes()


def test_the_manifest_says_what_it_is(chain: Any) -> None:
    manifest = read_json(chain.tokenizer)
    assert manifest["sha256"] == sha256_file(chain.tokenizer.with_name("tokenizer.json"))
    assert (manifest["vocab_size"], manifest["bos"], manifest["bos_id"]) == (300, BOS, 0)
    assert manifest["domains"] == ["news"]
    assert manifest["provenance"]["step"] == "tokenizer"


def test_only_training_text_of_the_named_domains_counts(new_chain: Callable[..., Any], texts: Any) -> None:
    changed = dict(texts)
    changed["test", "news", 0] = ["zyxw " * 200]
    changed["train", "code", 1] = ["zyxw " * 200]
    one, two = new_chain(texts, name="one"), new_chain(changed, name="two")
    assert one.make_tokenizer(BPE) == two.make_tokenizer(BPE) == 0
    files = [each.tokenizer.with_name("tokenizer.json").read_bytes() for each in (one, two)]
    assert files[0] == files[1]


def test_max_bytes_takes_from_every_shard(new_chain: Callable[..., Any]) -> None:
    texts = {
        ("train", "news", shard): [f"{word} " * 40] * 30 for shard, word in enumerate(["alpha", "omega"])
    }
    chain = new_chain(texts)
    assert chain.make_tokenizer({"kind": "bpe", "vocab_size": 262, "max_bytes": 2000}) == 0
    vocabulary = Library.from_file(str(chain.tokenizer.with_name("tokenizer.json"))).get_vocab()
    assert {"al", "me"} & set(vocabulary)
    assert any("a" in token and token.isascii() and len(token) > 1 for token in vocabulary)


def test_too_little_text_is_an_error(
    new_chain: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    chain = new_chain({("train", "news", 0): ["a b c"]})
    assert chain.make_tokenizer(BPE) == 1
    assert "lower tokenizer.vocab_size" in capfd.readouterr().err
    assert not list(chain.folder.glob("tokenizer/*"))


def test_unknown_domain_and_missing_file(
    new_chain: Callable[..., Any], texts: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    chain = new_chain(texts)
    assert chain.make_tokenizer(BPE, domains=["sports"]) == 1
    assert "sports" in capfd.readouterr().err
    (chain.text / "train" / "news" / "00001.parquet").unlink()
    assert chain.make_tokenizer(BPE) == 1
    assert "00001.parquet is missing" in capfd.readouterr().err


def test_a_changed_tokenizer_is_refused(new_chain: Callable[..., Any], texts: Any) -> None:
    chain = new_chain(texts)
    assert chain.make_tokenizer(BPE) == 0
    file = chain.tokenizer.with_name("tokenizer.json")
    file.write_text(file.read_text() + " ")
    with pytest.raises(TokenizerError, match="make the tokenizer again"):
        Tokenizer.load(chain.tokenizer)
    with pytest.raises(TokenizerError, match="no tokenizer manifest"):
        Tokenizer.load(file)


# --- pretrained ---------------------------------------------------------------------------------------


def pretrained(path: Path, special: bool, lossy: bool = False) -> Path:
    """A byte-level tokenizer of somebody else: BOS at the end of the vocabulary, ByteLevel without merges."""
    vocabulary = {character: index for index, character in enumerate(byte_alphabet())}
    library = Library(models.BPE(vocab=vocabulary, merges=[]))
    if lossy:
        library.normalizer = normalizers.Lowercase()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    if special:
        library.add_special_tokens(["</s>"])
    else:
        library.add_tokens(["</s>"])
    library.enable_truncation(3)
    library.enable_padding(length=7)
    library.save(str(path))
    return path


@pytest.mark.parametrize("special", [True, False])
def test_pretrained_tokenizer(
    new_chain: Callable[..., Any], texts: Any, tmp_path: Path, special: bool
) -> None:
    """Taken over byte for byte; its truncation and padding are off; its BOS is not made of text either."""
    path = pretrained(tmp_path / "tokenizer.json", special)
    options = {"kind": "pretrained", "path": str(tmp_path), "vocab_size": 257, "bos": "</s>"}
    chain = new_chain(texts)
    assert chain.make_tokenizer(options | {"sha256": sha256_file(path)}) == 0
    assert chain.tokenizer.with_name("tokenizer.json").read_bytes() == path.read_bytes()
    tokenizer = Tokenizer.load(chain.tokenizer)
    (ids,) = tokenizer.encode_batch(["a</s>bcdefgh"])
    assert (tokenizer.bos_id, len(ids), 256 in ids) == (256, 12, False)
    assert tokenizer.decode(ids) == "a</s>bcdefgh"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 300}, "write 257, not 300"),
        ({"bos": "<s>"}, "no entry '<s>'"),
        ({"sha256": "0" * 64}, "expected 0000"),
        ({"path": "nowhere"}, "no file nowhere"),
    ],
)
def test_a_pretrained_tokenizer_that_is_not_as_described(
    new_chain: Callable[..., Any],
    texts: Any,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    change: dict[str, Any],
    message: str,
) -> None:
    path = pretrained(tmp_path / "tokenizer.json", special=True)
    options = {"kind": "pretrained", "path": str(path), "vocab_size": 257, "bos": "</s>"}
    assert new_chain(texts).make_tokenizer(options | change) == 1
    assert message in capfd.readouterr().err


def test_a_lossy_tokenizer_is_counted(new_chain: Callable[..., Any], tmp_path: Path) -> None:
    path = pretrained(tmp_path / "tokenizer.json", special=True, lossy=True)
    options = {"kind": "pretrained", "path": str(path), "vocab_size": 257, "bos": "</s>"}
    chain = new_chain({("train", "news", 0): ["small", "Capital", "also small"]}).run(options)
    assert read_json(chain.manifest("train", "news"))["n_roundtrip_fail"] == 1


def test_not_byte_level_decodes_through_the_library(tmp_path: Path) -> None:
    library = Library(models.WordLevel({"<s>": 0, "a": 1, "b": 2, "?": 3}, unk_token="?"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.add_special_tokens(["<s>"])
    library.save(str(tmp_path / "words.json"))
    tokenizer = Tokenizer(tmp_path / "words.json", "<s>")
    known, unknown = tokenizer.encode_batch(["a b", "a c"])
    assert tokenizer.decode(known) == "a b"
    assert tokenizer.roundtrip(b"a b", known)
    assert not tokenizer.roundtrip(b"a c", unknown)


def test_options_are_closed() -> None:
    with pytest.raises(Exception, match="did you mean 'vocab_size'"):
        parse(TokenizerStep, {"tokenizer": {"kind": "bpe", "vocabsize": 300}, "domains": ["news"]})
    with pytest.raises(Exception, match="greater than or equal to 257"):
        parse(TokenizerStep, {"tokenizer": {"kind": "bpe", "vocab_size": 256}, "domains": ["news"]})
