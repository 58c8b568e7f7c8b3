"""The tokenizer: text to arrays of ids and back, through the library `tokenizers`.

BOS is an entry that text never encodes to. The library would find the entry's own spelling in a document and
make BOS of it; with `encode_special_tokens` it reads it as the characters that stand there.
"""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Library

from seqarch.errors import SeqarchError
from seqarch.files import read_json, sha256_file
from seqarch.tokens.store import DTYPES, dtype_name

BOS = "<|bos|>"  # of the tokenizers trained here


class TokenizerError(SeqarchError):
    """A tokenizer cannot be trained, read or used."""


class Tokenizer:
    """A tokenizer file and the entry that starts documents.

    Args:
        path: a file in the format of `tokenizers`.
        bos: the text of the entry that starts each document.

    Attributes:
        vocab_size: largest id + 1.
        bos_id: the id of `bos`.
        dtype: uint16 if it holds every id, else uint32.
        sha256: of the file.

    Raises:
        TokenizerError: the file is no tokenizer, or has no such entry.
    """

    def __init__(self, path: Path, bos: str = BOS) -> None:
        self.path, self.bos = Path(path), bos
        try:
            self.sha256 = sha256_file(self.path)
            self._library = Library.from_str(self.path.read_text(encoding="utf-8"))
        except Exception as error:  # the library raises bare Exceptions
            raise TokenizerError(
                f"{path} is no tokenizer file: {error}; expected JSON in the format of the library tokenizers"
            ) from error
        vocabulary = self._library.get_vocab(with_added_tokens=True)
        if bos not in vocabulary:
            raise TokenizerError(
                f"{path} has no entry {bos!r} to start documents with: name one it has as `bos`"
            )
        self.bos_id = vocabulary[bos]
        self.vocab_size = max(vocabulary.values()) + 1
        self.dtype_name = dtype_name(self.vocab_size)
        self.dtype = DTYPES[self.dtype_name]
        self._read_bos_as_text()
        self._library.no_truncation()
        self._library.no_padding()
        self._bytes = _byte_table(self._library)

    @classmethod
    def load(cls, manifest: Path) -> "Tokenizer":
        """The tokenizer of a manifest that `cli.tokenizer` wrote; raises TokenizerError if it is another."""
        values = read_manifest(manifest)
        tokenizer = cls(Path(manifest).parent / values["file"], values["bos"])
        if tokenizer.sha256 != values["sha256"]:
            raise TokenizerError(
                f"{tokenizer.path}: sha256 {tokenizer.sha256}, expected {values['sha256']} ({manifest}): "
                "make the tokenizer again"
            )
        return tokenizer

    def _read_bos_as_text(self) -> None:
        added = self._library.get_added_tokens_decoder().get(self.bos_id)
        if added is not None and not added.special:  # the switch below spares only special entries
            added.special = True
            self._library.add_special_tokens([added])
        self._library.encode_special_tokens = True

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """The ids of each text, uint16 or uint32 [n], without BOS. Texts are encoded in parallel.

        Raises TokenizerError if an id is outside the vocabulary, or BOS itself.
        """
        ids, ends = self.encode_flat(texts)
        return np.split(ids, ends[:-1]) if len(ends) else []

    def encode_flat(self, texts: Sequence[str]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """All ids one after the other, and where each text's end: the form that costs least."""
        encodings = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        ids = [encoding.ids for encoding in encodings]
        ends = np.cumsum([len(each) for each in ids], dtype=np.int64)
        n_tokens = int(ends[-1]) if ids else 0
        flat = np.fromiter(itertools.chain.from_iterable(ids), np.int64, count=n_tokens)
        if len(flat) and (int(flat.max()) >= self.vocab_size or bool((flat == self.bos_id).any())):
            raise TokenizerError(
                f"{self.path}: text was encoded to {self.bos!r} itself, or to an id above "
                f"{self.vocab_size - 1} (the largest: {int(flat.max())}): this "
                "tokenizer cannot pack documents"
            )
        return flat.astype(self.dtype), ends

    def decode(self, ids: NDArray[Any]) -> str:
        """The text of ids; bytes that are no UTF-8 become U+FFFD."""
        if self._bytes is not None:
            return self._join(ids).decode("utf-8", errors="replace")
        return self._library.decode(ids.tolist(), skip_special_tokens=False)

    def roundtrip(self, text: bytes, ids: NDArray[Any]) -> bool:
        """Whether the ids give exactly this UTF-8 text back."""
        if self._bytes is not None:
            return self._join(ids) == text
        return self.decode(ids).encode() == text

    def _join(self, ids: NDArray[Any]) -> bytes:
        assert self._bytes is not None
        return b"".join(map(self._bytes.__getitem__, ids.tolist()))


def read_manifest(path: Path) -> dict[str, Any]:
    """What `cli.tokenizer` wrote beside the tokenizer."""
    try:
        values = read_json(path)
        if not {"file", "bos", "sha256", "vocab_size", "bos_id"} <= set(values):
            raise ValueError("keys are missing")
    except (OSError, ValueError, TypeError) as error:
        raise TokenizerError(
            f"{path} is no tokenizer manifest ({error}): expected what `python -m "
            "seqarch.cli.tokenizer` writes"
        ) from error
    return values


def _byte_table(library: Library) -> list[bytes] | None:
    """The bytes of each id of a byte-level tokenizer; None for another kind.

    Joining them is the library's own `decode` for this kind, some ten times as fast: packing checks every
    document.
    """
    decoder = json.loads(library.to_str())["decoder"]
    if decoder is None or decoder["type"] != "ByteLevel":
        return None
    byte_of = {character: byte for byte, character in enumerate(byte_alphabet())}
    vocabulary = library.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocabulary.values()) + 1)
    for token, index in vocabulary.items():
        known = all(character in byte_of for character in token)
        table[index] = bytes(byte_of[character] for character in token) if known else token.encode()
    return table


def byte_alphabet() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary (Radford et al., GPT-2, 2019).

    Printable bytes of Latin-1 stand for themselves, the others for the characters from U+0100 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
