"""What one training run is given, beside its spec: where it reads, works and writes, and who watches it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqarch.training.data import OpenData, open_data
from seqarch.training.spec import RunSpec


@dataclass(frozen=True)
class Job:
    """One training run, as a launcher hands it to the process that trains.

    Attributes:
        manifests: token manifests: `train/<domain>`, and `validation/<domain>` of the in-domain ones.
        work: the directory for unfinished runs. run: the run directory to make.
        record: provenance of the outputs.
        device: cpu, cuda or auto.
        save_seconds: between two saved states.
        trial: the run only tries a learning rate: it publishes no checkpoint, and a loss that is not finite
            ends it with what was measured before.
        open_data: opens the data that the spec names.
        ends: when the process will be killed, in seconds since the epoch; it stops before, in good time.
        invocation: of the `snakemake` whose attempt this is; two attempts without progress are its last.
        verify: called before the run directory is made; what it raises ends the run, with its state kept.
    """

    spec: RunSpec
    manifests: Mapping[str, Path]
    work: Path
    run: Path
    record: Mapping[str, Any]
    device: str = "auto"
    save_seconds: float = 300.0
    trial: bool = False
    open_data: OpenData = open_data
    ends: float | None = None
    invocation: str | None = None
    verify: Callable[[], None] | None = None
