"""The whole chain on a very small configuration: what it makes, and that it makes it once."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from seqarch.provenance import read_record

pytestmark = pytest.mark.slow


def test_the_chain_ends_in_figures_and_tables(finished) -> None:  # type: ignore[no-untyped-def]
    root = finished.results / "tiny"
    for figure in ("corpus", "training", "ood_vs_id", "loss_by_position", "equal_loss"):
        assert (root / "figures" / f"{figure}.svg").read_text().lstrip().startswith("<?xml")
        assert (root / "figures" / f"{figure}.csv").is_file()
    with open(root / "tables" / "losses.csv") as file:
        rows = list(csv.DictReader(file))
    runs = {(row["setting"], row["arch"], row["seed"]) for row in rows}
    assert runs == {(s, a, "0") for s in ("limited", "mixed") for a in ("transformer", "retnet", "gla")}
    assert not list((root / "work").glob("*")), "finished runs leave no state behind"
