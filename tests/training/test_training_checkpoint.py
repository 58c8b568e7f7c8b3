"""Checkpoints: what goes in comes out, and what does not fit is named."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from seqarch.architecture import resolve
from seqarch.files import PROVENANCE_KEY, canonical_json
from seqarch.model import Decoder
from seqarch.provenance import read_record
from seqarch.training.checkpoint import Metadata, load_model, read_metadata, save_model
from seqarch.training.errors import CheckpointError


@pytest.fixture
def metadata(make_spec: Callable[..., dict[str, Any]]) -> Metadata:
    return Metadata({"recipe": "r", "spec": make_spec()}, step=7, tokens=448, phase="stable")


@pytest.fixture
def saved(tmp_path: Path, metadata: Metadata) -> Path:
    model = Decoder(metadata.model)
    model.init_weights(3)
    save_model(tmp_path / "stable-00000007.safetensors", model, metadata)
    return tmp_path / "stable-00000007.safetensors"


def test_round_trip(saved: Path, metadata: Metadata) -> None:
    model, found = load_model(saved)
    assert found == metadata
    assert not model.training
    fresh = Decoder(metadata.model)
    fresh.init_weights(3)
    for name, tensor in fresh.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name
    record = read_record(saved)
    assert record is not None
    assert record["recipe"] == "r"


def test_equal_weights_give_equal_bytes(saved: Path, metadata: Metadata, tmp_path: Path) -> None:
    model, _ = load_model(saved)
    save_model(tmp_path / "again.safetensors", model, metadata)
    assert saved.read_bytes() == (tmp_path / "again.safetensors").read_bytes()


def test_untied_embeddings_are_kept(tmp_path: Path, metadata: Metadata) -> None:
    sizes = {"d_model": 16, "n_layers": 1, "tie_embeddings": False}
    untied = resolve("transformer", {"transformer": {"mixer": "attention"}}, sizes, 257, 16)
    record = metadata.record | {"spec": {"model": untied}}
    model = Decoder(untied)
    save_model(tmp_path / "untied.safetensors", model, Metadata(record, 0, 0, "stable"))
    again, _ = load_model(tmp_path / "untied.safetensors")
    assert again.head is not None
    assert again.num_params() == model.num_params()


def test_tensors_that_do_not_fit_are_named(saved: Path, metadata: Metadata) -> None:
    tensors = load_file(saved)
    tensors["final_norm.weight"] = tensors["final_norm.weight"][:8].clone()
    tensors["blocks.9.extra"] = torch.zeros(1)
    gone = next(name for name in tensors if "mixer" in name)
    del tensors[gone]
    text = canonical_json({**metadata.record, "checkpoint": {"step": 7, "tokens": 448, "phase": "stable"}})
    save_file(tensors, saved, metadata={PROVENANCE_KEY: text})
    with pytest.raises(CheckpointError) as caught:
        load_model(saved)
    message = str(caught.value)
    assert f"{gone}: missing" in message
    assert "blocks.9.extra: not in the model" in message
    assert "final_norm.weight: float32 [8] in the file, float32 [16] in the model" in message
    assert "train this run again" in message


def test_unreadable_files(saved: Path, tmp_path: Path) -> None:
    data = saved.read_bytes()
    saved.write_bytes(data[: len(data) // 2])
    with pytest.raises(CheckpointError, match="no readable checkpoint"):
        load_model(saved)
    with pytest.raises(CheckpointError, match="no readable checkpoint"):
        load_model(tmp_path / "missing.safetensors")
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(
        CheckpointError, match=r"none that seqarch.cli.train wrote: its metadata lacks 'seqarch'"
    ):
        read_metadata(tmp_path / "other.safetensors")
