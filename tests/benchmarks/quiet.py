"""How many cores other processes use: times measured beside them mean nothing."""

import os
import time
from types import TracebackType

import psutil

QUIET = 0.15  # cores that others may use


class Others:
    """`with Others() as others: ...`, then `others.cores`: what other processes used of the cores inside.

    Counted with what the hypervisor took; without this process and the children that it waited for.
    """

    cores: float

    def __enter__(self) -> "Others":
        self._before, self._started = _others_seconds(), time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        elapsed = max(time.monotonic() - self._started, 1e-3)
        self.cores = round(max(0.0, _others_seconds() - self._before) / elapsed, 2)

    @property
    def quiet(self) -> bool:
        return self.cores <= QUIET


def busy_cores(seconds: float = 1.0) -> float:
    """Cores that other processes are using, measured while this one sleeps."""
    with Others() as others:
        time.sleep(seconds)
    return others.cores


def _others_seconds() -> float:
    machine, own = psutil.cpu_times(), os.times()
    used = machine.user + machine.system + getattr(machine, "nice", 0.0) + getattr(machine, "steal", 0.0)
    return used - own.user - own.system - own.children_user - own.children_system
