"""Negative log-likelihood of every token of a set of documents under a language model.

The protocol: semantically one document, one window at a time, each from a reset state. Windows are batched by
length and padded on the right; a causal model's earlier outputs do not depend on what follows, and the
padding's own outputs are never read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from seqarch.evaluation.windows import Ints, Windows, plan

# Logits made at a time: on a CPU what a core caches (half a megabyte is twice as fast as 16), on a GPU 1 GB.
HEAD_FLOATS = {"cpu": 2**17, "cuda": 2**28}
HEAD_ROWS = 128  # at least: fewer rows a product would read the head's weights too often


class LanguageModel(Protocol):
    """What scoring needs of a model; `seqarch.model.Decoder` has it."""

    def hidden(self, ids: torch.Tensor) -> tuple[torch.Tensor, object]:
        """Causal final hidden vectors [N, L, d] of `ids` [N, L] from a fresh state, and the state."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [M, V] of hidden vectors [M, d]."""


@dataclass(frozen=True)
class Passage:
    """One batch of windows, padded on the right to the longest."""

    inputs: torch.Tensor  # int64 [N, L], the prefix token first
    scored: torch.Tensor  # int64 [M] indices into the N·L positions whose prediction counts
    targets: torch.Tensor  # int64 [M] the tokens predicted there
    index: Ints  # [M] where they stand in the concatenation of all documents


def passages(tokens: Ints, windows: Windows, prefix: int, batch_tokens: int) -> list[Passage]:
    """The batches that score `tokens`, the concatenation of documents without prefixes, in these windows."""
    return [_passage(tokens, windows, rows, prefix) for rows in _batches(windows, batch_tokens)]


def packed(tokens: Ints, parts: Sequence[int], prefix: int, width: int, batch_tokens: int) -> list[Passage]:
    """The batches that score documents laid end to end as in training, nothing reset between them.

    Args:
        tokens: each document's ids and the prefix token, one after the other.
        parts: how many of these belong to each stream; windows do not cross from one to the next.
        width: inputs of a window; each begins where the one before it ended, whatever stands there.
    """
    starts, lengths = [], []
    first = 0
    for size in parts:
        own = np.arange(0, size, width)
        starts.append(first + own)
        lengths.append(np.minimum(width, size - own))
        first += size
    begin, length = np.concatenate(starts), np.concatenate(lengths)
    result = []
    rows = max(1, batch_tokens // width)
    fresh = np.isin(begin, np.cumsum([0, *parts]))  # nothing of the stream stands before its first token
    for at in range(0, len(begin), rows):
        part = slice(at, at + rows)
        target = begin[part, None] + np.arange(int(length[part].max()))
        inside = np.arange(target.shape[1]) < length[part, None]
        before = tokens[np.clip(target - 1, 0, len(tokens) - 1)]
        before[:, 0] = np.where(fresh[part], prefix, before[:, 0])
        inputs = np.where(inside, before, prefix)
        counts = np.flatnonzero(inside)
        index = target.reshape(-1)[counts]
        result.append(
            Passage(
                torch.from_numpy(inputs), torch.from_numpy(counts), torch.from_numpy(tokens[index]), index
            )
        )
    return result


def _batches(windows: Windows, batch_tokens: int) -> Iterator[Ints]:
    """Windows of similar length together: at most `batch_tokens` inputs with padding, at least one window."""
    order = np.argsort(-windows.length, kind="stable")
    while len(order):
        n = max(1, batch_tokens // int(windows.length[order[0]]))
        yield order[:n]
        order = order[n:]


def _passage(tokens: Ints, windows: Windows, rows: Ints, prefix: int) -> Passage:
    end, length, scored = windows.end[rows, None], windows.length[rows, None], windows.scored[rows, None]
    place = np.arange(int(length.max()))  # [L]
    target = end - length + place  # [N, L] the token predicted at each place
    inside = place < length
    inputs = np.where(inside & (place > 0), tokens[np.clip(target - 1, 0, len(tokens) - 1)], prefix)
    counts = np.flatnonzero(inside & (place >= length - scored))
    index = target.reshape(-1)[counts]
    return Passage(torch.from_numpy(inputs), torch.from_numpy(counts), torch.from_numpy(tokens[index]), index)


@torch.inference_mode()
def token_nll(
    model: LanguageModel, batches: Sequence[Passage], n_tokens: int, device: torch.device | str = "cpu"
) -> NDArray[np.float64]:
    """Nats of each of the `n_tokens` tokens, float64 [n_tokens]; log-softmax is taken in float32.

    A token that no batch scores is NaN, which every sum shows.
    """
    result = np.full(n_tokens, np.nan)
    for batch in batches:
        hidden, _ = model.hidden(batch.inputs.to(device))
        hidden = hidden.flatten(0, 1)[batch.scored.to(device)]  # [M, d]
        result[batch.index] = _cross_entropy(model, hidden, batch.targets.to(device)).cpu().numpy()
    return result


def _cross_entropy(model: LanguageModel, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """-log softmax(logits)[target] of each row [M], a cache-sized part of the logits at a time."""
    vocabulary = model.logits(hidden[:1]).shape[-1]
    rows = max(HEAD_ROWS, HEAD_FLOATS.get(hidden.device.type, 2**17) // vocabulary)
    parts = []
    for part, target in zip(hidden.split(rows), targets.split(rows), strict=True):
        logits = model.logits(part)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        parts.append(torch.nn.functional.cross_entropy(logits, target, reduction="none"))
    return torch.cat(parts).double()


def document_nll(
    model: LanguageModel,
    documents: Sequence[Ints],
    width: int,
    mode: str = "disjoint",
    *,
    prefix: int,
    batch_tokens: int = 16_384,
) -> NDArray[np.float64]:
    """Total nats of each document (token ids without prefix), float64 [documents]; 0 for an empty one."""
    lengths = np.array([len(document) for document in documents], dtype=np.int64)
    tokens = np.concatenate([np.zeros(0, dtype=np.int64), *documents])
    windows = plan(lengths, width, mode)  # type: ignore[arg-type]
    nll = token_nll(model, passages(tokens, windows, prefix, batch_tokens), len(tokens))
    return sum_by_document(nll, lengths)


def sum_by_document(nll: NDArray[np.float64], lengths: Ints) -> NDArray[np.float64]:
    """Sums over consecutive runs of `lengths` values, pairwise in float64 (np.add.reduceat is not)."""
    ends = np.cumsum(lengths)
    return np.array(
        [nll[end - n : end].sum() for end, n in zip(ends, lengths, strict=True)], dtype=np.float64
    )
