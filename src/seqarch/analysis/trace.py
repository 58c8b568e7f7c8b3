"""From a number back to the raw files, by the records inside the outputs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from seqarch.architecture import mixer_names
from seqarch.errors import SeqarchError
from seqarch.files import sha256_file
from seqarch.provenance import entry_modules, fingerprint, read_record

RECORDED = (".json", ".parquet", ".safetensors")  # files that carry records or are known by one


class TraceError(SeqarchError):
    """There is nothing to trace at this place."""


@dataclass
class Node:
    """A file, the record inside it, and the nodes of its inputs (None: not found any more)."""

    path: Path
    record: dict[str, Any]
    inputs: dict[str, "Node | None"] = field(default_factory=dict)
    left_out: int = 0  # inputs of other runs than the traced row's

    def code_is_present(self) -> bool | None:
        """Whether the present code is the one that made the file; None if the step is not known here."""
        spec, step = self.record["spec"], self.record["step"]
        mixers = mixer_names(spec["model"]) if "model" in spec else ()
        figures = [f"seqarch.figures.{spec['figure']}"] if "figure" in spec else ()
        try:
            return fingerprint(entry_modules(step, mixers, figures)) == self.record["code"]
        except SeqarchError:
            return None


class Files:
    """Files below a folder by their sha256; small ones are read first, and no more than needed."""

    def __init__(self, root: Path) -> None:
        files = [path for path in root.rglob("*") if path.suffix in RECORDED and path.is_file()]
        sized = ((path.stat().st_size, str(path), path) for path in files if not _hidden(path, root))
        self._unread = [path for _, _, path in sorted(sized, reverse=True)]
        self._found: dict[str, Path] = {}

    def find(self, sha256: str) -> Path | None:
        while sha256 not in self._found and self._unread:
            path = self._unread.pop()
            self._found.setdefault(sha256_file(path), path)
        return self._found.get(sha256)


def _hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)


def split_row(text: str) -> tuple[Path, int | None]:
    """`path` or `path:row`, rows counted from 1."""
    path, _, row = text.rpartition(":")
    if path and row.isdigit() and not Path(text).exists():
        return Path(path), int(row)
    return Path(text), None


def read_row(path: Path, row: int) -> dict[str, Any]:
    """The row's columns that have a value. A figure is known by the csv of the rows that it shows."""
    table = path if path.suffix in (".csv", ".parquet") else path.with_suffix(".csv")
    if not path.exists() and not table.is_file():
        raise TraceError(f"no file {path}: give a figure or a table of the workflow")
    if not table.is_file():
        raise TraceError(f"{path} has no rows: expected a table (.csv, .parquet) or a figure with its .csv")
    frame = pd.read_csv(table) if table.suffix == ".csv" else pd.read_parquet(table)
    if not 1 <= row <= len(frame):
        raise TraceError(f"{table} has rows 1 to {len(frame)}, not {row}")
    return {str(name): value for name, value in frame.iloc[row - 1].items() if not pd.isna(value)}


def trace(path: Path, results: Path, row: Mapping[str, Any] | None = None) -> Node:
    """The tree of everything that a file was made from; each file is one node, however often it was used.

    Args:
        results: where inputs are looked for.
        row: a table's row; inputs that are runs of other settings, architectures or seeds are left out.

    Raises TraceError if there is no such file, or no record in it.
    """
    if not path.is_file():
        raise TraceError(f"no file {path}: give a figure or a table below {results}")
    beside = path.with_suffix(".parquet")
    source = beside if path.suffix == ".csv" and beside.is_file() else path
    if (record := read_record(source)) is None:
        raise TraceError(f"{path} carries no record of how it was made: expected an output of the workflow")
    files, made = Files(results), {}
    wanted = _wanted(row or {})

    def node(path: Path, record: dict[str, Any]) -> Node:
        if path not in made:
            made[path] = new = Node(path, record)
            for name, sha256 in record["inputs"].items():
                found = files.find(sha256)
                inner = read_record(found) if found else None
                if found is None or inner is None:
                    new.inputs[name] = None
                elif _is_other_run(inner["spec"], wanted):
                    new.left_out += 1
                else:
                    new.inputs[name] = node(found, inner)
        return made[path]

    return node(source, record)


def _wanted(row: Mapping[str, Any]) -> dict[str, set[str]]:
    """Key of a run's spec -> the values that the row speaks of; no key: all."""
    columns = {"setting": ("setting", "against"), "architecture": ("arch", "ref"), "seed": ("seed",)}
    found = {key: {_plain(row[name]) for name in names if name in row} for key, names in columns.items()}
    return {key: values for key, values in found.items() if values}


def _plain(value: Any) -> str:
    """A seed reads as 0.0 where a column has empty cells."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _is_other_run(spec: Any, wanted: Mapping[str, set[str]]) -> bool:
    return isinstance(spec, dict) and any(
        key in spec and str(spec[key]) not in values for key, values in wanted.items()
    )


def walk(root: Node) -> Iterator[tuple[int, str, Node | None, bool]]:
    """Depth first: (depth, name as an input, node, whether it was shown before)."""
    shown: set[Path] = set()

    def visit(node: Node, name: str, depth: int) -> Iterator[tuple[int, str, Node | None, bool]]:
        again = node.path in shown
        yield depth, name, node, again
        if not again:
            shown.add(node.path)
            for inner_name, inner in node.inputs.items():
                if inner is None:
                    yield depth + 1, inner_name, None, False
                else:
                    yield from visit(inner, inner_name, depth + 1)

    return visit(root, "", 0)
