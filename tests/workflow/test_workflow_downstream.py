"""Downstream tasks, end to end: lm_eval itself asks trained runs, tasks and data are local files."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from seqarch.provenance import read_record

pytest.importorskip("lm_eval", reason="lm_eval is an extra")


def write_task(folder: Path) -> None:
    """Which word ends a line of the prose that the runs were trained on."""
    folder.mkdir()
    rows = [
        {"context": "the river ran past old houses and people spoke of", "label": i % 2} for i in range(12)
    ]
    data = folder / "rows.json"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "task": "rivers",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{context}}",
        "doc_to_target": "label",
        "doc_to_choice": ["rain", "zzzz qqqq"],
        "metric_list": [{"metric": "acc"}],
        "metadata": {"version": 1},
    }
    (folder / "rivers.yaml").write_text(yaml.safe_dump(task))


@pytest.mark.slow
def test_runs_are_asked_and_their_scores_drawn(project: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    write_task(tmp_path / "tasks")

    def section(config: dict[str, Any]) -> None:
        config["architectures"] = {"gla": config["architectures"]["gla"]}
        config["train"]["settings"] = {"limited": "in"}
        config["studies"] = {}
        tasks = {"rivers": {"metric": "acc", "chance": 0.5}}
        config["evaluation"]["downstream"] = {"tasks": tasks, "include_path": str(tmp_path / "tasks")}

    project.configure(section)
    assert not {job for job in project.pending("figure_downstream") if job.startswith("train")}
    project.snakemake("figure_downstream", "--cores", "2", "--show-failed-logs")
    table = pd.read_parquet(project.results / "tiny/tables/downstream.parquet")
    assert table["arch"].tolist() == ["gla"]
    # half of the labels are the likely word, whatever the model: exactly at chance
    assert (table["score"].item(), table["n"].item(), table["at_chance"].item()) == (0.5, 12, True)
    assert table["max_length"].item() == 32
    assert (project.results / "tiny/figures/downstream.svg").is_file()
    record = read_record(project.results / "tiny/evaluation/downstream/limited/gla/seed0/scores.parquet")
    assert record["step"] == "downstream"
    assert record["packages"]["lm_eval"] == "0.4.13"
    assert project.pending("figure_downstream") == set()
