"""Which files and rows a shard takes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any


def share_out(
    files: Sequence[Mapping[str, Any]], shard: int, n_shards: int
) -> Iterator[tuple[Mapping[str, Any], Callable[[int], bool]]]:
    """(file, whether the row with a number from 1 is the shard's) for each file that the shard reads: every
    n_shards-th file, or, with fewer files than shards, every n_shards-th row of each."""
    if len(files) >= n_shards:
        for entry in files[shard::n_shards]:
            yield entry, lambda number: True
    else:
        for entry in files:
            yield entry, lambda number: (number - 1) % n_shards == shard
