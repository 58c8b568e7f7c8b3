"""Stopping on a signal without losing the step in progress."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """Whether a signal asked for a stop, and which one."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


@contextmanager
def stop_on_signal() -> Iterator[Stop]:
    """Within it the first SIGTERM or SIGINT only sets the flag; a second one acts as before."""
    stop = Stop()
    handled = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in handled}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask(number: int, frame: FrameType | None) -> None:
        stop.signal = signal.Signals(number)
        restore()

    for number in handled:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        restore()
