"""The loss of a model that knows the frequencies of tokens and nothing else: what learning has to beat.

For a setting with training frequencies q and a domain with frequencies p (its evaluation set), the loss is
the cross-entropy −Σ_v p_v ln q_v in nats per token. q counts the training tokens of the setting's domains
in their mix, each entry once more than it occurs, so that none is impossible. BOS is never scored and is
left out.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from seqarch.analysis.errors import ComparisonError
from seqarch.analysis.spec import UnigramJob
from seqarch.evaluation.columns import ROLE
from seqarch.tokens.evaluation_set import EvaluationSet
from seqarch.tokens.store import TokenSet

SCHEMA = pa.schema(
    [
        ("experiment", pa.string()),
        ("setting", pa.string()),
        ("domain", pa.string()),
        ("role", pa.string()),
        ("nats_per_token", pa.float64()),
        ("bpb", pa.float64()),
        ("n_tokens", pa.int64()),
        ("train_tokens", pa.int64()),  # counted for q
    ]
)


def unigram(job: UnigramJob, manifests: Sequence[Path], sets: Path) -> pa.Table:
    """A row per setting and domain, then macro_id and macro_ood (unweighted means).

    Args:
        manifests: of the training tokens of all domains that a setting trains on.
        sets: folder of the evaluation sets.
    """
    train = {each.domain: each for each in map(TokenSet, manifests)}
    needed = {domain for weights in job.settings.values() for domain in weights}
    if missing := sorted(needed - train.keys()):
        raise ComparisonError(f"no training manifest of {', '.join(missing)}: give one for each domain")
    counts = {domain: _counts(train[domain], job.max_tokens) for domain in sorted(needed)}
    evaluated = {domain: EvaluationSet(sets / f"{domain}.json") for domain in sorted(job.domains)}
    rows = []
    for setting, weights in sorted(job.settings.items()):
        log_q = np.log(_frequencies(weights, counts, train))
        seen = int(sum(counts[domain].sum() for domain in weights))
        found = [_row(each, log_q, seen) for each in evaluated.values()]
        for role, macro in (("id", "macro_id"), ("ood", "macro_ood")):
            found += _macro([row for row in found if row["role"] == role], role, macro, seen)
        rows += [{"experiment": job.experiment, "setting": setting} | row for row in found]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _counts(tokens: TokenSet, most: int) -> NDArray[np.int64]:
    """How often each id occurs in the first `most` tokens of the files together, BOS left out."""
    counts = np.zeros(tokens.vocab_size, dtype=np.int64)
    share = max(1, most // max(1, len(tokens.files)))
    for file in tokens.files:
        for start in range(0, min(share, file.n_tokens), 2**24):
            part = file.ids[start : min(start + 2**24, share)]
            counts += np.bincount(part, minlength=tokens.vocab_size)
    counts[tokens.bos_id] = 0
    return counts


def _frequencies(
    weights: Mapping[str, float | None], counts: Mapping[str, NDArray], train: Mapping[str, TokenSet]
) -> NDArray[np.float64]:
    """The training mix's frequencies [V]: domains by weight, or by their tokens where weights are null."""
    shares = {domain: train[domain].n_tokens if w is None else w for domain, w in weights.items()}
    total = sum(counts[domain].sum() for domain in weights)
    scale = total / sum(shares.values())
    mixed = sum(scale * shares[d] * counts[d] / max(1, counts[d].sum()) for d in sorted(weights))
    return (mixed + 1) / (mixed + 1).sum()


def _row(each: EvaluationSet, log_q: NDArray[np.float64], seen: int) -> dict:
    nats = -float(log_q[each.ids].sum())
    valid = all(document.roundtrip_ok for document in each) and each.n_bytes > 0
    return {
        "domain": each.domain,
        "role": ROLE[each.role],
        "nats_per_token": nats / each.n_tokens if each.n_tokens else None,
        "bpb": nats / (math.log(2) * each.n_bytes) if valid else None,
        "n_tokens": each.n_tokens,
        "train_tokens": seen,
    }


def _macro(rows: Sequence[dict], role: str, name: str, seen: int) -> list[dict]:
    if not rows:
        return []
    means = {}
    for column in ("nats_per_token", "bpb"):
        values = [row[column] for row in rows]
        means[column] = None if None in values else float(np.mean(values))
    tokens = sum(row["n_tokens"] for row in rows)
    return [{"domain": name, "role": role, "n_tokens": tokens, "train_tokens": seen} | means]
