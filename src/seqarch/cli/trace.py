"""Where a number comes from: the chain from a figure or a table's row to the raw files.

python -m seqarch.cli.trace results/demo/tables/claims.csv:3
python -m seqarch.cli.trace results/demo/figures/equal_loss.svg
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from seqarch.analysis.trace import Node, TraceError, read_row, split_row, trace, walk
from seqarch.errors import SeqarchError
from seqarch.files import canonical_json, read_json

SHORT = 100  # letters of a spec, and of a row's text, without --full
FEW = 5  # raw files listed without --full


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m seqarch.cli.trace",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", help="a figure or a table, with :N for its Nth row (from 1)")
    parser.add_argument("--results", type=Path, help="where inputs are looked for (default: results/ above)")
    parser.add_argument("--full", action="store_true", help="whole specs and all raw files")
    args = parser.parse_args(argv)
    try:
        for line in _lines(args.what, args.results, args.full):
            print(line)
    except SeqarchError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        sys.stderr.close()  # `| head`: no complaint about the closed pipe
    return 0


def _lines(what: str, results: Path | None, full: bool) -> Iterator[str]:
    path, number = split_row(what)
    row = None
    if number is not None:
        row = read_row(path, number)
        yield f"{path}, row {number}"
        for name, value in row.items():
            yield f"    {name}: {_cut(str(value), full)}"
        yield ""
    for depth, name, node, again in walk(trace(path, results or _results(path), row)):
        indent = "    " * depth
        if node is None:
            yield f"{indent}{name}: changed or deleted since"
            continue
        title = f"{name}: " if name else ""
        yield f"{indent}{title}{node.record['step']}  {_near(node.path)}" + ("  (above)" if again else "")
        if not again:
            yield from (f"{indent}    {line}" for line in _details(node, full))


def _near(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _results(path: Path) -> Path:
    for folder in path.absolute().parents:
        if folder.name == "results":
            return folder
    raise TraceError(f"{path} lies in no folder named results: say where inputs are with --results")


def _details(node: Node, full: bool) -> Iterator[str]:
    record = node.record
    yield f"spec {record['spec_sha256'][:12]}  {_cut(canonical_json(record['spec']), full)}"
    present = {True: "the present code", False: "not the present code", None: "not a step of this version"}
    packages = ", ".join(f"{name} {version}" for name, version in record["packages"].items())
    yield f"code {record['code'][:12]}  {present[node.code_is_present()]}; {packages}"
    for origin in record.get("adopted", []):
        yield f"adopted: {origin['path']}, made by code {origin['code'][:12]}: {origin['reason']}"
    if record["step"] == "sources" and node.path.suffix == ".json":
        yield from _raw(read_json(node.path)["files"], full)
    if node.left_out:
        yield f"{node.left_out} inputs of other runs left out"


def _raw(files: Sequence[dict[str, Any]], full: bool) -> Iterator[str]:
    for file in files if full else files[:FEW]:
        place = next(str(file[key]) for key in ("url", "path", "name") if file.get(key))
        yield f"raw  {place}" + (f"  sha256 {file['sha256']}" if file.get("sha256") else "")
    if not full and len(files) > FEW:
        yield f"raw  … and {len(files) - FEW} more (--full)"


def _cut(text: str, full: bool) -> str:
    return text if full or len(text) <= SHORT else f"{text[:SHORT]} …"


if __name__ == "__main__":
    raise SystemExit(main())
