"""From nats per token to the three tables of the loss evaluation.

Units: nll in nats, summed in float64; nats_per_token = Σ nll / Σ tokens within a domain; bits per byte =
Σ nll / (ln 2 · Σ UTF-8 bytes of the original text). A macro row is the unweighted mean over domains.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from seqarch.evaluation.bootstrap import draws
from seqarch.evaluation.columns import ROLE
from seqarch.evaluation.windows import Ints

LOW_N = 30  # documents below which a domain's numbers are flagged
MACRO = {"in": "macro_id", "out": "macro_ood"}

POINT = [
    ("step", pa.int64()),
    ("tokens_seen", pa.int64()),
    ("phase", pa.string()),
    ("domain", pa.string()),
    ("role", pa.string()),
    ("eval_len", pa.int64()),
    ("stride", pa.int64()),
    ("window_mode", pa.string()),
    ("boundary_mode", pa.string()),
    ("prefix_token", pa.int64()),
    ("dtype", pa.string()),
]
DOCS = pa.schema(
    [
        *POINT,
        ("doc_id", pa.string()),
        ("doc_sha256", pa.string()),
        ("n_bytes", pa.int64()),
        ("n_tokens", pa.int64()),
        ("nll_nats", pa.float64()),
        ("eos_nll", pa.float64()),
        ("roundtrip_ok", pa.bool_()),
        ("eval_set_sha256", pa.string()),
    ]
)
POSITIONS = pa.schema(
    [
        *POINT,
        ("train_length", pa.int64()),
        ("bucket_lo", pa.int64()),
        ("bucket_hi", pa.int64()),
        ("n_docs", pa.int64()),
        ("n_tokens", pa.int64()),
        ("nll_nats", pa.float64()),
        ("nats_per_token", pa.float64()),
    ]
)
DOMAINS = pa.schema(
    [
        *POINT,
        ("nats_per_token", pa.float64()),
        ("bpb", pa.float64()),
        ("doc_weighted_bpb", pa.float64()),
        ("n_docs", pa.int64()),
        ("n_empty", pa.int64()),
        ("n_tokens", pa.int64()),
        ("n_bytes", pa.int64()),
        ("n_roundtrip_fail", pa.int64()),
        ("low_n", pa.bool_()),
        ("eval_set_sha256", pa.string()),
    ]
)


@dataclass(frozen=True)
class Documents:
    """One domain's documents as the tables need them; arrays of [documents]."""

    domain: str
    role: str  # in | out
    n_tokens: Ints  # without the prefix
    n_bytes: Ints
    roundtrip_ok: NDArray[np.bool_]
    set_sha256: str


@dataclass(frozen=True)
class Level:
    """How intervals are drawn."""

    seed: int
    replicates: int
    confidence: float


def domain_rows(
    documents: Sequence[Documents], nll: Sequence[NDArray[np.float64]], level: Level
) -> list[dict]:
    """A row per domain, then macro_id and macro_ood, from nats per document; intervals over documents."""
    rows, replicates = [], []
    for part, nats in zip(documents, nll, strict=True):
        draws = _bootstrap(part, nats, level)
        rows.append(_domain_row(part, nats) | _interval(draws, level))
        replicates.append(draws)
    for role, name in MACRO.items():
        chosen = [i for i, part in enumerate(documents) if part.role == role]
        if chosen:
            draws = np.mean([replicates[i] for i in chosen], axis=0)
            rows.append(_macro_row(name, role, [rows[i] for i in chosen]) | _interval(draws, level))
    return rows


def _domain_row(part: Documents, nats: NDArray[np.float64]) -> dict[str, Any]:
    n_tokens, n_bytes, total = int(part.n_tokens.sum()), int(part.n_bytes.sum()), float(nats.sum())
    failures = int((~part.roundtrip_ok).sum())
    valid = failures == 0 and n_bytes > 0
    filled = part.n_bytes > 0
    per_document = nats[filled] / (math.log(2) * part.n_bytes[filled])
    return {
        "domain": part.domain,
        "role": ROLE[part.role],
        "nats_per_token": total / n_tokens if n_tokens else None,
        "bpb": total / (math.log(2) * n_bytes) if valid else None,
        "doc_weighted_bpb": float(per_document.mean()) if valid else None,
        "n_docs": len(nats),
        "n_empty": int((part.n_tokens == 0).sum()),
        "n_tokens": n_tokens,
        "n_bytes": n_bytes,
        "n_roundtrip_fail": failures,
        "low_n": len(nats) < LOW_N,
        "eval_set_sha256": part.set_sha256,
        "dataset_key": part.set_sha256,
    }


def _macro_row(name: str, role: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    def mean(column: str) -> float | None:
        values = [row[column] for row in rows]
        return None if None in values else float(np.mean(values))

    means = {column: mean(column) for column in ("nats_per_token", "bpb", "doc_weighted_bpb")}
    counts = ("n_docs", "n_empty", "n_tokens", "n_bytes", "n_roundtrip_fail")
    sums = {column: sum(row[column] for row in rows) for column in counts}
    low = any(row["low_n"] for row in rows)
    return {"domain": name, "role": ROLE[role], "low_n": low, **means, **sums}


def _bootstrap(part: Documents, nats: NDArray[np.float64], level: Level) -> NDArray[np.float64]:
    """Nats per token of each replicate [replicates]; NaN where a replicate has no token."""
    if len(nats) < 2:
        return np.full(level.replicates, np.nan)
    counts = draws(part.domain, len(nats), level.seed, level.replicates)
    tokens = counts @ part.n_tokens
    return np.divide(counts @ nats, tokens, out=np.full(level.replicates, np.nan), where=tokens > 0)


def _interval(replicates: NDArray[np.float64], level: Level) -> dict[str, float | None]:
    """Percentile interval; empty with fewer than two documents."""
    if np.isnan(replicates).any():
        return {"ci_lo": None, "ci_hi": None}
    tail = (1 - level.confidence) / 2
    low, high = np.quantile(replicates, [tail, 1 - tail])
    return {"ci_lo": float(low), "ci_hi": float(high)}


def position_rows(
    documents: Sequence[Documents],
    nll: Sequence[NDArray[np.float64]],
    position: Sequence[Ints],
    complete: Sequence[NDArray[np.bool_]],
    train_length: int,
    bucket: int,
) -> list[dict[str, Any]]:
    """Nats by tokens since the state reset, a row per domain and bucket [bucket_lo, bucket_hi).

    Only documents of at least 2 · train_length tokens and windows that score all their positions enter, so
    that every bucket averages the same windows (a domain without any has no rows).

    Args:
        nll, position, complete: per domain, arrays over its tokens, documents end to end.
    """
    rows = []
    for part, nats, place, full in zip(documents, nll, position, complete, strict=True):
        long = part.n_tokens >= 2 * train_length
        document = np.repeat(np.arange(len(part.n_tokens)), part.n_tokens)
        use = full & long[document]
        if not use.any():
            continue
        top = int(place[use].max()) + 1
        buckets = place[use] // bucket
        tokens = np.bincount(buckets)
        sums = np.bincount(buckets, weights=nats[use])
        n_docs = len(np.unique(document[use]))
        for i, (n, total) in enumerate(zip(tokens, sums, strict=True)):
            row = {"domain": part.domain, "role": ROLE[part.role], "train_length": train_length}
            row |= {"bucket_lo": i * bucket, "bucket_hi": min((i + 1) * bucket, top), "n_docs": n_docs}
            rows.append(
                row | {"n_tokens": int(n), "nll_nats": float(total), "nats_per_token": float(total / n)}
            )
    return rows
