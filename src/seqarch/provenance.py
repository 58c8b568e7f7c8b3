"""Where a number comes from: fingerprints of code, recipes of steps, and the record inside every output.

A step is `python -m seqarch.cli.<step>`. Three digests describe what it made:

- *code*: the step's static import closure, each module hashed as its syntax tree without comments, docstrings
  and positions, so that a comment changes nothing and an edit in one mixer touches that mixer's runs alone;
- *spec*: the slice of the configuration that the step depends on, as canonical JSON;
- *recipe* = sha256(step, spec, code): what a consumer expects to find in its inputs.

`INERT` modules cannot change a number and are left out of every fingerprint by name.
"""

import ast
import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from seqarch.errors import SeqarchError
from seqarch.files import (
    PROVENANCE_KEY,
    canonical_json,
    read_json,
    read_parquet_provenance,
    sha256_file,
    sha256_text,
    write_json,
)

PACKAGE = "seqarch"
ROOT = Path(__file__).parent
INERT = frozenset(
    f"{PACKAGE}.{name}" for name in ("provenance", "files", "progress", "errors", "schema", "cli.common")
)
MEMORY = Path(".snakemake") / "seqarch-code.json"  # in Snakemake's working directory
TABLE_VARIABLE = "SEQARCH_CODE_TABLE"  # the digests of the process that queued the jobs, for its jobs
INVOCATION_VARIABLE = "SEQARCH_INVOCATION"  # which `snakemake` queued a job: a number of its own


class ProvenanceError(SeqarchError):
    """An input or the code is not what the workflow planned with."""


# --- code ---------------------------------------------------------------------------------------------


def entry_modules(step: str, mixers: Iterable[str] = (), modules: Iterable[str] = ()) -> tuple[str, ...]:
    """The modules a step starts from: its command, what it loads by name, and the two files of each mixer."""
    parts = [
        f"{PACKAGE}.mixers.{mixer}.{file}" for mixer in sorted(set(mixers)) for file in ("config", "module")
    ]
    return (f"{PACKAGE}.cli.{step}", *sorted(set(modules)), *parts)


def fingerprint(modules: Iterable[str]) -> str:
    """The digest of the import closure of `modules`: 64 hex digits, equal on Python 3.11 to 3.14."""
    lines = [f"{name} {_module_digest(name)}" for name in sorted(closure(modules))]
    return sha256_text("\n".join(lines))


def closure(modules: Iterable[str]) -> set[str]:
    """The modules of this package reachable by import statements, wherever they stand, without `INERT`."""
    seen: set[str] = set()
    queue = list(modules)
    while queue:
        name = queue.pop()
        if name in seen or name in INERT:
            continue
        if _module_file(name) is None:
            raise ProvenanceError(f"no module {name!r} in {ROOT}: expected a step or mixer of this package")
        seen.add(name)
        queue += [each for each in _facts(name).imports if _module_file(each) is not None]
    return seen


@functools.cache
def _module_file(name: str) -> Path | None:
    base = ROOT.joinpath(*name.split(".")[1:])
    for file in (base.with_suffix(".py"), base / "__init__.py"):
        if file.is_file():
            return file
    return None


class Facts(NamedTuple):
    """What a fingerprint needs to know of a module's source."""

    imports: tuple[str, ...]  # names in this package, which may be modules or what is in them
    assets: tuple[str, ...]
    digest: str  # of the syntax tree


@functools.cache
def _facts(name: str) -> Facts:
    file = _module_file(name)
    assert file is not None
    source = file.read_bytes()
    key = hashlib.sha256(source).hexdigest()
    facts = _remembered().get(key)
    if facts is None:
        tree = ast.parse(source, filename=str(file))
        facts = Facts(_imports(name, tree), _assets(tree), sha256_text(_dump(tree)))
    _used[key] = facts
    return facts


_used: dict[str, Facts] = {}  # sha256 of a source -> its facts, of this process


@functools.cache
def _remembered() -> dict[str, Facts]:
    """The facts that `remember` left here: parsing takes a second, in Snakemake and in every job."""
    try:
        stored = read_json(MEMORY)[_version()]
        return {
            key: Facts(tuple(imports), tuple(assets), digest)
            for key, (imports, assets, digest) in stored.items()
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def remember() -> None:
    """Leave the facts of this process to the next ones in this directory, if it can be written to."""
    if _used != _remembered():
        with contextlib.suppress(OSError):
            write_json(MEMORY, {_version(): _used})


def _version() -> str:
    """Facts are those of this file's code."""
    return sha256_file(Path(__file__))


def _imports(name: str, tree: ast.Module) -> tuple[str, ...]:
    found = []
    for node in _statements(tree.body):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.append(node.module)
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            raise ProvenanceError(f"{name}, line {node.lineno}: write the import in full, not relative")
    return tuple(each for each in found if each.startswith(f"{PACKAGE}."))


def _statements(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All statements, nested ones too. Expressions hold no imports, and walking them is slow."""
    for node in body:
        yield node
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from _statements(getattr(node, field, ()))


@functools.cache
def _module_digest(name: str) -> str:
    facts = _facts(name)
    if not facts.assets:
        return facts.digest
    return sha256_text(
        "\n".join([facts.digest, *(f"{each} {sha256_file(_asset(name, each))}" for each in facts.assets)])
    )


def _assets(tree: ast.Module) -> tuple[str, ...]:
    """File names a module lists in `ASSETS = (...)`: data beside it that changes what it does."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if value is not None and any(isinstance(each, ast.Name) and each.id == "ASSETS" for each in targets):
            return tuple(ast.literal_eval(value))
    return ()


def _asset(name: str, asset: str) -> Path:
    file = _module_file(name)
    assert file is not None
    return file.parent / asset


def _dump(node: object) -> str:
    """A syntax tree as text, equal on all Python versions (`ast.dump` shows empty fields, which differ)."""
    if isinstance(node, list):
        return f"[{','.join(map(_dump, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = []
    for field in node._fields:
        value = getattr(node, field, None)
        if field in ("type_comment", "kind", "ctx") or (value is None and field != "value"):
            continue
        if field == "body" and isinstance(node, _DOCUMENTED) and isinstance(value, list):
            value = _without_docstring(value)
        if isinstance(node, ast.JoinedStr):  # Python 3.12 adds empty strings to some format specifications
            value = [part for part in node.values if getattr(part, "value", None) != ""]
        if value != []:
            fields.append(f"{field}={_dump(value)}")
    return f"{type(node).__name__}({','.join(fields)})"


_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            return rest
    return body


def planned_fingerprint(modules: Sequence[str]) -> str:
    """The digest the workflow plans with: the queuing process's where there is one, else the present one.

    A cluster job parses the Snakefile again, after the files may have been edited; the table in its
    environment is what its command line was meant to say.
    """
    table = json.loads(os.environ.get(TABLE_VARIABLE, "{}"))
    return table.get(" ".join(modules)) or fingerprint(modules)


def forget() -> None:
    """Read the source files again at the next fingerprint."""
    for cached in (_module_file, _facts, _remembered, _module_digest):
        cached.cache_clear()


def verify_code(modules: Sequence[str], planned: str) -> None:
    """Raise ProvenanceError if the code on disk is not what the workflow planned with."""
    forget()
    found = fingerprint(modules)
    if found != planned:
        raise ProvenanceError(
            f"the code of {modules[0]} changed after this job was queued (planned {planned[:12]}, "
            f"found {found[:12]}): run snakemake again to redo it with the present code"
        )


# --- records ------------------------------------------------------------------------------------------


def recipe(step: str, spec: Any, code: str) -> str:
    """sha256 over step, spec and code: what was asked for."""
    return sha256_text(canonical_json({"step": step, "spec": spec, "code": code}))


def record(
    step: str,
    spec: Any,
    code: str,
    inputs: Mapping[str, Path] | None = None,
    packages: Iterable[str] = (),
    origins: Iterable[Path] = (),
) -> dict[str, Any]:
    """What every output of a step carries. Equal runs give equal records: no time, host, path or commit.

    Args:
        inputs: name -> file whose sha256 is recorded (small files: manifests, tables).
        packages: distributions whose version can change the result.
        origins: other files it comes from, whose bytes differ between equal runs: what their records say of
            adoption is repeated, no sha256 of them is.
    """
    versions = {name: importlib.metadata.version(name) for name in sorted(packages)}
    versions["python"] = f"{sys.version_info.major}.{sys.version_info.minor}"
    adopted = _adopted([*(inputs or {}).values(), *origins])
    return {
        **({"adopted": adopted} if adopted else {}),
        "step": step,
        "spec": spec,
        "spec_sha256": sha256_text(canonical_json(spec)),
        "code": code,
        "recipe": recipe(step, spec, code),
        "inputs": {name: sha256_file(path) for name, path in sorted((inputs or {}).items())},
        "packages": versions,
    }


def _adopted(paths: Iterable[Path]) -> list[dict[str, str]]:
    """What is said of adopted outputs (seqarch.adopt) in the records of these files, each once."""
    known = {}
    for path in paths:
        for origin in (read_record(path) or {}).get("adopted", []):
            known[canonical_json(origin)] = origin
    return [known[key] for key in sorted(known)]


def read_record(path: Path) -> dict[str, Any] | None:
    """The record inside an output: Parquet and safetensors metadata, else the key `provenance` of a JSON file
    (the file itself, or `<file>.json`, or the same stem with .json). None if there is none."""
    path = Path(path)
    if path.suffix == ".parquet":
        return read_parquet_provenance(path)
    if path.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get(PROVENANCE_KEY)
        return None if text is None else json.loads(text)
    for candidate in (path, path.with_name(path.name + ".json"), path.with_suffix(".json")):
        if candidate.suffix == ".json" and candidate.is_file():
            value = read_json(candidate)
            if isinstance(value, dict) and "provenance" in value:
                return value["provenance"]
    return None


def check_inputs(expects: Mapping[str, Any]) -> None:
    """Raise ProvenanceError unless each input was made by the recipe planned for it.

    Args:
        expects: path -> recipe, or its first digits; or directory -> such a mapping (short command lines).
    """
    stale = {path: problem for path, wanted in _files(expects) if (problem := mismatch(path, wanted))}
    if stale:
        raise ProvenanceError(
            "inputs were made with another configuration or other code than the present one:\n"
            + "\n".join(f"  {path}: {problem}" for path, problem in sorted(stale.items()))
            + f"\nrebuild them: snakemake --forcerun {' '.join(map(str, sorted(stale)))}"
        )


def mismatch(path: Path, wanted: str) -> str | None:
    """What is wrong with the record inside `path`, or None if the recipe `wanted` made it."""
    found = read_record(path)
    if found is None:
        return "carries no provenance record"
    if not found["recipe"].startswith(wanted):
        return f"made by {found['step']} with recipe {found['recipe'][:12]}, expected {wanted[:12]}"
    return None


def _files(expects: Mapping[str, Any], directory: Path = Path()) -> Iterator[tuple[Path, str]]:
    for name, value in expects.items():
        if isinstance(value, str):
            yield directory / name, value
        else:
            yield from _files(value, directory / name)
