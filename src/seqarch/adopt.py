"""Accept existing outputs under the present code: a log line changed, and weeks of training stand.

An output is adopted only if its specification is the one that the configuration plans; what differs is the
code alone. Its record then carries the present code and, for ever, where it really came from: `adopted`, with
the code that made it and the reason. Records of everything made from it repeat that (`provenance.record`).
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqarch.errors import SeqarchError
from seqarch.files import canonical_json, read_json, sha256_text, write_json, write_parquet
from seqarch.plan import Plan
from seqarch.provenance import read_record

RUN = "run.json"  # its folder is one output as a whole


class AdoptionError(SeqarchError):
    """An output cannot be adopted."""


@dataclass(frozen=True)
class Candidate:
    """An output with the code that it should have been made with."""

    path: Path
    record: dict[str, Any]
    code: str
    recipe: str

    @property
    def is_adopted_already(self) -> bool:
        return self.record["recipe"] == self.recipe


def candidates(plan: Plan, places: Sequence[Path]) -> list[Candidate]:
    """The plan's outputs at or below the given files and folders (relative to the working directory), in the
    order in which they are made.

    Raises AdoptionError for a place without any, and for outputs of another specification.
    """
    found: dict[str, Candidate] = {}
    problems = []
    for place in places:
        here = [path for path in plan.producers if Path(path) == place or place in Path(path).parents]
        existing = [path for path in here if os.path.exists(path)]
        if not existing:
            problems.append(f"{place}: no output of this configuration is there; paths begin with results/")
        for path in existing:
            rule, job = plan.producers[path]
            record = read_record(Path(path))
            if record is None:
                problems.append(f"{path}: carries no provenance record")
            elif record["spec_sha256"] != sha256_text(canonical_json(plan.slice(rule, **dict(job)))):
                problems.append(f"{path}: was made with another specification, not just with other code")
            else:
                code = plan.fingerprint(rule, **dict(job))
                found[path] = Candidate(Path(path), record, code, plan.recipe(rule, job))
    if problems:
        raise AdoptionError("nothing was adopted:\n" + "\n".join(f"  {problem}" for problem in problems))
    return [found[path] for path in plan.producers if path in found]


def adopt(candidate: Candidate, reason: str) -> None:
    """Write the present code into the output's record, and beside it what it replaces."""
    path, old = candidate.path, candidate.record
    origin = {"path": str(path), "code": old["code"], "recipe": old["recipe"], "reason": reason}
    record = old | {
        "code": candidate.code,
        "recipe": candidate.recipe,
        "adopted": [*old.get("adopted", []), origin],
    }
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        write_parquet(path, pq.read_table(path), record)
    else:
        write_json(path, {**read_json(path), "provenance": record})


def touch(path: Path) -> None:
    """Date an output now: what was made from it is older, and is made again."""
    for file in files_of(path):
        os.utime(file)
        stamp = file / ".snakemake_timestamp"  # the date of an output that is a folder
        if stamp.exists():
            os.utime(stamp)


def files_of(path: Path) -> Iterator[Path]:
    """Everything that the job which made `path` left beside it: Snakemake has a record of each."""
    if path.name == RUN:
        yield from path.parent.iterdir()
    else:
        yield from (each for each in path.parent.iterdir() if each.stem == path.stem)
