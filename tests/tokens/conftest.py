"""A small corpus on disk as the corpus stage leaves it, and the token steps as commands on it."""

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqarch.cli import tokenize, tokenizer, tokens_manifest

WORDS = (Path(__file__).parents[2] / "LICENSE").read_text(encoding="utf-8").split()
SPLITS = ("train", "validation", "test")
DOMAINS = {"news": "in", "code": "out"}
VOCAB = 300
# What tokenizers get wrong: BOS as text, emoji with joiners, combining marks, line ends, tabs, no spaces.
AWKWARD = [
    "<|bos|>",
    "a<|bos|>b <|bos|>\n",
    "👩‍👩‍👧 naïve e\u0301 🇩🇪",
    "one\r\ntwo\r\n\r\nthree\n",
    "\t\tx  y   \n ",
    "長い文字列",
    "\u2028\ufeff\x85",
]

Texts = Mapping[tuple[str, str, int], Sequence[str]]  # (split, domain, shard) -> documents


def make_texts(documents: int = 40, seed: int = 0) -> dict[tuple[str, str, int], list[str]]:
    """Two shards of each split and domain; the awkward documents are in all of them."""
    draw = random.Random(seed)
    texts = {}
    for split in SPLITS:
        for domain in DOMAINS:
            for shard in range(2):
                made = [" ".join(draw.choices(WORDS, k=draw.randint(1, 60))) for _ in range(documents)]
                label = f"{split} {domain} {shard}"  # the same text in no two places
                texts[split, domain, shard] = [f"{label} {text}" for text in AWKWARD] + AWKWARD + made
    return texts


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def write_text(folder: Path, texts: Texts, group: str = "all", duplicates: Sequence[tuple] = ()) -> Path:
    """The Parquet files, drop list and manifest of `cli.deduplicate`; returns the manifest."""
    domains: dict[str, dict[str, Any]] = {}
    for (split, domain, shard), documents in texts.items():
        path = folder / split / domain / f"{shard:05d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        sizes = [len(text.encode()) for text in documents]
        table = {
            "doc_id": [f"{domain}/{shard}.jsonl:{row}" for row in range(len(documents))],
            "domain": [domain] * len(documents),
            "source": [f"{domain}/{shard}.jsonl"] * len(documents),
            "text": list(documents),
            "n_bytes": sizes,
            "text_sha256": [digest(text) for text in documents],
        }
        pq.write_table(pa.table(table), path, row_group_size=64)
        empty: dict[str, Any] = {"files": [], "docs": 0, "bytes": 0, "duplicates": 0}
        of_split = domains.setdefault(domain, {each: dict(empty, files=[]) for each in SPLITS})[split]
        dropped = sum(each[:3] == (split, domain, shard) for each in duplicates)
        of_split["files"].append({"path": path.relative_to(folder).as_posix(), "rows": len(documents)})
        of_split["docs"] += len(documents) - dropped
        of_split["bytes"] += sum(sizes)
        of_split["duplicates"] += dropped
    if duplicates:
        (folder / "duplicates").mkdir(exist_ok=True)
        columns = zip(("split", "domain", "shard", "doc_id"), zip(*duplicates, strict=True), strict=True)
        pq.write_table(
            pa.table({name: list(column) for name, column in columns}),
            folder / "duplicates" / f"{group}.parquet",
        )
    manifest = folder / f"{group}.json"
    manifest.write_text(json.dumps({"domains": domains}))
    return manifest


class Chain:
    """The steps tokenizer, tokenize and tokens_manifest, run in one folder."""

    def __init__(self, folder: Path, texts: Texts, duplicates: Sequence[tuple] = ()) -> None:
        self.folder, self.text, self.tokens = folder, folder / "text", folder / "tokens"
        self.text_manifest = write_text(self.text, texts, duplicates=duplicates)
        self.tokenizer = folder / "tokenizer" / "manifest.json"
        self.domains = sorted({domain for _, domain, _ in texts})
        self.shards = sorted({shard for _, _, shard in texts})

    def make_tokenizer(self, options: dict[str, Any], domains: Sequence[str] = ("news",)) -> int:
        spec = {"tokenizer": options, "domains": list(domains)}
        out = self.folder / "tokenizer" / "tokenizer.json"
        arguments = ["--text", self.text, "--manifests", self.text_manifest, "--out", out]
        return tokenizer.main(["--spec", json.dumps(spec), *map(str, arguments)])

    def tokenize(self, shard: int, options: dict[str, Any]) -> int:
        return tokenize.main(self.tokenize_arguments(shard, options))

    def tokenize_arguments(self, shard: int, options: dict[str, Any]) -> list[str]:
        spec = {"group": "all", "shard": shard, "tokenizer": options, "domains": self.domains}
        arguments = ["--text", self.text, "--manifest", self.text_manifest, "--tokenizer", self.tokenizer]
        arguments += ["--tokens", self.tokens, "--out", self.part(shard)]
        return ["--spec", json.dumps(spec), *map(str, arguments)]

    def merge(self) -> int:
        spec = {"group": "all", "domains": self.domains, "splits": list(SPLITS)}
        arguments = ["--parts", *map(self.part, self.shards), "--tokens", self.tokens]
        return tokens_manifest.main(["--spec", json.dumps(spec), *map(str, arguments)])

    def run(self, options: dict[str, Any] | None = None) -> "Chain":
        options = options or {"kind": "bpe", "vocab_size": VOCAB}
        assert self.make_tokenizer(options) == 0
        for shard in self.shards:
            assert self.tokenize(shard, options) == 0
        assert self.merge() == 0
        return self

    def part(self, shard: int) -> Path:
        return self.tokens / "parts" / f"all-{shard}.json"

    def manifest(self, split: str, domain: str) -> Path:
        return self.tokens / split / domain / "manifest.json"


@pytest.fixture(scope="session")
def texts() -> dict[tuple[str, str, int], list[str]]:
    return make_texts()


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory, texts: Texts) -> Chain:
    """The whole chain, run once. Read only."""
    return Chain(tmp_path_factory.mktemp("chain"), texts).run()


@pytest.fixture
def new_chain(tmp_path: Path) -> Callable[..., Chain]:
    """A chain of its own for a test, in a folder with a space in its name."""

    def make(texts: Texts, duplicates: Sequence[tuple] = (), name: str = "a chain") -> Chain:
        return Chain(tmp_path / name, texts, duplicates)

    return make
