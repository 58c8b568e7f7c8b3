"""Accept existing outputs under the present code, with a reason that every table made from them repeats.

    python -m seqarch.cli.adopt results/slimpajama_110m/runs --configfile config/slimpajama_110m.yaml \\
        --reason "only a log line of the trainer changed"

Run it where you run snakemake. Give files or folders; of the outputs below them, those are adopted that were
made with the same specification and other code. Nothing is adopted if one has another specification, or if a
trial, a choice, a run or its loss was made from other files than are there now (of other outputs, look to it
yourself). What was made from them is made again (evaluation, tables, figures); they are not.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from seqarch.adopt import AdoptionError, adopt, candidates, files_of, touch
from seqarch.errors import SeqarchError
from seqarch.plan import open_experiment

REPOSITORY = Path(__file__).parents[3]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m seqarch.cli.adopt",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("places", nargs="+", type=Path, help="files and folders, as under results/")
    parser.add_argument("--configfile", type=Path, default=REPOSITORY / "config" / "config.yaml")
    parser.add_argument("--snakefile", type=Path, default=REPOSITORY / "Snakefile")
    parser.add_argument("--reason", required=True, help="why the change of the code changes no number")
    args = parser.parse_args(argv)
    try:
        _adopt(args)
    except SeqarchError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _adopt(args: argparse.Namespace) -> None:
    if not args.reason.strip():
        raise AdoptionError("--reason is empty: say why the change of the code changes no number")
    plan = open_experiment(args.configfile, args.snakefile.parent / "config")
    found = candidates(plan, args.places)
    changed = [each for each in found if not each.is_adopted_already]
    if not changed:
        print("all of these were made by the present code: nothing to adopt")
        return
    # Without Snakemake's own record of an output the record inside it decides.
    files = sorted({str(file) for each in found for file in files_of(each.path)})
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(args.snakefile)]
    command += ["--configfile", str(args.configfile), "--cleanup-metadata", *files]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise AdoptionError(f"nothing was adopted, since snakemake said:\n{done.stdout}")
    for each in changed:
        adopt(each, args.reason)
        print(f"adopted {each.path}: made by code {each.record['code'][:12]}, taken for {each.code[:12]}")
    for each in found:
        touch(each.path)


if __name__ == "__main__":
    raise SystemExit(main())
