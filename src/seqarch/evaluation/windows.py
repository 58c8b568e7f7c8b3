"""Windows over documents: which inputs a model reads, and which of its predictions count.

A document is t_0 … t_{n-1}; the prefix token (BOS) stands before it, is input only and is never scored. A
window that predicts t_a … t_{a+m-1} reads [BOS, t_a, …, t_{a+m-2}], m inputs for m predictions, from a reset
state.

- disjoint: windows of at most W predictions side by side; all count. Fast and pessimistic: each begins anew.
- sliding: the first window is as above; every later one reads W inputs and only its last S = W/2 predictions
  (fewer at the document's end) count.

Every token counts exactly once in both.

Where the end of each document is scored too, a BOS follows its tokens, as the next document's does in
training: the document is laid out as t_0 … t_{n-1}, BOS (`with_ends`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from seqarch.errors import ConfigError

Mode = Literal["disjoint", "sliding"]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Windows:
    """N windows over documents laid end to end (without prefix tokens).

    Window i predicts tokens `end[i] - length[i] : end[i]` of the concatenation; its last `scored[i]` count.
    """

    document: Ints  # [N] index of the document
    end: Ints  # [N] one past the last token predicted
    length: Ints  # [N] predictions, which is also the number of inputs
    scored: Ints  # [N] 1 <= scored <= length

    def __len__(self) -> int:
        return len(self.document)


def stride(width: int, mode: Mode) -> int:
    """Tokens between the ends of successive windows of a document."""
    if mode == "disjoint":
        return width
    if width % 2:
        raise ConfigError(
            f"sliding windows have stride W/2, and W = {width} is odd: choose an even training length"
        )
    return width // 2


def plan(lengths: Sequence[int] | Ints, width: int, mode: Mode) -> Windows:
    """The windows of documents with these numbers of tokens (prefix not counted), in document order."""
    n_tokens = np.asarray(lengths, dtype=np.int64)
    step = stride(width, mode)
    later = np.maximum(n_tokens - width, 0)
    counts = np.where(n_tokens > 0, 1 + -(-later // step), 0)
    document = np.repeat(np.arange(len(n_tokens)), counts)
    number = np.arange(len(document)) - np.repeat(
        np.cumsum(counts) - counts, counts
    )  # 0 = a document's first
    total = n_tokens[document]
    end = np.minimum(width + number * step, total)
    scored = np.where(number == 0, end, end - (width + (number - 1) * step))
    length = np.minimum(width, end) if mode == "sliding" else scored
    starts = np.cumsum(n_tokens) - n_tokens
    return Windows(document, end + starts[document], length, scored)


def with_ends(windows: Windows, lengths: Sequence[int] | Ints, width: int) -> Windows:
    """The same windows over documents that are each followed by one more token, their end, which counts too.

    A document's last window is longer by one; where it has `width` inputs already, the end gets a window of
    its own with the last `width` − 1 tokens. All other predictions read what they read before. An empty
    document has no windows.
    """
    n_tokens = np.asarray(lengths, dtype=np.int64)
    end, length, scored = windows.end + windows.document, windows.length.copy(), windows.scored.copy()
    last = np.flatnonzero(np.diff(windows.document, append=len(n_tokens)))
    room = last[length[last] < width]
    for part in (end, length, scored):
        part[room] += 1
    full = last[windows.length[last] == width]
    ones = np.ones(len(full), dtype=np.int64)
    return Windows(
        np.concatenate([windows.document, windows.document[full]]),
        np.concatenate([end, end[full] + 1]),
        np.concatenate([length, np.minimum(width, n_tokens[windows.document[full]] + 1)]),
        np.concatenate([scored, ones]),
    )


def positions(windows: Windows, n_tokens: int) -> Ints:
    """Tokens since the last state reset where each token is scored, int64 [n_tokens]."""
    index = _scored_tokens(windows)
    first = windows.end - windows.length
    result = np.full(n_tokens, -1, dtype=np.int64)
    result[index] = index - np.repeat(first, windows.scored)
    return result


def complete(windows: Windows, n_tokens: int, width: int) -> NDArray[np.bool_]:
    """Tokens of windows that score all `width` of their positions, bool [n_tokens].

    Averages over these put the same windows into every position; others would compare different text.
    """
    result = np.zeros(n_tokens, dtype=bool)
    result[_scored_tokens(windows)] = np.repeat(windows.scored == width, windows.scored)
    return result


def _scored_tokens(windows: Windows) -> Ints:
    """The index of every scored token, window by window."""
    offset = np.arange(windows.scored.sum()) - np.repeat(
        np.cumsum(windows.scored) - windows.scored, windows.scored
    )
    return np.repeat(windows.end - windows.scored, windows.scored) + offset
