"""Accept existing outputs under the present code: a log line changed, and weeks of training stand.

An output is adopted only if its specification is the one that the configuration plans, and it was made from
the files that are there now, as far as `inputs_of` knows them; what differs is the code alone. Its record
then carries the present code and, for ever, where it really came from: `adopted`, with the code that made it
and the reason. Records of everything made from it repeat that (`provenance.record`).
"""

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqarch.errors import SeqarchError
from seqarch.files import canonical_json, read_json, sha256_file, sha256_text, write_json, write_parquet
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

    Raises AdoptionError for a place without any, and for outputs of another specification or other inputs.
    """
    found: dict[str, Candidate] = {}
    problems = []
    digest = functools.cache(sha256_file)  # runs share their inputs
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
            elif other := other_inputs(record, inputs_of(plan, rule, dict(job)), digest):
                names = ", ".join(map(str, other))
                problems.append(
                    f"{path}: was made from other files than are there now: {names}. Bring those back or let "
                    "snakemake make it again"
                )
            else:
                code = plan.fingerprint(rule, **dict(job))
                found[path] = Candidate(Path(path), record, code, plan.recipe(rule, job))
    if problems:
        raise AdoptionError("nothing was adopted:\n" + "\n".join(f"  {problem}" for problem in problems))
    return [found[path] for path in plan.producers if path in found]


def inputs_of(plan: Plan, rule: str, job: Mapping[str, str]) -> dict[str, Path]:
    """The files that the record of a trial, a choice, a run or its loss carries the sha256 of, by their names
    there; none for other outputs."""
    named: dict[str, str] = {}
    if rule in ("train", "sweep"):
        for split in ("train", "validation"):
            domains = list(plan.experiment.corpus.domains)
            paths = plan.token_manifests(split, domains)
            named |= {f"{split}/{domain}": path for domain, path in zip(domains, paths, strict=True)}
    if rule == "train":
        named["choice"] = plan.path("choice").format(**job)
    if rule == "choice":
        named |= {f"trial {Path(path).parent.name}": path for path in plan.paths("sweep", 1, **job)}
    if rule == "loss":
        spec = plan.slice(rule, **job)
        named |= {domain: plan.path("evaluation_set").format(domain=domain) for domain in spec["domains"]}
        folder = f"{plan.run.format(**job)}/checkpoints"
        named |= {name: f"{folder}/{name}.safetensors" for name in spec["train"]["checkpoints"]}
    return {name: Path(path) for name, path in named.items()}


def other_inputs(
    record: Mapping[str, Any], files: Mapping[str, Path], digest: Callable[[Path], str]
) -> list[Path]:
    """The files that are there, but not what the record names: neither now nor before they were adopted."""
    return [
        file
        for name, file in files.items()
        if name in record["inputs"] and file.exists()
        if record["inputs"][name] not in {digest(file), *_replaced(file)}
    ]


def _replaced(path: Path) -> set[str]:
    """The sha256 that an adopted file had before."""
    origins = (read_record(path) or {}).get("adopted", [])
    return {origin["sha256"] for origin in origins if origin["path"] == str(path) and "sha256" in origin}


def adopt(candidate: Candidate, reason: str) -> None:
    """Write the present code into the output's record, and beside it what it replaces."""
    path, old = candidate.path, candidate.record
    origin = {"path": str(path), "code": old["code"], "recipe": old["recipe"], "reason": reason}
    if path.name != RUN:  # no record names run.json, whose times would make equal runs' tables differ
        origin["sha256"] = sha256_file(path)
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
