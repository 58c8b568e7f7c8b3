"""What the tests of the corpus share: rows as files, the steps of a group, a package index of our own."""

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import zstandard

from seqarch.cli import deduplicate, filter, sources

FILTER = {"min_bytes": 1, "max_bad_fraction": 0.0, "dedup": "global"}
SPLIT = {"validation": 0.1, "test": 0.2}


def write_jsonl(path: Path, rows: Iterable[Any]) -> Path:
    """One JSON text a row, compressed as the name says; bytes are written as they are."""
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    data = b"".join(line + b"\n" for line in lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(zstandard.ZstdCompressor().compress(data) if path.suffix == ".zst" else data)
    return path


class Group:
    """The three steps of one group of a `files` source in a folder, run as the workflow runs them."""

    def __init__(
        self,
        folder: Path,
        paths: list[Path],
        domains: list[str],
        *,
        n_shards: int = 1,
        domain_field: str | None = None,
        **options: Any,
    ) -> None:
        self.folder, self.domains, self.n_shards = folder, domains, n_shards
        self.options = FILTER | options
        self.name = "in" if domain_field else domains[0]
        self.source = {
            "kind": "files",
            "paths": [str(path) for path in paths],
            "text_field": "text",
            "domain_field": domain_field,
            "names": {domain: domain for domain in domains} if domain_field else {},
            "checksum": True,
        }

    @property
    def text(self) -> Path:
        return self.folder / "text"

    @property
    def manifest_path(self) -> Path:
        return self.text / f"{self.name}.json"

    def part_path(self, shard: int = 0) -> Path:
        return self.text / f"parts/{self.name}-{shard}.json"

    def run_sources(self) -> int:
        spec = json.dumps({"source": self.source, "group": self.name, "domains": self.domains})
        out = str(self.folder / f"sources/{self.name}.json")
        return sources.main(["--spec", spec, "--archives", str(self.folder / "archives"), "--out", out])

    def filter_argv(self, shard: int = 0) -> list[str]:
        spec = {
            "source": self.source,
            "group": self.name,
            "domains": self.domains,
            "filter": self.options,
            "split": SPLIT,
            "n_shards": self.n_shards,
            "shard": shard,
        }
        return [
            *("--spec", json.dumps(spec)),
            *("--sources", str(self.folder / f"sources/{self.name}.json")),
            *("--archives", str(self.folder / "archives")),
            *("--text", str(self.text)),
            *("--out", str(self.part_path(shard))),
        ]

    def run_filter(self) -> int:
        return max(filter.main(self.filter_argv(shard)) for shard in range(self.n_shards))

    def run_deduplicate(self) -> int:
        dedup = {"dedup": self.options["dedup"]}
        spec = json.dumps({"group": self.name, "n_shards": self.n_shards, "filter": dedup})
        parts = [str(self.part_path(shard)) for shard in range(self.n_shards)]
        out = str(self.manifest_path)
        return deduplicate.main(["--spec", spec, "--parts", *parts, "--text", str(self.text), "--out", out])

    def part(self, shard: int = 0) -> dict[str, Any]:
        return json.loads(self.part_path(shard).read_text())

    def manifest(self) -> dict[str, Any]:
        return json.loads(self.manifest_path.read_text())

    def documents(self) -> list[dict[str, Any]]:
        """All filtered documents with their split, also those that `deduplicate` drops."""
        files = sorted(self.text.glob("*/*/[0-9]*.parquet"))
        return [row | {"split": file.parts[-3]} for file in files for row in pq.read_table(file).to_pylist()]


def read_all(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, hidden ones too."""
    paths = [Path(root) / name for root, _, names in os.walk(folder) for name in names]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


@pytest.fixture
def group(tmp_path: Path) -> Callable[..., Group]:
    """`group(rows)`: a listed group of one file with these rows."""

    def make(
        rows: Iterable[Any], name: str = "data.jsonl", domains: tuple[str, ...] = ("web",), **kw: Any
    ) -> Group:
        made = Group(tmp_path, [write_jsonl(tmp_path / "data" / name, rows)], list(domains), **kw)
        assert made.run_sources() == 0
        return made

    return make


# --- a package index ----------------------------------------------------------------------------------


class Index:
    """What a package index serves, and what it was asked."""

    def __init__(self, folder: Path, server: ThreadingHTTPServer) -> None:
        self.folder = folder
        self.url = f"http://127.0.0.1:{server.server_port}/simple/"
        self.seen: list[tuple[str, str | None]] = []  # path, Authorization
        server.seen = self.seen  # type: ignore[attr-defined]

    def add(self, project: str, file: str, data: bytes) -> None:
        (self.folder / "files").mkdir(exist_ok=True)
        (self.folder / "files" / file).write_bytes(data)
        page = self.folder / "simple" / project / "index.html"
        page.parent.mkdir(parents=True)
        page.write_text(f'<!DOCTYPE html><html><body><a href="/files/{file}">{file}</a></body></html>')


class _Handler(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.seen.append((self.path, self.headers.get("Authorization")))  # type: ignore[attr-defined]
        super().do_GET()

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def pip_alone(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """pip without any setting of this machine."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return monkeypatch


@pytest.fixture
def index(tmp_path: Path, pip_alone: pytest.MonkeyPatch) -> Iterator[Index]:
    """A package index on this machine, and pip told to use it and nothing else."""
    folder = tmp_path / "index"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    made = Index(folder, server)
    pip_alone.setenv("PIP_INDEX_URL", made.url)
    yield made
    server.shutdown()
    server.server_close()
    thread.join()
