"""Tokenization: the whole packing path against `encode_batch` alone, and its memory on growing input."""

import itertools
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tokenizers import Tokenizer as Library

from seqarch.files import sha256_text
from seqarch.tokens.packing import pack
from seqarch.tokens.spec import BpeTokenizer
from seqarch.tokens.text import TextFile
from seqarch.tokens.training import train_bpe

THROUGHPUT_BYTES = 10_000_000
GROWTH_BYTES = (50_000_000, 200_000_000)
GROWTH_MB = 100  # allowed from the smaller to the larger input
GOAL = 0.8  # of what encode_batch alone reaches
REPEATS = 3
ROW_GROUP_BYTES = 4_000_000  # as the corpus stage writes them


def rows() -> Iterator[dict[str, Any]]:
    """Two rows, as tests/benchmarks/run.py describes them."""
    with tempfile.TemporaryDirectory() as folder:
        yield throughput(Path(folder))
        yield memory(Path(folder))


def documents() -> Iterator[str]:
    """Real text that is on every machine that can run this, over and over: PyTorch's own sources."""
    paths = sorted(Path(torch.__file__).parent.glob("[a-n]*/**/*.py"))
    texts = (path.read_text(encoding="utf-8", errors="ignore") for path in paths)
    return itertools.cycle([text for text in texts if text])


def write_text(path: Path, n_bytes: int) -> TextFile:
    """A Parquet file as the filter leaves it, written a row group at a time."""
    total, number = 0, 0
    with pq.ParquetWriter(path, _table([]).schema, compression="zstd") as writer:
        group: list[dict[str, Any]] = []
        held = 0
        for text in documents():
            size = len(text.encode())
            group.append(
                {"doc_id": str(number), "text": text, "n_bytes": size, "text_sha256": sha256_text(text)}
            )
            number, held, total = number + 1, held + size, total + size
            if held >= ROW_GROUP_BYTES or total >= n_bytes:
                writer.write_table(_table(group))
                group, held = [], 0
            if total >= n_bytes:
                return TextFile("code", "train", path, total, None)
    raise AssertionError("documents never end")


def _table(group: list[dict[str, Any]]) -> pa.Table:
    types = {"doc_id": pa.string(), "text": pa.string(), "n_bytes": pa.int64(), "text_sha256": pa.string()}
    return pa.Table.from_pylist(group, schema=pa.schema(types))


def throughput(folder: Path) -> dict[str, Any]:
    file = write_text(folder / "00000.parquet", THROUGHPUT_BYTES)
    tokenizer = train_bpe(BpeTokenizer(kind="bpe", vocab_size=1024), [file], folder / "tokenizer.json")
    library = Library.from_file(str(tokenizer.path))
    texts = pq.read_table(file.path).column("text").to_pylist()
    seconds: dict[str, list[float]] = {"ours": [], "peer": []}
    for _ in range(REPEATS):  # alternating, so that a busy machine is busy for both
        start = time.perf_counter()
        pack(file, folder / "tokens", tokenizer, {}, lambda steps=1, status="": None)
        seconds["ours"].append(time.perf_counter() - start)
        start = time.perf_counter()
        for at in range(0, len(texts), 256):  # all at once would need gigabytes
            library.encode_batch(texts[at : at + 256], add_special_tokens=False)
        seconds["peer"].append(time.perf_counter() - start)
    ours, peer = min(seconds["ours"]), min(seconds["peer"])
    return {
        "benchmark": "tokenize",
        "shape": f"{file.n_bytes / 1e6:.0f} MB, {len(texts)} documents, vocabulary 1024",
        "threads": int(os.environ.get("RAYON_NUM_THREADS", 0)) or os.cpu_count(),
        "ours": "read, encode, check round trip, pack, hash",
        "peer": "tokenizers.encode_batch",
        "ours_seconds": ours,
        "peer_seconds": peer,
        "goal": GOAL,
    }


def memory(folder: Path) -> dict[str, Any]:
    """Peak memory in a process of its own for each size."""
    (small, _), (large, seconds) = (_peak(folder, n_bytes) for n_bytes in GROWTH_BYTES)
    growth = large - small
    return {
        "benchmark": "tokenize_memory_growth",
        "shape": f"{GROWTH_BYTES[0] / 1e6:.0f} to {GROWTH_BYTES[1] / 1e6:.0f} MB of text",
        "threads": int(os.environ.get("RAYON_NUM_THREADS", 0)) or os.cpu_count(),
        "ours": f"peak grows by {growth:.0f} MB to {large:.0f} MB",
        "peer": f"{GROWTH_MB} MB are allowed",
        "ours_seconds": seconds,
        "peer_seconds": None,
        "goal": 1,
        "pass": growth <= GROWTH_MB,
    }


def _peak(folder: Path, n_bytes: int) -> tuple[float, float]:
    """Peak memory in MB, and seconds."""
    script = """
        import sys
        from pathlib import Path
        from seqarch.tokens.packing import pack
        from seqarch.tokens.text import TextFile
        from seqarch.tokens.tokenizer import Tokenizer
        text, out, tokenizer = map(Path, sys.argv[1:])
        file = TextFile("code", "train", text, 0, None)
        pack(file, out, Tokenizer(tokenizer), {}, lambda steps=1, status="": None)
        # The peak of this program: ru_maxrss would start at what the process that started it held.
        print(next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM")))
    """
    file = write_text(folder / "00000.parquet", n_bytes)
    arguments = [file.path, folder / "tokens", folder / "tokenizer.json"]
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout) / 1024, time.perf_counter() - start
