"""The one place where an op chooses who computes it."""

import functools
import logging
from collections.abc import Callable, Mapping

from torch import Tensor

from seqarch.errors import SeqarchError

logger = logging.getLogger(__name__)

Candidates = Mapping[str, Callable[[], str | None]]


class BackendUnavailable(SeqarchError):
    """A backend was asked for by name and can't serve this call."""


def choose(op: str, q: Tensor, *, backend: str = "auto", candidates: Candidates | None = None) -> str:
    """The backend of one call. "auto" takes the first that can serve it and logs each choice once.

    Args:
        op: name of the op.
        q: one of its inputs, for the device.
        backend: "auto", or a backend by name, which raises BackendUnavailable with the reason if it can't.
        candidates: what the op has beside its reference, best first: name -> the reason why it can't serve
            this call, or None.

    Returns: "reference" or the name of a candidate.
    """
    candidates = candidates or {}
    if backend == "reference" or (backend == "auto" and q.device.type == "cpu"):
        return "reference"
    if backend == "auto":
        reasons: list[str] = []
        for name, unsupported in candidates.items():
            reason = unsupported()
            if reason is None:
                _log_once(op, name, "; ".join(reasons) or "first choice")
                return name
            reasons.append(f"{name}: {reason}")
        _log_once(op, "reference", "; ".join(reasons) or "it has no GPU backend")
        return "reference"
    known = ", ".join(["auto", *candidates, "reference"])
    if backend not in candidates:
        raise BackendUnavailable(f"{op}: no backend {backend!r}; it has {known}")
    reason = candidates[backend]()
    if reason is not None:
        raise BackendUnavailable(
            f"{op}: backend {backend!r} can't serve this call: {reason}; use 'auto' or 'reference'"
        )
    return backend


@functools.cache
def _log_once(op: str, backend: str, reason: str) -> None:
    logger.info("%s runs on backend %s (%s)", op, backend, reason)
