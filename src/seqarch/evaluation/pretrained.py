"""Models that others trained: of transformers, and checkpoints that it doesn't load, in our own mixers.

A model is a folder laid out as on the Hugging Face hub, or a repository there. No code that comes with a
checkpoint is ever run (`trust_remote_code` is off).
"""

import json
from pathlib import Path
from typing import Any

import torch

from seqarch.evaluation.checkpoints import rwkv6, state_spaces
from seqarch.evaluation.checkpoints.weights import PretrainedError, read_config, read_weights
from seqarch.evaluation.generation import CausalModel, OwnModel
from seqarch.evaluation.transformers_adapter import HubModel, load_model
from seqarch.model import Decoder

OURS = (state_spaces, rwkv6)
WEIGHTS = (
    *("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json"),
    *("config.json", "generation_config.json"),
)
TOKENIZER = ("tokenizer*", "special_tokens_map.json", "vocab*", "merges.txt", "config.json", "rwkv_vocab*")


def locate(path: str, revision: str, patterns: tuple[str, ...]) -> tuple[Path, str | None]:
    """The folder of a model or tokenizer and its commit (None for a local folder). Downloads what is missing.

    Raises PretrainedError if there is no such folder or repository, or no network and no warm cache.
    """
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder, None
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    options: dict[str, Any] = {"revision": revision, "allow_patterns": list(patterns)}
    offline = constants.is_offline_mode()
    try:
        found = Path(snapshot_download(path, local_files_only=offline, **options))
    except (OSError, HTTPError, ValueError, RuntimeError) as error:
        why = "no network is allowed (HF_HUB_OFFLINE), and the cache lacks it" if offline else str(error)
        raise PretrainedError(
            f"{path!r} at revision {revision!r} is neither a folder here nor to be had from the hub: {why}. "
            f"On a machine with a network: hf download {path} --revision {revision}, and set HF_HOME to that "
            "cache; or give a local folder as `path`; gated models need HF_TOKEN"
        ) from error
    return found, found.name


def load(
    folder: Path, dtype: torch.dtype, device: torch.device | str = "cpu", context: int | None = None
) -> CausalModel:
    """The model in a folder.

    Args:
        context: the longest sequence it may be given; by default its table of learned positions, if it has
            one. Rotary and recurrent models read on beyond what they were trained on.

    Raises PretrainedError if it is of no known kind, damaged, or transformers isn't installed.
    """
    config = read_config(folder)
    for kind in OURS:
        if kind.is_one(config):
            model: Decoder = kind.load(config, read_weights(folder), dtype)
            return OwnModel(model.to(device), context)
    return HubModel(load_model(folder, config, dtype).to(device), context)


def end_ids(folder: Path) -> frozenset[int]:
    """The ids with which a model ends its text, by its config.json and generation_config.json."""
    found: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        if (folder / name).is_file():
            ids = json.loads((folder / name).read_text(encoding="utf-8")).get("eos_token_id")
            found |= set(ids if isinstance(ids, list) else [] if ids is None else [ids])
    return frozenset(found)
