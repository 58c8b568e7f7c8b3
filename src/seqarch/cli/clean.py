"""What unfinished runs left in results/<experiment>/work, and which of it no run will ever go on from.

    python -m seqarch.cli.clean --configfile config/slimpajama_110m.yaml            lists it
    python -m seqarch.cli.clean --configfile config/slimpajama_110m.yaml --stale    deletes what is stale

A state is stale if the present configuration and code plan no run that would go on from it: the options or
the code changed. A state in use is never deleted. Run it where you run snakemake.
"""

import argparse
import fcntl
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqarch.errors import SeqarchError
from seqarch.files import read_json
from seqarch.plan import Plan, open_experiment
from seqarch.rules import RULES
from seqarch.training.workdir import ABOUT, InUseError, WorkDirectory, asked

REPOSITORY = Path(__file__).parents[3]


@dataclass(frozen=True)
class Left:
    """One directory of `work/`: of which run, and whether it is `used`, `planned`, `stale` or `unknown`."""

    path: Path
    name: str
    status: str
    n_bytes: int


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m seqarch.cli.clean",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--configfile", type=Path, default=REPOSITORY / "config" / "config.yaml")
    parser.add_argument("--stale", action="store_true", help="delete what is stale")
    args = parser.parse_args(argv)
    try:
        plan = open_experiment(args.configfile, REPOSITORY / "config")
    except SeqarchError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    found, failures = list(left(plan)), 0
    for each in found:
        word = each.status
        try:
            if args.stale and each.status == "stale" and delete(each.path):
                word = "deleted"
        except (OSError, SeqarchError) as error:
            print(f"error: {each.path} could not be deleted: {error}", file=sys.stderr)
            failures += 1
        print(f"{word:8} {each.n_bytes / 1e6:12,.1f} MB  {each.path}  {each.name}")
    if not found:
        print(f"nothing unfinished in {plan.root}/work")
    return 1 if failures else 0


def left(plan: Plan) -> Iterator[Left]:
    """The directories of unfinished runs."""
    wanted, codes = _planned(plan)
    for path in sorted(Path(plan.root, "work").glob("*/")):
        try:
            about: dict[str, Any] = read_json(path / ABOUT)
        except (OSError, ValueError):
            about = {}
        name = "/".join(str(about.get(key)) for key in ("setting", "architecture", "seed")) if about else ""
        if _is_used(path):
            status = "used"
        elif not about:
            status = "unknown"
        elif about["asked"] in wanted or (about["step"] != "train" and about["code"] in codes):
            status = "planned"
        else:
            status = "stale"
        yield Left(path, name, status, sum(file.stat().st_size for file in path.rglob("*") if file.is_file()))


def _planned(plan: Plan) -> tuple[set[str], set[str]]:
    """What the plan's runs ask for, and the code they run. A step that makes several runs in one job asks for
    more than its own specification says: its code decides."""
    wanted, codes = set(), set()
    for rule, (wildcards, _, _) in RULES.items():
        if not {"architecture", "learner"} & set(wildcards):
            continue
        for job in plan.jobs(rule):
            spec, code = plan.slice(rule, **job), plan.fingerprint(rule, **job)
            codes.add(code)
            if "launcher" in spec.get("train", {}):
                wanted.add(asked(spec, code))
    return wanted, codes


def _is_used(path: Path) -> bool:
    try:
        descriptor = os.open(path / "lock", os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def delete(path: Path) -> bool:
    """Delete an unfinished run's directory, unless it is in use. A run that starts meanwhile is refused."""
    work = WorkDirectory(path.parent, path.name)
    try:
        work.open()
    except InUseError:
        return False
    work.delete()
    return True


if __name__ == "__main__":
    raise SystemExit(main())
