"""Stopping without losing the step in progress: on a signal, or before the job's time is up."""

import logging
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

log = logging.getLogger(__name__)

MARGIN, MARGIN_SHARE = 60.0, 0.1  # seconds before the end, and their share of what was left at the start


class Stop:
    """Whether to stop after the present step, and why.

    Args:
        ends: when the job will be killed, in seconds since the epoch.
    """

    def __init__(self, ends: float | None = None) -> None:
        self.signal: signal.Signals | None = None
        self._ends = ends
        self._lap = self._longest = 0.0
        self._margin = 0.0 if ends is None else min(MARGIN, MARGIN_SHARE * max(0.0, ends - time.time()))

    def __bool__(self) -> bool:
        return self.signal is not None or self._time_is_up()

    @property
    def reason(self) -> str:
        if self.signal is None:
            return "its time limit"  # or another process was asked to: all stop together
        return self.signal.name

    def lap(self) -> None:
        """A step begins. The longest so far, with all that comes between two, is what the next may take."""
        now = time.time()
        if self._lap:
            self._longest = max(self._longest, now - self._lap)
        self._lap = now

    def _time_is_up(self) -> bool:
        # Another step, and as long again for saving.
        return self._ends is not None and time.time() + 2 * self._longest + self._margin > self._ends


@contextmanager
def stop_on_signal(ends: float | None = None, patient: bool = False) -> Iterator[Stop]:
    """Within it SIGTERM, SIGINT or SIGUSR2 (submitit's) only sets the flag; a second one acts as before.

    Args:
        ends: see Stop.
        patient: a second signal does nothing either. For a process that a launcher watches: it gets the
            signals of the job and, once more, those that the launcher passes on.
    """
    stop = Stop(ends)
    handled = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
    before = {number: signal.getsignal(number) for number in handled}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask(number: int, frame: FrameType | None) -> None:
        stop.signal = signal.Signals(number)
        if not patient:
            restore()

    for number in handled:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        restore()


def end_of_slurm_job() -> float | None:
    """When Slurm will end the job that this process is in, in seconds since the epoch; None: not known."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    command = ["squeue", "--noheader", f"--jobs={job}", "--format=%L"]
    try:
        left = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("the job's time limit is not known (%s): it will be stopped by it", error)
        return None
    seconds = _seconds(left)
    return None if seconds is None else time.time() + seconds


def _seconds(text: str) -> float | None:
    """Slurm's [[days-]hours:]minutes:seconds; None for UNLIMITED and the like."""
    found = re.fullmatch(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)", text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
