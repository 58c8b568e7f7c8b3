"""Memory and speed of filtering a shard; the peak is what the kernel says of a process of its own.

Memory is bounded by row groups and by the digests of a shard's documents, not by its text. Rows: the growth
of the peak from a 50 MB to a 200 MB input (limit 100 MB), and the peak for a shard of 2 GB (limit 1 GB).
"""

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCUMENT_BYTES = 4000  # about the mean of web text
GROWTH_LIMIT_MB = 100
PEAK_LIMIT_MB = 1000

_FILTER = """
import sys
from pathlib import Path
from seqarch.corpus.filter import filter_shard
from seqarch.corpus.sources.registry import iter_documents
from seqarch.corpus.spec import FilterSpec, SplitSpec

file, out = Path(sys.argv[1]), Path(sys.argv[2])
source = {"kind": "files", "text_field": "text", "domain_field": None, "names": {}}
listing = [{"name": file.name, "url": str(file), "size": file.stat().st_size}]
filter_shard(
    iter_documents(source, listing, out, ["web"], 0, 1),
    group="web", domains=["web"], options=FilterSpec(), shares=SplitSpec(),
    shard=0, text_dir=out, part=out / "part.json", provenance={},
)
# The peak of this program: ru_maxrss would start at what the process that started it held.
print(next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM")) // 1024)
"""


def write_shard(path: Path, n_bytes: int) -> None:
    """JSON Lines of different documents: a window that moves over random words, and the document's number."""
    rng = random.Random(0)
    words = " ".join("".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 9))) for _ in range(200_000))
    with open(path, "w") as file:
        for number in range(n_bytes // DOCUMENT_BYTES):
            start = number * 997 % (len(words) - DOCUMENT_BYTES)
            text = f"{number} {words[start : start + DOCUMENT_BYTES - 30]}"
            file.write(json.dumps({"text": text}) + "\n")


def filter_peak(file: Path, out: Path) -> tuple[int, float]:
    """(peak resident memory in MB, seconds) of a process that filters the file."""
    start = time.perf_counter()
    command = [sys.executable, "-c", _FILTER, str(file), str(out)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout), time.perf_counter() - start


def growth(folder: Path, sizes: tuple[int, int] = (50, 200)) -> tuple[int, int]:
    """Peak memory in MB for inputs of two sizes, in MB."""
    peaks = []
    for megabytes in sizes:
        file = folder / f"{megabytes}.jsonl"
        write_shard(file, megabytes * 1_000_000)
        peaks.append(filter_peak(file, folder / str(megabytes))[0])
        file.unlink()
    return peaks[0], peaks[1]


def rows() -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        start = time.perf_counter()
        small, large = growth(Path(name))
        seconds = time.perf_counter() - start
        yield _row("filter memory growth", "50 MB to 200 MB", large - small, GROWTH_LIMIT_MB, seconds)
        file = Path(name) / "2000.jsonl"
        write_shard(file, 2_000_000_000)
        peak, seconds = filter_peak(file, Path(name) / "out")
        yield _row("filter memory", "a shard of 2 GB", peak, PEAK_LIMIT_MB, seconds)


def _row(benchmark: str, shape: str, used: int, limit: int, seconds: float) -> dict[str, Any]:
    return {
        "benchmark": benchmark,
        "shape": shape,
        "threads": 1,
        "ours": f"{used} MB",
        "peer": f"limit {limit} MB",
        "ours_seconds": seconds,
        "peer_seconds": None,
        "ratio": limit / max(used, 1),
        "goal": 1,
        "pass": used < limit,
    }


if __name__ == "__main__":
    for row in rows():
        print(row)
