"""A grid of learning rates in the workflow: trials, the choice, the run that uses it, the figure."""

import csv
from typing import Any

import pytest

from seqarch.files import read_json
from seqarch.provenance import read_record

pytestmark = pytest.mark.slow

GRID = {"grid": [0.0005, 0.005, 1.0e30]}


def test_a_grid_is_tried_and_the_best_rate_trains(project: Any) -> None:
    project.configure(lambda config: config["train"].update(overrides={"retnet": {"learning_rate": GRID}}))
    runs = {f"{rule} {setting} retnet 0" for rule in ("train", "loss") for setting in ("limited", "mixed")}
    pending = project.pending()
    assert runs <= pending
    assert {"sweep", "choice", "learning_rates", "figure_learning_rates"} <= pending
    assert not any("gla" in job or "transformer" in job for job in pending)

    run = "results/tiny/runs/limited/retnet/seed0/run.json"
    project.snakemake("--cores", "2", "--show-failed-logs", "results/tiny/figures/learning_rates.json", run)
    sweeps = project.results / "tiny" / "sweeps" / "limited" / "retnet"
    choice = read_json(sweeps / "choice.json")
    assert [each["learning_rate"] for each in choice["trials"]] == GRID["grid"]
    assert [each["diverged"] for each in choice["trials"]] == [False, False, True]
    losses = [each["validation_loss"] for each in choice["trials"][:2]]
    assert choice["learning_rate"] == GRID["grid"][losses.index(min(losses))]

    record = read_record(project.workdir / run)
    assert record is not None
    assert record["spec"]["train"]["learning_rate"] is None
    assert "choice" in record["inputs"]
    metrics = project.results / "tiny" / "tables" / "learning_rates.csv"
    with open(metrics) as file:
        rows = [row for row in csv.DictReader(file) if row["setting"] == "limited"]
    assert [row["chosen"] == "true" for row in rows] == [
        each["learning_rate"] == choice["learning_rate"] for each in choice["trials"]
    ]
    assert "<svg" in (project.results / "tiny" / "figures" / "learning_rates.svg").read_text()
    again = project.pending()
    assert not {"sweep", "choice", "learning_rates", "figure_learning_rates"} & again
    assert "train limited retnet 0" not in again
