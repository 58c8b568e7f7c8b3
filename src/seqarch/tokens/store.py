"""Tokens on disk, read through a memory map.

A token set is one split of one domain: `manifest.json` and, for each shard, `<shard>.bin` (ids, uint16 or
uint32, little-endian, nothing else) and `<shard>.idx` (int64 [documents + 1]: where each document starts, and
the end). Each document starts with BOS, which text never encodes to, so BOS marks documents in any window.
"""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqarch.errors import SeqarchError
from seqarch.files import read_json, sha256_file

DTYPES: dict[str, "np.dtype[Any]"] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
OFFSET = np.dtype("<i8")


class TokenStoreError(SeqarchError):
    """A token file is missing, truncated, or not what its manifest describes."""


def dtype_name(vocab_size: int) -> str:
    """The narrowest type that holds the ids 0 … vocab_size − 1."""
    for name, dtype in DTYPES.items():
        if 0 < vocab_size <= 2 ** (8 * dtype.itemsize):
            return name
    raise TokenStoreError(f"a vocabulary of {vocab_size} entries: expected 1 to 2**32")


@dataclass(frozen=True)
class TokenFile:
    """One shard. The map is opened at first use and costs no memory until it is read."""

    path: Path  # of the .bin
    dtype: np.dtype
    n_tokens: int
    n_docs: int

    @functools.cached_property
    def ids(self) -> NDArray[Any]:
        """uint16 or uint32 [n_tokens], read-only."""
        ids = np.memmap(self.path, dtype=self.dtype, mode="r", shape=(self.n_tokens,))
        return ids.view(np.ndarray)  # slices of a memmap are slower

    @functools.cached_property
    def offsets(self) -> NDArray[np.int64]:
        """int64 [n_docs + 1]: document i is `ids[offsets[i] : offsets[i + 1]]`, its BOS first."""
        offsets = np.fromfile(self.path.with_suffix(".idx"), dtype=OFFSET)
        if offsets[0] != 0 or offsets[-1] != self.n_tokens or (np.diff(offsets) < 1).any():
            raise TokenStoreError(
                f"{self.path.with_suffix('.idx')} does not index {self.path.name}: expected offsets that "
                f"rise from 0 to {self.n_tokens}; tokenize again"
            )
        return offsets


class TokenSet:
    """The token files of one split of one domain.

    Args:
        manifest: path of its `manifest.json`.
        verify: also compare every file's sha256 (reads all of it); sizes and the first id are always checked.

    Raises:
        TokenStoreError: a file is missing, has another size, or begins with something else than BOS.
    """

    def __init__(self, manifest: Path, verify: bool = False) -> None:
        self.path = Path(manifest)
        try:
            values = read_json(self.path)
            self.domain: str = values["domain"]
            self.split: str = values["split"]
            self.vocab_size: int = values["vocab_size"]
            self.bos_id: int = values["bos_id"]
            self.tokenizer_sha256: str = values["tokenizer_sha256"]
            self.n_tokens: int = values["n_tokens"]
            self.n_docs: int = values["n_docs"]
            self.n_bytes: int = values["n_bytes"]
            self.dtype = DTYPES[values["dtype"]]
            entries: list[dict[str, Any]] = values["files"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TokenStoreError(
                f"{manifest} is no manifest of a token set ({type(error).__name__}: {error}): "
                "expected what `python -m seqarch.cli.tokens_manifest` writes"
            ) from error
        self.files = [self._open(entry, verify) for entry in entries if entry["n_tokens"]]
        if self.n_tokens != sum(file.n_tokens for file in self.files):
            raise TokenStoreError(f"{manifest}: n_tokens {self.n_tokens} is not the sum of its files")

    def _open(self, entry: dict[str, Any], verify: bool) -> TokenFile:
        path = self.path.parent / entry["name"]
        file = TokenFile(path, self.dtype, entry["n_tokens"], entry["n_docs"])
        _check_size(path, file.n_tokens * self.dtype.itemsize, f"{file.n_tokens} ids of {self.dtype.name}")
        index_size = (file.n_docs + 1) * OFFSET.itemsize
        _check_size(path.with_suffix(".idx"), index_size, f"{file.n_docs} + 1 offsets")
        if int(file.ids[0]) != self.bos_id:
            raise TokenStoreError(
                f"{path} begins with id {file.ids[0]}, expected BOS ({self.bos_id}): the file belongs to "
                "another tokenizer or is no token file; tokenize again"
            )
        if verify and (found := sha256_file(path)) != entry["sha256"]:
            raise TokenStoreError(f"{path}: sha256 {found}, expected {entry['sha256']}; tokenize again")
        return file


def _check_size(path: Path, expected: int, what: str) -> None:
    try:
        found = path.stat().st_size
    except FileNotFoundError as error:
        raise TokenStoreError(f"{path} is missing: its manifest lists it; tokenize again") from error
    if found != expected:
        kind = "truncated" if found < expected else "too long"
        raise TokenStoreError(
            f"{path} is {kind}: {found} bytes, expected {expected} ({what}); tokenize again"
        )
