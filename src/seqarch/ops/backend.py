"""The one place where an op chooses who computes it."""

import functools
import logging
from typing import Literal

from torch import Tensor

from seqarch.errors import SeqarchError

Backend = Literal["reference", "fla", "triton"]
logger = logging.getLogger(__name__)


class BackendUnavailable(SeqarchError):
    """A backend was asked for by name and can't serve this call."""


def choose(op: str, q: Tensor, *, backend: str = "auto") -> Backend:
    """The backend of one call. "auto" takes the fastest that can serve it and logs each choice once.

    Args:
        op: name of the op.
        q: one of its inputs, for device, dtype and head width.
        backend: "auto", or a backend by name, which raises BackendUnavailable with the reason if it can't.
    """
    if backend in ("auto", "reference"):
        if q.device.type != "cpu":
            _log_once(op, "reference", "no GPU backend serves this op")
        return "reference"
    raise BackendUnavailable(
        f"{op}: backend {backend!r} is not available on {q.device.type}; use 'auto' or 'reference'"
    )


@functools.cache
def _log_once(op: str, backend: str, reason: str) -> None:
    logger.info("%s runs on backend %s: %s", op, backend, reason)
