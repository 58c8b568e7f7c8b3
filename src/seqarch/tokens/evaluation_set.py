"""The fixed document set of one domain: the same bytes for every model, seed and tokenizer."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqarch.errors import SeqarchError
from seqarch.files import read_json, sha256_file, sha256_text
from seqarch.tokens.store import DTYPES

LOW_N = 30  # fewer documents than this: intervals over documents mean little


class EvaluationSetError(SeqarchError):
    """An evaluation set cannot be made, or is not what its manifest describes."""


@dataclass(frozen=True)
class Document:
    """One document. `ids` (int64) has no BOS: the prefix is the scorer's, and is never scored."""

    doc_id: str
    text_sha256: str  # of the normalised text
    n_bytes: int  # UTF-8, of the original text
    roundtrip_ok: bool  # decoding gives the text back: without it bits per byte mean nothing
    ids: NDArray[np.int64]


class EvaluationSet:
    """`<domain>.json`, with `<domain>.bin` and `<domain>.docs.parquet` beside it.

    `len(set)`, `set[i]` and iteration give `Document`s in the set's order. Everything is verified on opening.

    Attributes:
        domain, role: as configured; role is "in" or "out".
        sha256: of the documents' text hashes and bytes; the same for every tokenizer.
        n_docs, n_bytes: of the texts. n_tokens: to score, without BOS.
        low_n: fewer than 30 documents.
        vocab_size, bos_id, tokenizer_sha256: of the tokenizer.
        ids: int64 [n_tokens], all documents one after the other, without BOS.
        offsets: int64 [n_docs + 1] into `ids`.

    Raises:
        EvaluationSetError: a file is missing or is not the one that was written.
    """

    def __init__(self, manifest: Path) -> None:
        import pyarrow.parquet as pq

        self.path = Path(manifest)
        values = _read_manifest(self.path)
        self.domain: str = values["domain"]
        self.role: str = values["role"]
        self.sha256: str = values["sha256"]
        self.n_docs: int = values["n_docs"]
        self.n_bytes: int = values["n_bytes"]
        self.n_tokens: int = values["n_tokens"]
        self.low_n: bool = values["low_n"]
        self.vocab_size: int = values["vocab_size"]
        self.bos_id: int = values["bos_id"]
        self.tokenizer_sha256: str = values["tokenizer_sha256"]
        files = [_verified(self.path.parent, entry) for entry in values["files"]]
        self.ids = np.fromfile(files[0], dtype=DTYPES[values["dtype"]]).astype(np.int64)
        table = pq.read_table(files[1])
        self._docs: list[dict[str, Any]] = table.to_pylist()
        lengths = table.column("n_tokens").to_numpy()
        self.offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)

    def __len__(self) -> int:
        return self.n_docs

    def __getitem__(self, index: int) -> Document:
        row = self._docs[index]
        ids = self.ids[row["offset"] : row["offset"] + row["n_tokens"]]
        return Document(row["doc_id"], row["text_sha256"], row["n_bytes"], row["roundtrip_ok"], ids)

    def __iter__(self) -> Iterator[Document]:
        return (self[index] for index in range(self.n_docs))


def set_sha256(documents: list[tuple[str, int]]) -> str:
    """The digest of (text sha256, bytes) pairs in order: no tokenizer has a part in it."""
    return sha256_text("".join(f"{digest} {n_bytes}\n" for digest, n_bytes in documents))


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        values = read_json(path)
    except (OSError, ValueError) as error:
        raise EvaluationSetError(f"{path} is no evaluation set: {error}") from error
    if not isinstance(values, dict) or values.get("kind") != "evaluation_set":
        raise EvaluationSetError(
            f"{path} is no evaluation set: expected what `python -m seqarch.cli.evaluation_set` writes"
        )
    return values


def _verified(directory: Path, entry: dict[str, Any]) -> Path:
    path = directory / entry["name"]
    if not path.is_file():
        raise EvaluationSetError(f"{path} is missing: make the evaluation set again")
    if (found := sha256_file(path)) != entry["sha256"]:
        raise EvaluationSetError(
            f"{path}: sha256 {found}, expected {entry['sha256']}: truncated or changed; make the set again"
        )
    return path
