"""Trained weights: one safetensors file each, which says itself what model it is of and where from."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from seqarch.files import PROVENANCE_KEY, atomic_path, canonical_json
from seqarch.model import Decoder
from seqarch.training.errors import CheckpointError


@dataclass(frozen=True)
class Metadata:
    """What a checkpoint says about itself.

    Attributes:
        record: provenance (seqarch.provenance.record); `record["spec"]` is the run's RunSpec.
        step: optimiser steps from the initial weights to these.
        tokens: training tokens seen in these steps.
        phase: of the schedule: stable, annealed or mid_cosine.
    """

    record: dict[str, Any]
    step: int
    tokens: int
    phase: str

    @property
    def model(self) -> dict[str, Any]:
        """The resolved model (seqarch.architecture.resolve)."""
        return self.record["spec"]["model"]


def save_model(path: Path, model: Decoder, metadata: Metadata) -> None:
    """Write the weights and what they are. Equal runs give equal bytes."""
    save_weights(path, on_cpu(model.state_dict()), metadata)


def save_weights(path: Path, weights: Mapping[str, Tensor], metadata: Metadata) -> None:
    """`save_model` of a model's state that is on the CPU already."""
    # One metadata key: safetensors writes several in random order.
    place = {"step": metadata.step, "tokens": metadata.tokens, "phase": metadata.phase}
    text = canonical_json({**metadata.record, "checkpoint": place})
    with atomic_path(path) as temporary:
        save_file(dict(weights), temporary, metadata={PROVENANCE_KEY: text})


def on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as safetensors wants them: on the CPU, contiguous."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def read_metadata(path: Path) -> Metadata:
    """What the checkpoint says about itself, without reading its weights. Raises CheckpointError."""
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {})[PROVENANCE_KEY]
        record = json.loads(text)
        return Metadata(record=record, **record.pop("checkpoint"))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} is no readable checkpoint ({error}): train this run again") from error
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise CheckpointError(
            f"{path} is a safetensors file, but none that seqarch.cli.train wrote: its metadata lacks {error}"
        ) from error


def load_model(path: Path, device: torch.device | str = "cpu") -> tuple[Decoder, Metadata]:
    """The model of a checkpoint, in evaluation mode, and what the checkpoint says about itself.

    Raises:
        CheckpointError: the file is missing, truncated or of another kind, or its tensors do not fit the
            model that its metadata describes (names each).
    """
    path = Path(path)
    metadata = read_metadata(path)
    model = Decoder(metadata.model)
    load_weights(model, path)
    return model.to(device).eval(), metadata


def load_weights(model: Decoder, path: Path) -> None:
    """Fill `model` with the tensors of a checkpoint. Raises CheckpointError naming each that does not fit."""
    try:
        with safe_open(path, framework="pt") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is not a dict)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} is no readable checkpoint ({error}): train this run again") from error
    expected = model.state_dict()
    problems = [f"{name}: missing" for name in sorted(expected.keys() - found.keys())]
    problems += [f"{name}: not in the model" for name in sorted(found.keys() - expected.keys())]
    for name in sorted(expected.keys() & found.keys()):
        ours, theirs = expected[name], found[name]
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            problems.append(f"{name}: {_form(theirs)} in the file, {_form(ours)} in the model")
    if problems:
        raise CheckpointError(
            f"{path} does not fit the model:\n  "
            + "\n  ".join(problems)
            + "\nthe model's code or configuration "
            "changed since it was written: train this run again, or check out the code that wrote it"
        )
    model.load_state_dict(found)


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
