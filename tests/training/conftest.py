"""A tiny real run: bytes of a real text, a decoder of a few thousand parameters, WSD with two budgets."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqarch.architecture import resolve
from seqarch.provenance import record
from seqarch.training.data import name_manifests
from seqarch.training.loop import Job
from seqarch.training.spec import RunSpec

BOS, VOCAB, T = 256, 257, 16
TEXT = (Path(__file__).parents[2] / "LICENSE").read_text(encoding="utf-8")


def write_tokens(folder: Path, domain: str, split: str, documents: list[str]) -> Path:
    """A token set of one shard, a byte a token."""
    ids, offsets = [], [0]
    for document in documents:
        ids += [BOS, *document.encode()]
        offsets.append(len(ids))
    folder = folder / split / domain
    folder.mkdir(parents=True)
    data = np.array(ids, dtype="<u2").tobytes()
    (folder / "00000.bin").write_bytes(data)
    np.array(offsets, dtype="<i8").tofile(folder / "00000.idx")
    sizes = {"n_tokens": len(ids), "n_docs": len(documents)}
    manifest = {
        "domain": domain,
        "split": split,
        "dtype": "uint16",
        "vocab_size": VOCAB,
        "bos_id": BOS,
        "tokenizer_sha256": hashlib.sha256(b"bytes").hexdigest(),
        "n_bytes": len(ids) - len(documents),
        **sizes,
        "files": [{"name": "00000.bin", "sha256": hashlib.sha256(data).hexdigest(), **sizes}],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder / "manifest.json"


@pytest.fixture(scope="session")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Train and validation manifests of two in-domain domains."""
    folder = tmp_path_factory.mktemp("tokens")
    paragraphs = TEXT.split("\n\n")
    halves = {"terms": paragraphs[: len(paragraphs) // 2], "conditions": paragraphs[len(paragraphs) // 2 :]}
    paths = []
    for domain, documents in halves.items():
        paths.append(write_tokens(folder, domain, "train", documents[3:]))
        paths.append(write_tokens(folder, domain, "validation", documents[:3]))
    return paths


@pytest.fixture(scope="session")
def make_spec() -> Callable[..., dict[str, Any]]:
    """The spec of a run as the workflow hands it over; keywords replace options of `train`."""

    def make(architecture: str = "transformer", seed: int = 0, **train: Any) -> dict[str, Any]:
        options: dict[str, Any] = {
            "sequence_length": T,
            "batch_tokens": 4 * T,
            "budgets": [10 * 4 * T, 20 * 4 * T],  # 10 and 20 steps; decays of 3 and 6
            "schedule": {"kind": "wsd", "warmup_fraction": 0.1, "decay_fraction": 0.3},
            "learning_rate": 1e-2,
            "validation": {"tokens": 8 * T, "every_tokens": 5 * 4 * T},
        }
        entries = {"transformer": {"mixer": "attention"}}
        spec = {
            "architecture": architecture,
            "setting": "limited",
            "seed": seed,
            "model": resolve(architecture, entries, {"d_model": 16, "n_layers": 1}, VOCAB, T),
            "weights": {"terms": None, "conditions": None},
            "id_domains": ["terms", "conditions"],
            "train": options | train,
        }
        return RunSpec.model_validate(spec).model_dump(mode="json")

    return make


@pytest.fixture
def make_job(
    tmp_path: Path, manifests: list[Path], make_spec: Callable[..., dict[str, Any]]
) -> Callable[..., Job]:
    """A job that works in tmp_path/work and ends in tmp_path/<name>; keywords as in `make_spec`."""

    def make(name: str = "run", save_seconds: float = 300.0, **options: Any) -> Job:
        spec = make_spec(**options)
        named = name_manifests(manifests)
        return Job(
            spec=RunSpec.model_validate(spec),
            manifests=named,
            work=tmp_path / "work",
            run=tmp_path / name,
            record=record("train", spec, "0" * 64, named, packages=("torch",)),
            device="cpu",
            save_seconds=save_seconds,
        )

    return make
