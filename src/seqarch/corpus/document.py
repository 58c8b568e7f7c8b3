"""Documents, bad rows, and the hashes that decide what is a copy and which split a text belongs to."""

import hashlib
import unicodedata
from dataclasses import dataclass
from typing import Any

from seqarch.corpus.spec import SplitSpec

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, slots=True)
class Document:
    text: str
    domain: str  # the name in the data; the filter drops what is not asked for
    source: str  # the file it comes from, as the listing names it
    row: str  # where in that file: a row's number from 1, with ".<part>" where a row gives several documents
    split_key: str | None = None  # what the split is decided by, if not by the text itself: a page

    @property
    def doc_id(self) -> str:
        return f"{self.source}:{self.row}"


@dataclass(frozen=True, slots=True)
class BadRow:
    kind: str  # not_json, no_text, no_domain, wrong_type, invalid_utf8, empty, nul, too_long
    source: str
    row: str
    detail: str


def document_or_bad_row(
    text: Any, domain: Any, source: str, row: str, split_key: str | None = None
) -> Document | BadRow:
    """Check what a row holds; `text` and `domain` are whatever the data had, None where it had nothing."""
    if text is None:
        return BadRow("no_text", source, row, "no text field, or null")
    if domain is None:
        return BadRow("no_domain", source, row, "no domain field, or null")
    if not isinstance(text, str) or not isinstance(domain, str):
        return BadRow(
            "wrong_type",
            source,
            row,
            f"expected strings, found {type(text).__name__}, {type(domain).__name__}",
        )
    if not text or text.isspace():
        return BadRow("empty", source, row, "nothing but white space")
    if "\0" in text:
        return BadRow("nul", source, row, f"a NUL character at {text.index(chr(0))}")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # a lone surrogate, which JSON can escape and UTF-8 cannot hold
        return BadRow("invalid_utf8", source, row, str(error))
    return Document(text, domain, source, row, split_key)


def normalise(text: str) -> str:
    """The form in which texts are compared: Unicode NFC, white space as single spaces."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def text_digest(text: str) -> bytes:
    """sha256 of the normalised text: 32 bytes."""
    return hashlib.sha256(normalise(text).encode()).digest()


def split_of(document: Document, digest: bytes, shares: SplitSpec) -> str:
    """`train`, `validation` or `test`, by a hash of the document's page or text and of nothing else.

    The first 8 bytes of the digest are read as a fraction u of [0, 1): u < test is for testing, the next
    `validation` for validation. So a text's split depends neither on its place nor on the other texts, and a
    larger test share keeps the documents that a smaller one had.
    """
    if document.split_key is not None:
        digest = hashlib.sha256(f"page:{normalise(document.split_key)}".encode()).digest()
    fraction = int.from_bytes(digest[:8], "big") / 2**64
    if fraction < shares.test:
        return "test"
    return "validation" if fraction < shares.test + shares.validation else "train"
