"""How a run shows that it gets on: a bar on a terminal, a line now and then in a log."""

import logging
import sys
import time

from seqarch.progress import Advance
from seqarch.training.metrics import Row

log = logging.getLogger(__name__)

LINES = 20  # of a whole run, at least
SECONDS = 60.0  # between two lines, at most


class Reporter:
    """Tells of each step.

    Args:
        total: steps of the whole run, branches included.
        done: of them, made by earlier processes.
        flops_per_token: of training. peak: the device's FLOP/s, or None.
    """

    def __init__(
        self,
        advance: Advance,
        total: int,
        done: int,
        batch_tokens: int,
        flops_per_token: float,
        peak: float | None,
    ) -> None:
        self._advance, self._total, self._done = advance, total, done
        self._batch_tokens, self._flops, self._peak = batch_tokens, flops_per_token, peak
        self._quiet = sys.stderr.isatty()  # the bar tells it all
        self._last_done, self._last_time = done, time.monotonic()
        if done:
            advance(done)

    def step(self, row: Row) -> None:
        self._done += 1
        self._advance(1, f"loss {row.loss:.3f}  {self._batch_tokens / row.seconds:,.0f} tokens/s")
        since, now = self._done - self._last_done, time.monotonic()
        due = since >= self._total / LINES or now - self._last_time > SECONDS or self._done == self._total
        if self._quiet or not due:
            return
        pace = (now - self._last_time) / since  # seconds a step, validation included
        speed = self._batch_tokens / pace
        mfu = f"  mfu {speed * self._flops / self._peak:.1%}" if self._peak else ""
        log.info(
            "%s step %d (%.0f %%)  loss %.4f  lr %.2e  grad norm %.2f  %s tokens/s%s  eta %s",
            row.branch,
            row.step,
            100 * self._done / self._total,
            row.loss,
            row.lr,
            row.grad_norm,
            f"{speed:,.0f}",
            mfu,
            _duration(pace * (self._total - self._done)),
        )
        self._last_done, self._last_time = self._done, now


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
