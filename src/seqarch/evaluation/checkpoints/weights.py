"""The tensors of a published checkpoint, by name, whatever files they are in. No code of it is ever run."""

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from seqarch.errors import SeqarchError
from seqarch.model import Decoder

SINGLE = ("model.safetensors", "pytorch_model.bin")
SHARDED = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


class PretrainedError(SeqarchError):
    """A published model or tokenizer cannot be had, or is none that is known here."""


class Weights:
    """Tensors to be taken one by one; what nobody took is an error in the end.

    Args:
        tensors: all of them, on the CPU; from a file they are mapped, not read.
        source: where from, for messages.
    """

    def __init__(self, tensors: dict[str, Tensor], source: str) -> None:
        self.tensors, self.source = tensors, source
        self.left = set(tensors)

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def take(self, name: str) -> Tensor:
        """Raises PretrainedError if there is none of that name."""
        if name not in self.tensors:
            raise PretrainedError(
                f"{self.source}: no tensor {name!r}; it has {len(self.tensors)}, such as "
                f"{', '.join(sorted(self.tensors)[:5])}: this is another kind of checkpoint"
            )
        self.left.discard(name)
        return self.tensors[name]

    def finish(self) -> None:
        """Raise PretrainedError if a tensor was not taken."""
        if self.left:
            raise PretrainedError(
                f"{self.source}: {len(self.left)} tensors stand for nothing here: "
                f"{', '.join(sorted(self.left)[:8])}: this is another kind of checkpoint"
            )


def read_weights(folder: Path) -> Weights:
    """The weights of a folder laid out as on the hub. Raises PretrainedError if there are none."""
    for name in SHARDED:
        if (folder / name).is_file():
            files = sorted(set(json.loads((folder / name).read_text())["weight_map"].values()))
            return Weights(dict(pair for file in files for pair in _tensors(folder / file)), str(folder))
    for name in SINGLE:
        if (folder / name).is_file():
            return Weights(dict(_tensors(folder / name)), str(folder))
    raise PretrainedError(f"{folder}: no weights; expected one of {', '.join((*SINGLE, *SHARDED))}")


def _tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                yield from ((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118
        else:
            yield from torch.load(path, map_location="cpu", weights_only=True, mmap=True).items()
    except (OSError, SafetensorError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
        raise PretrainedError(f"{path} cannot be read ({error}): download it again") from error


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a folder laid out as on the hub. Raises PretrainedError."""
    try:
        found: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PretrainedError(f"{folder}: no readable config.json ({error})") from error
    return found


def build(resolved: dict[str, Any], found: dict[str, Tensor], dtype: torch.dtype, source: str) -> Decoder:
    """The model with these weights and no others: nothing is initialised, nothing held twice.

    Raises PretrainedError naming each that is missing or has another shape.
    """
    with torch.device("meta"):
        model = Decoder(resolved)
    expected = model.state_dict()
    problems = [f"{name}: missing" for name in sorted(expected.keys() - found.keys())]
    problems += [f"{name}: not in the model" for name in sorted(found.keys() - expected.keys())]
    problems += [
        f"{name}: {list(found[name].shape)} in the file, {list(expected[name].shape)} in the model"
        for name in sorted(expected.keys() & found.keys())
        if found[name].shape != expected[name].shape
    ]
    if problems:
        raise PretrainedError(f"{source} does not fit its own config.json:\n  " + "\n  ".join(problems[:12]))
    model.load_state_dict({name: each.to(dtype).contiguous() for name, each in found.items()}, assign=True)
    return model.eval()
