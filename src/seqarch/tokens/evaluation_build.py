"""Drawing the fixed document set of a domain from its test tokens. Layout and reader: `evaluation_set`."""

import hashlib
import heapq
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field

from seqarch.files import atomic_path, sha256_file, write_json, write_parquet
from seqarch.schema import Spec
from seqarch.tokens.evaluation_set import LOW_N, EvaluationSetError, set_sha256
from seqarch.tokens.store import DTYPES, TokenFile, TokenSet
from seqarch.tokens.tokenizer import Tokenizer

Place = tuple[int, int]  # a file of the token set, a document in it

DOC_COLUMNS = ["doc_id", "text_sha256", "n_bytes", "roundtrip_ok"]
SCHEMA = pa.schema(
    {
        "doc_id": pa.string(),
        "text_sha256": pa.string(),
        "n_bytes": pa.int64(),
        "n_tokens": pa.int64(),  # without BOS
        "offset": pa.int64(),  # of the first token in the .bin
        "roundtrip_ok": pa.bool_(),
    }
)


class EvaluationSetStep(Spec):
    """`cli.evaluation_set`: one domain."""

    domain: str
    role: Literal["in", "out"]
    bytes: int = Field(gt=0)  # budget, UTF-8
    max_doc_bytes: int | None = Field(None, ge=4)  # longer documents are cut at a character; null: none is
    seed: int = 0


def build(
    spec: EvaluationSetStep,
    test: Path,
    train: Path | None,
    tokenizer: Path,
    out: Path,
    provenance: Mapping[str, Any],
) -> None:
    """Write `out` (.json) and, beside it, `<stem>.bin` and `<stem>.docs.parquet`.

    Documents are sorted by sha256(seed, text sha256): a shuffle that knows nothing of shards, tokens or order
    in the files, and that a larger budget only extends. Whole documents are taken until the budget is
    reached, the one that reaches it included; of equal texts one.

    Args:
        test: manifest of the domain's test tokens.
        train: manifest of its training tokens: no document may be among them.
        tokenizer: manifest of the tokenizer that made the tokens; it encodes what is left of cut documents.

    Raises:
        EvaluationSetError: the domain has no test documents, a manifest is another domain's or split's, or a
            document is also in the training split.
    """
    tokens = TokenSet(test)
    _expect(tokens, spec.domain, "test")
    places = choose(_documents(tokens, spec.max_doc_bytes), spec.bytes, spec.seed)
    if not places:
        raise EvaluationSetError(
            f"domain {spec.domain!r} has no test documents: give it more text, or raise corpus.split.test"
        )
    chosen = _rows(tokens, places)
    if train is not None:
        check_overlap({row["text_sha256"] for row in chosen}, train, spec.domain)
    ids = [_ids(tokens.files[number], index) for number, index in places]
    if spec.max_doc_bytes is not None:
        ids = _cut(chosen, ids, spec.max_doc_bytes, _tokenizer(tokenizer, tokens))
    lengths = np.array([len(each) for each in ids], dtype=np.int64)
    table = pa.table(
        {key: [row[key] for row in chosen] for key in DOC_COLUMNS}
        | {"n_tokens": lengths, "offset": np.cumsum(lengths) - lengths}
    )
    binary, docs = out.with_suffix(".bin"), out.with_suffix(".docs.parquet")
    with atomic_path(binary) as temporary:
        np.concatenate(ids).tofile(temporary)
    write_parquet(docs, table.select(SCHEMA.names).cast(SCHEMA), provenance)
    manifest = {
        "kind": "evaluation_set",
        "domain": spec.domain,
        "role": spec.role,
        "sha256": set_sha256([(row["text_sha256"], row["n_bytes"]) for row in chosen]),
        "n_docs": len(chosen),
        "n_bytes": sum(row["n_bytes"] for row in chosen),
        "n_tokens": int(lengths.sum()),
        "n_roundtrip_fail": sum(not row["roundtrip_ok"] for row in chosen),
        "low_n": len(chosen) < LOW_N,
        "bytes_asked": spec.bytes,
        "max_doc_bytes": spec.max_doc_bytes,
        "train_overlap_checked": train is not None,
        "dtype": next(name for name, dtype in DTYPES.items() if dtype == tokens.dtype),
        "vocab_size": tokens.vocab_size,
        "bos_id": tokens.bos_id,
        "tokenizer_sha256": tokens.tokenizer_sha256,
        "files": [{"name": path.name, "sha256": sha256_file(path)} for path in (binary, docs)],
        "provenance": dict(provenance),
    }
    write_json(out, manifest)


def choose(documents: Iterable[tuple[str, int, Place]], n_bytes: int, seed: int) -> list[Place]:
    """Where the documents of the set are, in its order, of (text sha256, bytes, place).

    A heap holds the beginning of the order that just reaches the budget, so millions of documents may pass.
    """
    heap: list[tuple[int, int, Place]] = []  # the last of the order first
    held: set[int] = set()
    total = 0
    for digest, size, place in documents:
        key = -int.from_bytes(hashlib.sha256(f"{seed} {digest}".encode()).digest())
        if key in held:
            continue
        heapq.heappush(heap, (key, size, place))
        held.add(key)
        total += size
        while total - heap[0][1] >= n_bytes:
            key, size, _ = heapq.heappop(heap)
            held.remove(key)
            total -= size
    return [place for _, _, place in sorted(heap, reverse=True)]


def check_overlap(digests: set[str], train: Path, domain: str) -> None:
    """Raise EvaluationSetError if one of the texts is in the domain's training split."""
    tokens = TokenSet(train)
    _expect(tokens, domain, "train")
    wanted = pa.array(sorted(digests), pa.string())
    for file in tokens.files:
        table = pq.read_table(_docs(file), columns=["doc_id", "text_sha256"])
        both = table.filter(pc.is_in(table.column("text_sha256"), value_set=wanted))
        if both.num_rows:
            raise EvaluationSetError(
                f"domain {domain!r}: {both.num_rows} test documents are also in the training split, the "
                f"first is {both.column('doc_id')[0].as_py()!r} ({file.path}): the split must keep copies "
                "together; filter and tokenize the corpus again"
            )


def _expect(tokens: TokenSet, domain: str, split: str) -> None:
    if (tokens.domain, tokens.split) != (domain, split):
        raise EvaluationSetError(
            f"{tokens.path} is {tokens.split} of {tokens.domain!r}, expected {split} of {domain!r}"
        )


def _documents(tokens: TokenSet, cap: int | None) -> Iterator[tuple[str, int, Place]]:
    for number, file in enumerate(tokens.files):
        table = pq.read_table(_docs(file), columns=["text_sha256", "n_bytes"])
        rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
        yield from (
            (digest, size if cap is None else min(size, cap), (number, index))
            for index, (digest, size) in enumerate(rows)
        )


def _rows(tokens: TokenSet, places: list[Place]) -> list[dict[str, Any]]:
    """The rows of the docs tables at these places, a file at a time."""
    rows: dict[Place, dict[str, Any]] = {}
    for number, file in enumerate(tokens.files):
        indices = [index for where, index in places if where == number]
        if indices:
            table = pq.read_table(_docs(file), columns=DOC_COLUMNS).take(indices)
            rows |= {(number, index): row for index, row in zip(indices, table.to_pylist(), strict=True)}
    return [rows[place] for place in places]


def _docs(file: TokenFile) -> Path:
    return file.path.with_suffix(".docs.parquet")


def _ids(file: TokenFile, index: int) -> Any:
    """The document's ids without its BOS."""
    start, end = file.offsets[index : index + 2]
    return file.ids[start + 1 : end]


def _tokenizer(manifest: Path, tokens: TokenSet) -> Tokenizer:
    tokenizer = Tokenizer.load(manifest)
    if tokenizer.sha256 != tokens.tokenizer_sha256:
        raise EvaluationSetError(
            f"{manifest} is not the tokenizer of {tokens.path}: expected sha256 {tokens.tokenizer_sha256}, "
            f"found {tokenizer.sha256}"
        )
    return tokenizer


def _cut(
    rows: list[dict[str, Any]], ids: list[NDArray[Any]], cap: int, tokenizer: Tokenizer
) -> list[NDArray[Any]]:
    """The ids of the first `cap` bytes of each document, to a whole character; their sizes go into `rows`.

    The text is cut and encoded anew, not its tokens: the bytes that are scored depend on no tokenizer.
    """
    long = [number for number, row in enumerate(rows) if row["n_bytes"] > cap]
    texts = [tokenizer.decode(ids[number]).encode()[:cap].decode(errors="ignore") for number in long]
    result = list(ids)
    for number, text, short in zip(long, texts, tokenizer.encode_batch(texts), strict=True):
        result[number] = short
        data = text.encode()
        rows[number]["n_bytes"] = len(data)
        rows[number]["roundtrip_ok"] = rows[number]["roundtrip_ok"] and tokenizer.roundtrip(data, short)
    return result
