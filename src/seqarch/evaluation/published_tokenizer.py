"""Tokenizers of published models, as one file in the format of the library `tokenizers` and a manifest."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Library

from seqarch.evaluation.checkpoints.weights import PretrainedError
from seqarch.evaluation.transformers_adapter import load_tokenizer
from seqarch.evaluation.world_tokenizer import WorldTokenizer
from seqarch.files import atomic_path, sha256_file, write_bytes, write_json

KIND = "published"  # in the manifest


def take(folder: Path, out: Path, **about: Any) -> Path:
    """Write tokenizer.json and manifest.json into `out`; the manifest's path.

    RWKV's World vocabulary is taken as it is; another folder without tokenizer.json is converted by
    transformers. Its tokens that begin and end a text are
    those of tokenizer_config.json; it may have neither.

    Args:
        about: what else the manifest says.

    Raises PretrainedError if the folder has no tokenizer, or none that runs without code of its own.
    """
    target = out / "tokenizer.json"
    world = sorted(folder.glob("rwkv_vocab*.txt"))
    if (folder / "tokenizer.json").is_file():
        with atomic_path(target) as temporary:
            shutil.copyfile(folder / "tokenizer.json", temporary)
    elif world:
        write_bytes(target, WorldTokenizer.from_published(world[-1]).to_str().encode())
        return _manifest(folder, target, WorldTokenizer.from_file(target).get_vocab_size(), {}, about)
    else:
        library = load_tokenizer(folder)
        with atomic_path(target) as temporary:
            library.save(str(temporary))
    vocabulary = _open(target).get_vocab(with_added_tokens=True)
    return _manifest(folder, target, max(vocabulary.values()) + 1, vocabulary, about)


def _manifest(
    folder: Path, target: Path, vocab_size: int, vocabulary: Mapping[str, int], about: Mapping[str, Any]
) -> Path:
    values: dict[str, Any] = {"kind": KIND, "file": target.name, "sha256": sha256_file(target)}
    values["vocab_size"], named = vocab_size, _special(folder)
    for name in ("bos", "eos"):
        token = named.get(f"{name}_token")
        values[name], values[f"{name}_id"] = token, vocabulary.get(token) if token else None
    manifest = target.with_name("manifest.json")
    write_json(manifest, {**values, **about})
    return manifest


def _open(path: Path) -> Library:
    try:
        return Library.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises bare Exceptions
        raise PretrainedError(f"{path} is no tokenizer of the library tokenizers: {error}") from error


def _special(folder: Path) -> Mapping[str, str | None]:
    """bos_token and eos_token, as text."""
    try:
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except OSError:
        return {}
    found = {}
    for name in ("bos_token", "eos_token"):
        token = config.get(name)
        found[name] = token.get("content") if isinstance(token, dict) else token
    return found
