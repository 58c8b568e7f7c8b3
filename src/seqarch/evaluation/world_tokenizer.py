"""The tokenizer of RWKV's World models: at each byte the longest entry that fits.

It behaves as far as prompts need it like one of the library `tokenizers`, which has no such model. Published
as a text file, a line an entry: `<id> <Python literal of a str or bytes> <its number of bytes>`.
"""

import ast
import json
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from seqarch.errors import SeqarchError

KEY = "rwkv_world"  # in the JSON file: byte strings, each byte a character of Latin-1, by id


class WorldError(SeqarchError):
    """A file is no vocabulary of this kind."""


class Encoding(NamedTuple):
    """What is used of the library's `Encoding`."""

    ids: list[int]
    ends: list[int]  # bytes up to the end of each token
    starts_of: list[int]  # byte at which each character begins, and the length

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """The characters that each token covers, wholly or in part."""
        begins = [0, *self.ends[:-1]]
        first = [bisect_right(self.starts_of, byte) - 1 for byte in begins]
        last = [bisect_right(self.starts_of, byte - 1) for byte in self.ends]
        return list(zip(first, last, strict=True))

    def char_to_token(self, place: int) -> int | None:
        return bisect_right(self.ends, self.starts_of[place])


class WorldTokenizer:
    """Args:
    entries: bytes by id.
    """

    encode_special_tokens = True  # it has none

    def __init__(self, entries: dict[int, bytes]) -> None:
        self.entries = entries
        self.ids = {entry: index for index, entry in entries.items()}
        missing = [byte for byte in range(256) if bytes([byte]) not in self.ids]
        if missing:
            raise WorldError(
                f"{len(missing)} bytes, such as {missing[0]}, have no entry: not every text can be read"
            )
        lengths: dict[bytes, set[int]] = {}
        for entry in self.ids:
            lengths.setdefault(entry[:2], set()).add(len(entry))
        # The lengths of the entries that begin with two bytes, longest first.
        self.lengths = {
            start: sorted(found, reverse=True) for start, found in lengths.items() if len(start) == 2
        }

    @classmethod
    def from_file(cls, path: Path) -> "WorldTokenizer":
        """The JSON file that `to_str` makes."""
        values = json.loads(path.read_text(encoding="utf-8"))[KEY]
        return cls({int(index): text.encode("latin-1") for index, text in values.items()})

    @classmethod
    def from_published(cls, path: Path) -> "WorldTokenizer":
        """The published text file. Raises WorldError naming the line that is no entry."""
        entries: dict[int, bytes] = {}
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                index, rest = line.split(" ", 1)
                literal, length = rest.rsplit(" ", 1)
                value = ast.literal_eval(literal)
                entry = value.encode() if isinstance(value, str) else bytes(value)
                if len(entry) != int(length):
                    raise ValueError(f"{len(entry)} bytes instead of {length}")
            except (ValueError, SyntaxError, TypeError) as error:
                raise WorldError(
                    f"{path}, line {number}: {error}; expected an id, a literal, a length"
                ) from error
            entries[int(index)] = entry
        return cls(entries)

    # --- as the library's -----------------------------------------------------------------------------

    def to_str(self) -> str:
        texts = {str(index): entry.decode("latin-1") for index, entry in sorted(self.entries.items())}
        nothing: dict[str, Any] = {"pre_tokenizer": None, "normalizer": None, "model": {}, "added_tokens": []}
        return json.dumps({KEY: texts, **nothing})

    def no_truncation(self) -> None:
        pass

    def no_padding(self) -> None:
        pass

    def get_added_tokens_decoder(self) -> dict[int, Any]:
        return {}

    def get_vocab_size(self) -> int:
        return max(self.entries) + 1

    def encode(self, text: str, add_special_tokens: bool = True) -> Encoding:
        data, place, ids, ends = text.encode(), 0, [], []
        total, known, lengths = len(data), self.ids, self.lengths
        while place < total:
            found = data[place : place + 1]
            for length in lengths.get(data[place : place + 2], ()):
                candidate = data[place : place + length]
                if candidate in known:
                    found = candidate
                    break
            place += len(found)
            ids.append(known[found])
            ends.append(place)
        sizes = (len(character.encode()) for character in text)
        return Encoding(ids, ends, list(accumulate(sizes, initial=0)))

    def encode_batch_fast(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[Encoding]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return b"".join(self.entries.get(index, b"") for index in ids).decode("utf-8", errors="replace")
