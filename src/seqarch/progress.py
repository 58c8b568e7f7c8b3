"""Progress bars: on a terminal only, on stderr, with an ETA; silent in logs."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class Advance(Protocol):
    def __call__(self, steps: int = 1, status: str = "") -> None: ...


@contextmanager
def progress(title: str, total: int | None = None) -> Iterator[Advance]:
    """`with progress("train", 100) as advance: advance(1, "loss 3.2")`; does nothing unless stderr is
    a terminal."""
    if not sys.stderr.isatty():
        yield lambda steps=1, status="": None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[status]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total, status="")

        def advance(steps: int = 1, status: str = "") -> None:
            bar.update(task, advance=steps, status=status)

        yield advance
