"""What the corpus is: one row a domain and split."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from seqarch.files import read_json
from seqarch.schema import Spec
from seqarch.tokens.evaluation_set import LOW_N
from seqarch.tokens.store import TokenSet
from seqarch.tokens.text import TextError

QUANTILES = {"min": 0.0, "p05": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "max": 1.0}
SPLITS = ("train", "validation", "test")
SCHEMA = pa.schema(
    [
        ("corpus", pa.string()),
        ("domain", pa.string()),
        ("role", pa.string()),  # in | out
        ("split", pa.string()),
        ("n_docs", pa.int64()),  # without duplicates
        ("n_duplicates", pa.int64()),  # dropped
        ("n_bytes", pa.int64()),  # of the texts in UTF-8
        ("n_tokens", pa.int64()),  # a BOS a document included
        ("n_roundtrip_fail", pa.int64()),  # documents that do not decode to their text
        ("low_n", pa.bool_()),
        *((f"doc_bytes_{name}", pa.int64()) for name in QUANTILES),
        *((f"doc_tokens_{name}", pa.int64()) for name in QUANTILES),
    ]
)


class CorpusTableStep(Spec):
    """`cli.corpus_table`."""

    corpus: str
    domains: dict[str, Literal["in", "out"]]


def corpus_table(
    spec: CorpusTableStep, text_manifests: Sequence[Path], token_manifests: Sequence[Path]
) -> pa.Table:
    """Rows in the order of the configuration's domains, then train, validation, test. Columns: SCHEMA.

    Lengths of documents are exact quantiles (a document's own length, not interpolated), empty where there is
    none. Memory: the lengths of one split of one domain.

    Raises:
        TextError: a domain's manifest is missing. TokenStoreError: a token file is not what it should be.
    """
    texts: dict[str, dict[str, Any]] = {}
    for path in text_manifests:
        texts |= read_json(path)["domains"]
    tokens = {(each.domain, each.split): each for each in map(TokenSet, token_manifests)}
    rows = []
    for domain, role in spec.domains.items():
        for split in SPLITS:
            if domain not in texts or (domain, split) not in tokens:
                raise TextError(
                    f"{split} of {domain!r}: expected a manifest of its text and one of its tokens"
                )
            duplicates = texts[domain].get(split, {}).get("duplicates", 0)
            row = {"corpus": spec.corpus, "domain": domain, "role": role, "split": split}
            rows.append(row | {"n_duplicates": duplicates} | _counts(tokens[domain, split]))
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _counts(tokens: TokenSet) -> dict[str, Any]:
    docs = [file.path.with_suffix(".docs.parquet") for file in tokens.files]
    return {
        "n_docs": tokens.n_docs,
        "n_bytes": tokens.n_bytes,
        "n_tokens": tokens.n_tokens,
        "n_roundtrip_fail": read_json(tokens.path)["n_roundtrip_fail"],
        "low_n": tokens.n_docs < LOW_N,
        **_quantiles(docs, "n_bytes", "doc_bytes"),
        **_quantiles(docs, "n_tokens", "doc_tokens"),
    }


def _quantiles(docs: Sequence[Path], column: str, prefix: str) -> dict[str, int | None]:
    if not docs:
        return {f"{prefix}_{name}": None for name in QUANTILES}
    lengths = np.concatenate([pq.read_table(path, columns=[column]).column(0).to_numpy() for path in docs])
    values = np.quantile(lengths, list(QUANTILES.values()), method="inverted_cdf")
    return {f"{prefix}_{name}": int(value) for name, value in zip(QUANTILES, values, strict=True)}
