"""The encoding call of long-context prompts, and exact token counts without encoding each prompt anew.

A prompt is a list of pieces. With a byte-level BPE whose words are split off by GPT-2's expression (also
GPT-NeoX, OPT and the tokenizers trained here), every single space or line end between two printable ASCII
characters starts a new word: no alternative of

    's|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+

has white space but at its start or in a run of it. Tokens never cross words, so the count of a text is the
sum over its parts between such places (safe spaces), and parts that were seen before need not be encoded
again. A part of printable ASCII is cut into its words here, by the same expression, so that of a new part
only the words that are new are encoded: of a UUID hardly any. For any other tokenizer the whole prompt is
encoded, every time.
"""

import itertools
import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer as Library

from seqarch.evaluation.ruler.errors import ResourceError, RulerError
from seqarch.evaluation.ruler.spec import SpecialTokens
from seqarch.evaluation.world_tokenizer import KEY, WorldTokenizer
from seqarch.files import sha256_file, sha256_text
from seqarch.tokens.tokenizer import Tokenizer, read_manifest

CACHE_ENTRIES = 200_000  # some 40 MB; cleared when full
PRINTABLE = frozenset(map(chr, range(0x21, 0x7F)))
_CUT = re.compile(r"(?<=[!-~])[ \n](?=[!-~])")
# The expression above for printable ASCII and line ends, where \p{L} is [A-Za-z] and \p{N} is [0-9].
_PLAIN = re.compile(r"[ -~\n]*")
_WORD = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")


class _Parts(NamedTuple):
    """A piece, cut at its first and its last safe space: front + tail = head + rest = head + body + tail."""

    head: str
    tail: str | None  # None: no safe space inside, all is head
    front: str = ""
    rest: str = ""
    body: str = ""


class PromptEncoder:
    """Text to the ids that a model is given.

    Args:
        library: a tokenizer; it is switched to read special tokens' text as characters.
        special_tokens: `bos` puts `bos_id` first, `template` what the tokenizer's own template puts first.
        bos_id: for `bos`.
        sha256: of the tokenizer's file; of its JSON if not given.
        end_id: what a model says when its text is over; None: nothing.

    Attributes:
        n_special: ids before the text's own.
        special_texts: the special tokens' spellings; no prompt may contain one.

    Raises:
        RulerError: `bos` without an id, or a template that adds ids after the text.
    """

    def __init__(
        self,
        library: Library | WorldTokenizer,
        special_tokens: SpecialTokens,
        bos_id: int | None = None,
        sha256: str | None = None,
        end_id: int | None = None,
    ) -> None:
        state = library.to_str()
        self.end_id = end_id
        self._library = library
        self.special_tokens = special_tokens
        self.sha256 = sha256 or sha256_text(state)
        library.no_truncation()
        library.no_padding()
        library.encode_special_tokens = True
        self.prefix = self._prefix(bos_id)
        self.n_special = len(self.prefix)
        added = library.get_added_tokens_decoder()
        self.special_texts = tuple(
            token.content for index, token in sorted(added.items()) if token.special or index == bos_id
        )
        self.additive = _additive(json.loads(state))
        self._counts: dict[str, int] = {}
        self._parts: dict[str, _Parts] = {}
        self._words: dict[str, int] = {}

    @classmethod
    def load(cls, manifest: Path, special_tokens: SpecialTokens) -> "PromptEncoder":
        """The tokenizer of a manifest that `cli.tokenizer` or `cli.pretrained_tokenizer` wrote.

        In a tokenizer trained here the token that starts a document also ends the one before.

        Raises RulerError, or TokenizerError, if the file is not the manifest's.
        """
        values = read_manifest(manifest)
        path, sha256 = Path(manifest).parent / values["file"], values["sha256"]
        if values.get("kind") != "published":
            path, sha256 = Tokenizer.load(manifest).path, values["sha256"]
        elif sha256_file(path) != sha256:
            raise RulerError(f"{path} is not the file of {manifest}: make the tokenizer again")
        end_id = values["eos_id"] if "eos_id" in values else values["bos_id"]
        library = WorldTokenizer.from_file(path) if _is_world(path) else Library.from_file(str(path))
        return cls(library, special_tokens, values["bos_id"], sha256, end_id)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids that a model said; special tokens and ids beyond the vocabulary say nothing."""
        return self._library.decode(list(ids), skip_special_tokens=True)

    def _prefix(self, bos_id: int | None) -> list[int]:
        if self.special_tokens == "none":
            return []
        if self.special_tokens == "bos":
            if bos_id is None:
                raise RulerError(
                    "special_tokens: bos needs a token that starts documents and this tokenizer has none; "
                    "use `none`, or `template` for what its own template adds"
                )
            return [bos_id]
        plain = self._library.encode("a", add_special_tokens=False).ids
        full = self._library.encode("a", add_special_tokens=True).ids
        if full[len(full) - len(plain) :] != plain:
            raise RulerError(
                "special_tokens: template: this tokenizer adds tokens after the text, where the answer "
                "should begin; use `bos` or `none`"
            )
        return list(full[: len(full) - len(plain)])

    def encode(self, text: str) -> list[int]:
        """The ids given to a model: special tokens, then the text."""
        return [*self.prefix, *self._library.encode(text, add_special_tokens=False).ids]

    def check_text(self, text: str, what: str) -> None:
        """Raise ResourceError if the text spells a special token."""
        for special in self.special_texts:
            if special in text:
                raise ResourceError(
                    f"{what} contains the text of a special token, {special!r}: remove it; in a prompt it "
                    "would stand for the end or the start of a document"
                )

    def count(self, pieces: Sequence[str]) -> int:
        """The tokens of the pieces' joined text, without special tokens; exactly those of `encode`."""
        if not self.additive:
            return len(self._library.encode("".join(pieces), add_special_tokens=False).ids)
        return self._sum(self._units(pieces))

    def _sum(self, units: Sequence[str]) -> int:
        try:
            return sum(map(self._counts.__getitem__, units))
        except KeyError:
            self._remember(units)
            return sum(map(self._counts.__getitem__, units))

    def locate(self, pieces: Sequence[str], spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Where spans of characters [start, end) are among the ids of `encode`, tokens [start, end).

        A token that covers a part of a span belongs to it.
        """
        if not spans:
            return []
        text = "".join(pieces)
        characters, tokens = self._marks(pieces) if self.additive else ([0, len(text)], [0, 0])
        found = []
        for start, end in spans:
            first = bisect_right(characters, start) - 1
            last = bisect_left(characters, end)
            left = characters[first]
            window = text[left : characters[last]]
            encoding = self._library.encode(window, add_special_tokens=False)
            offset = self.n_special + tokens[first]
            begins = encoding.char_to_token(start - left)
            ends = encoding.char_to_token(end - 1 - left)
            assert begins is not None  # a character that no token covers: none in a needle
            assert ends is not None
            found.append((offset + begins, offset + ends + 1))
        return found

    def token_ends(self, text: str) -> list[int]:
        """Where each token of a text ends, in characters; special tokens are left out."""
        return [end for _, end in self._library.encode(text, add_special_tokens=False).offsets]

    def _marks(self, pieces: Sequence[str]) -> tuple[list[int], list[int]]:
        """The safe places of a text: characters and tokens before each, the end included."""
        units = self._units(pieces)
        self._remember(units)
        characters = itertools.accumulate(map(len, units), initial=0)
        tokens = itertools.accumulate(map(self._counts.__getitem__, units), initial=0)
        return list(characters), list(tokens)

    def count_each(self, texts: Sequence[str]) -> list[int]:
        """The tokens of each text, where one stands after a printable character and before a safe space, a
        line end or the end. Only for tokenizers that are `additive`."""
        self._remember(texts)
        return list(map(self._counts.__getitem__, texts))

    def _remember(self, units: Sequence[str]) -> None:
        if max(len(self._counts), len(self._parts), len(self._words)) > CACHE_ENTRIES:
            self._counts.clear()
            self._parts.clear()
            self._words.clear()
        new = [unit for unit in dict.fromkeys(units) if unit not in self._counts]
        words = [_WORD.findall(unit) if _PLAIN.fullmatch(unit) else [unit] for unit in new]
        known = self._words
        unknown = [word for word in dict.fromkeys(itertools.chain(*words)) if word not in known]
        encodings: Sequence[Any] = self._library.encode_batch_fast(unknown, add_special_tokens=False)
        known.update((word, len(each)) for word, each in zip(unknown, encodings, strict=True))
        self._counts.update(
            (unit, sum(map(known.__getitem__, each))) for unit, each in zip(new, words, strict=True)
        )

    def _units(self, pieces: Sequence[str]) -> list[str]:
        """The text in parts that each start at a safe space: whole pieces where they do, else cut inside."""
        units: list[str] = []
        known = self._parts
        pending, closes = "", False  # what has no end yet; whether it ends with a printable character
        # Where to cut it if no safe space follows: before its last safe space. None: it is a piece as given.
        split: tuple[str, str] | None = ("", "")
        for piece in pieces:
            if not piece:
                continue
            if closes and len(piece) > 1 and piece[0] in " \n" and piece[1] in PRINTABLE:
                units.append(pending)
                pending, split = piece, None
            else:
                if split is None:
                    before = known.get(pending) or _cut(pending)
                    split = (before.front, pending if before.tail is None else before.tail)
                front, tail = split
                parts = known.get(piece)
                if parts is None:
                    parts = known[piece] = _cut(piece)
                if front:
                    units.append(front)
                if parts.tail is None:
                    pending = tail + piece
                    split = ("", pending)
                else:
                    units.append(tail + parts.head)
                    pending, split = parts.rest, (parts.body, parts.tail)
            closes = piece[-1] in PRINTABLE
        if pending:
            units.append(pending)
        return units


def _cut(piece: str) -> _Parts:
    first = _CUT.search(piece)
    if first is None:
        return _Parts(piece, None)
    start = end = first.start()
    for cut in _CUT.finditer(piece, start):
        end = cut.start()
    return _Parts(piece[:start], piece[end:], piece[:end], piece[start:], piece[start:end])


def _is_world(path: Path) -> bool:
    with open(path, encoding="utf-8") as file:
        return KEY in file.read(len(KEY) + 10)


def _additive(state: dict[str, Any]) -> bool:
    """Whether a tokenizer's words are those of GPT-2's expression and nothing before it moves spaces."""
    splitter, normalizer = state["pre_tokenizer"] or {}, state["normalizer"] or {"type": "NFC"}
    return (
        splitter.get("type") == "ByteLevel"
        and splitter.get("use_regex", True)
        and not splitter["add_prefix_space"]
        and normalizer["type"] == "NFC"
        and not state["model"].get("dropout")
        and all(token["special"] for token in state["added_tokens"])
    )
