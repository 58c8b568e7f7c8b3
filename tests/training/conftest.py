"""A tiny real run: bytes of a real text, a decoder of a few thousand parameters, WSD with two budgets."""

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqarch.architecture import resolve
from seqarch.files import write_json
from seqarch.provenance import entry_modules, fingerprint, record
from seqarch.tokens.packing import merge_shards, pack
from seqarch.tokens.spec import BpeTokenizer
from seqarch.tokens.text import TextFile
from seqarch.tokens.training import train_bpe
from seqarch.training.data import name_manifests
from seqarch.training.job import Job
from seqarch.training.spec import RunSpec

VOCAB, T = 257, 16  # a byte a token, and BOS
TEXT = (Path(__file__).parents[2] / "LICENSE").read_text(encoding="utf-8")


@functools.cache
def code(mixer: str) -> str:
    """The fingerprint that the command finds for itself."""
    return fingerprint(entry_modules("train", [mixer]))


def write_text(path: Path, documents: list[str]) -> TextFile:
    """One shard of filtered text, as the corpus stage leaves it."""
    path.parent.mkdir(parents=True)
    data = [document.encode() for document in documents]
    table = {
        "doc_id": [f"{path.parent.name}-{i}" for i in range(len(data))],
        "text": documents,
        "n_bytes": [len(each) for each in data],
        "text_sha256": [hashlib.sha256(each).hexdigest() for each in data],
    }
    pq.write_table(pa.table(table), path)
    return TextFile(path.parent.name, path.parent.parent.name, path, sum(map(len, data)), None)


@pytest.fixture(scope="session")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Train and validation manifests of two in-domain domains."""
    folder = tmp_path_factory.mktemp("tokens")
    paragraphs = TEXT.split("\n\n")
    halves = {"terms": paragraphs[: len(paragraphs) // 2], "conditions": paragraphs[len(paragraphs) // 2 :]}
    files = [
        write_text(folder / "text" / split / domain / "00000.parquet", documents[part])
        for domain, documents in halves.items()
        for split, part in (("train", slice(3, None)), ("validation", slice(0, 3)))
    ]
    tokenizer = train_bpe(BpeTokenizer(kind="bpe", vocab_size=VOCAB), files, folder / "tokenizer.json")
    manifests = []
    for file in files:
        target = folder / file.split / file.domain
        entry = {"domain": file.domain, "split": file.split}
        entry |= pack(file, target, tokenizer, {}, lambda steps=1, status="": None)
        part = {
            "dtype": tokenizer.dtype_name,
            "vocab_size": tokenizer.vocab_size,
            "bos_id": tokenizer.bos_id,
            "tokenizer_sha256": tokenizer.sha256,
            "files": [entry],
        }
        write_json(target / "part.json", part)
        manifest = merge_shards([target / "part.json"], file.domain, file.split) | {"provenance": {}}
        write_json(target / "manifest.json", manifest)
        manifests.append(target / "manifest.json")
    return manifests


@pytest.fixture(scope="session")
def make_spec() -> Callable[..., dict[str, Any]]:
    """The spec of a run as the workflow hands it over; keywords replace options of `train`."""

    def make(mixer: str = "attention", seed: int = 0, n_layers: int = 1, **train: Any) -> dict[str, Any]:
        options: dict[str, Any] = {
            "sequence_length": T,
            "batch_tokens": 4 * T,
            "budgets": [10 * 4 * T, 20 * 4 * T],  # 10 and 20 steps; decays of 3 and 6
            "schedule": {"kind": "wsd", "warmup_fraction": 0.1, "decay_fraction": 0.3},
            "learning_rate": 1e-2,
            "validation": {"tokens": 8 * T, "every_tokens": 5 * 4 * T},
        }
        spec = {
            "architecture": f"all-{mixer}",
            "setting": "limited",
            "seed": seed,
            "model": resolve("m", {"m": {"mixer": mixer}}, {"d_model": 16, "n_layers": n_layers}, VOCAB, T),
            "data": {
                "kind": "tokens",
                "weights": {"terms": None, "conditions": None},
                "id_domains": ["terms", "conditions"],
            },
            "train": options | train,
        }
        return RunSpec.model_validate(spec).model_dump(mode="json")

    return make


@pytest.fixture
def make_job(
    tmp_path: Path, manifests: list[Path], make_spec: Callable[..., dict[str, Any]]
) -> Callable[..., Job]:
    """A job that works in tmp_path/work and ends in tmp_path/<name>; keywords as in `make_spec`."""

    def make(name: str = "run", save_seconds: float = 300.0, mixer: str = "attention", **options: Any) -> Job:
        spec = make_spec(mixer, **options)
        named = name_manifests(manifests)
        return Job(
            spec=RunSpec.model_validate(spec),
            manifests=named,
            work=tmp_path / "work",
            run=tmp_path / name,
            record=record("train", spec, code(mixer), named, packages=("torch",)),
            device="cpu",
            save_seconds=save_seconds,
        )

    return make
