"""Text to tokens on disk: one shard, and the manifests that merge the shards. Layout: `tokens.store`."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from seqarch.files import atomic_path, read_json, sha256_file, write_bytes, write_parquet
from seqarch.progress import Advance
from seqarch.tokens.store import OFFSET, TokenStoreError
from seqarch.tokens.text import TextBatch, TextFile, read_batches
from seqarch.tokens.tokenizer import Tokenizer

log = logging.getLogger(__name__)

DOCS_SCHEMA = pa.schema(
    {
        "doc_id": pa.string(),
        "text_sha256": pa.string(),
        "n_bytes": pa.int64(),
        "n_tokens": pa.int64(),  # BOS included, as everywhere in token sets
        "roundtrip_ok": pa.bool_(),
    }
)
COUNTS = ("n_tokens", "n_docs", "n_bytes", "n_roundtrip_fail")


def pack(
    file: TextFile, folder: Path, tokenizer: Tokenizer, provenance: Mapping[str, Any], advance: Advance
) -> dict[str, Any]:
    """Write `<shard>.bin`, `.idx` and `.docs.parquet` of one text file to `folder`; memory holds a batch.

    Returns the file's entry in the shard's manifest: `name` (of the .bin), its `bytes` and `sha256`,
    `idx_sha256`, `docs_sha256`, and COUNTS.
    """
    path = Path(folder) / f"{file.shard}.bin"
    for remnant in path.parent.glob(f".{file.shard}.*.tmp*"):  # of a run that was killed
        remnant.unlink()
    tables = []
    with atomic_path(path) as temporary, open(temporary, "wb") as out:
        for batch, ids, ends in _encode_ahead(tokenizer, read_batches(file)):
            starts = np.concatenate([[0], ends[:-1]])
            out.write(np.insert(ids, starts, tokenizer.bos_id).tobytes())
            tables.append(_documents(tokenizer, batch, ids, starts, ends))
            advance(len(batch.texts))
    docs = pa.concat_tables([DOCS_SCHEMA.empty_table(), *tables])
    lengths = docs.column("n_tokens").to_numpy()
    index, table = path.with_suffix(".idx"), path.with_suffix(".docs.parquet")
    write_bytes(index, np.concatenate([[0], np.cumsum(lengths)]).astype(OFFSET).tobytes())
    write_parquet(table, docs, provenance)
    failures = docs.num_rows - sum(docs.column("roundtrip_ok").to_pylist())
    if failures:
        log.warning("%s: %d of %d documents do not decode to their text", path, failures, docs.num_rows)
    return {
        "name": path.name,
        "bytes": path.stat().st_size,
        "sha256": sha256_file(path),
        "idx_sha256": sha256_file(index),
        "docs_sha256": sha256_file(table),
        "n_tokens": int(lengths.sum()),
        "n_docs": docs.num_rows,
        "n_bytes": int(docs.column("n_bytes").to_numpy().sum()),
        "n_roundtrip_fail": failures,
    }


def _encode_ahead(
    tokenizer: Tokenizer, batches: Iterable[TextBatch]
) -> Iterator[tuple[TextBatch, NDArray[Any], NDArray[np.int64]]]:
    """Each batch, its ids and where its documents end. The next one is encoded meanwhile: the library's
    threads do not hold the interpreter."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        waiting = None
        for batch in batches:
            following = batch, pool.submit(tokenizer.encode_flat, batch.texts)
            if waiting is not None:
                yield waiting[0], *waiting[1].result()
            waiting = following
        if waiting is not None:
            yield waiting[0], *waiting[1].result()


def _documents(
    tokenizer: Tokenizer,
    batch: TextBatch,
    ids: NDArray[Any],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> pa.Table:
    texts = [text.encode() for text in batch.texts]
    intact = [
        tokenizer.roundtrip(text, ids[start:end])
        for text, start, end in zip(texts, starts.tolist(), ends.tolist(), strict=True)
    ]
    return pa.table(
        {
            "doc_id": batch.doc_ids,
            "text_sha256": batch.text_sha256,
            "n_bytes": [len(text) for text in texts],
            "n_tokens": ends - starts + 1,
            "roundtrip_ok": intact,
        },
        schema=DOCS_SCHEMA,
    )


def merge_shards(parts: Sequence[Path], domain: str, split: str) -> dict[str, Any]:
    """The manifest of one split of one domain, without its provenance, from the shards' manifests.

    Raises TokenStoreError if a part is no such manifest, or the shards used different tokenizers.
    """
    shards = [_read_part(path) for path in parts]
    common = _common(shards)
    files = sorted(
        (
            {key: value for key, value in entry.items() if key not in ("domain", "split")}
            for shard in shards
            for entry in shard["files"]
            if (entry["domain"], entry["split"]) == (domain, split)
        ),
        key=lambda entry: entry["name"],
    )
    totals = {key: sum(entry[key] for entry in files) for key in COUNTS}
    return {
        "domain": domain,
        "split": split,
        **common,
        **totals,
        "files": files,
    }


def merge_parts(parts: Sequence[Path]) -> dict[str, Any]:
    """The shards' manifests as one of the same form, without its provenance: what the domains of a large
    group are merged from, so that not each of them reads all shards' manifests.

    Raises TokenStoreError as `merge_shards`.
    """
    shards = [_read_part(path) for path in parts]
    files = [entry for shard in shards for entry in shard["files"]]
    return {**_common(shards), "files": files}


def _common(shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all shards have to agree on."""
    common = {}
    for key in ("dtype", "vocab_size", "bos_id", "tokenizer_sha256"):
        found = {shard[key] for shard in shards}
        if len(found) != 1:
            raise TokenStoreError(
                f"shards of different tokenizers: {key} is {' and '.join(map(str, sorted(found)))}; tokenize "
                "them again"
            )
        common[key] = found.pop()
    return common


def _read_part(path: Path) -> dict[str, Any]:
    try:
        values = read_json(path)
        if not {"files", "dtype", "vocab_size", "bos_id", "tokenizer_sha256"} <= set(values):
            raise ValueError("keys are missing")
    except (OSError, ValueError, TypeError) as error:
        raise TokenStoreError(
            f"{path} is no manifest of a tokenized shard ({error}): expected what `python -m "
            "seqarch.cli.tokenize` writes"
        ) from error
    return values
