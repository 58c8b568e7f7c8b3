"""The process-wide switches that training runs under."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def numerics(threads: int, device: torch.device) -> Iterator[None]:
    """Set the number of threads and, on a CPU, deterministic algorithms; restore both at the end.

    Sums depend on how they are split between threads, so equal results need an equal number of them.
    Denormals are flushed to zero: they are slow, and Adam's moments of rare tokens decay into them.
    """
    deterministic: Any = torch.utils.deterministic  # a module whose attributes are set from outside its file
    before = (
        torch.get_num_threads(),
        torch.get_deterministic_debug_mode(),
        deterministic.fill_uninitialized_memory,
    )
    torch.set_num_threads(threads)
    # For eager code the same as torch.use_deterministic_algorithms, which would import the compiler as well.
    torch.set_deterministic_debug_mode("error" if device.type == "cpu" else "default")
    deterministic.fill_uninitialized_memory = False  # a debugging aid that fills every new tensor
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(before[0])
        torch.set_deterministic_debug_mode(before[1])
        deterministic.fill_uninitialized_memory = before[2]
