"""From a number in a real run's results back to the raw files."""

import csv
import shutil
from pathlib import Path
from typing import Any

import pytest

from seqarch.cli import trace
from seqarch.files import sha256_file

pytestmark = pytest.mark.slow

STEPS = (
    *("claims", "loss", "train", "tokens_manifest", "tokenize", "deduplicate", "filter", "sources"),
    "evaluation_set",
)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert trace.main(list(arguments)) == 0
    return capsys.readouterr().out.splitlines()


def row_of(table: Path, **wanted: str) -> int:
    with open(table) as file:
        rows = list(csv.DictReader(file))
    return 1 + next(i for i, row in enumerate(rows) if wanted.items() <= row.items())


def test_a_verdict_leads_to_the_raw_files(finished: Any, capsys: pytest.CaptureFixture[str]) -> None:
    table = finished.results / "tiny" / "tables" / "claims.csv"
    row = row_of(table, claim="mixed-domains-hide-differences", level="pair", arch="gla")
    lines = printed(capsys, f"{table}:{row}")
    assert "    claim: mixed-domains-hide-differences" in lines
    nodes = [line.strip() for line in lines if not line.strip().startswith(("spec ", "code ", "raw "))]
    for step in STEPS:
        assert any(f"{step}  " in line for line in nodes), step
    assert not [line for line in lines if "/retnet/" in line], "another architecture's run"
    for setting in ("limited", "mixed"):
        for arch in ("gla", "transformer"):
            assert any(f"loss/{setting}/{arch}/seed0/docs.parquet" in line for line in lines)
    assert any(line.strip() == "2 inputs of other runs left out" for line in lines)
    for name in ("prose", "code"):
        digest = sha256_file(finished.folder / "data" / f"{name}.jsonl")
        raw = [line for line in lines if line.strip().startswith("raw ") and digest in line]
        assert len(raw) == 1, "each file is shown once"
        assert f"{name}.jsonl" in raw[0]
    assert not [line for line in lines if "changed or deleted" in line]


def test_a_figure_and_its_rows_lead_to_the_table(finished: Any, capsys: pytest.CaptureFixture[str]) -> None:
    figure = finished.results / "tiny" / "figures" / "equal_loss.svg"
    lines = printed(capsys, str(figure))
    assert lines[0].startswith("figure  ")
    assert any(line.startswith("    equal_loss: equal_loss  ") for line in lines)
    row = row_of(figure.with_suffix(".csv"), arch="retnet", setting="limited")
    for name in (f"{figure}:{row}", f"{figure.with_suffix('.csv')}:{row}"):
        lines = printed(capsys, name)
        runs = [line for line in lines if "docs.parquet" in line]
        assert runs
        assert all("/limited/retnet/" in line or "/limited/transformer/" in line for line in runs)


def test_specs_and_files_are_whole_when_asked_for(finished: Any, capsys: pytest.CaptureFixture[str]) -> None:
    table = str(finished.results / "tiny" / "tables" / "losses.parquet")
    short = printed(capsys, table)
    whole = printed(capsys, table, "--full")
    assert len(whole) == len(short)
    assert any(line.endswith(" …") for line in short)
    assert not any(line.endswith(" …") for line in whole)
    assert any('"learning_rate":0.005' in line for line in whole)


def test_what_is_gone_is_said(finished: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results"
    shutil.copytree(finished.results, results)
    (results / "tiny" / "evaluation" / "sets" / "code.json").write_text('{"provenance": null}')
    lines = printed(capsys, str(results / "tiny" / "tables" / "unigram.csv"))
    assert "    set code: changed or deleted since" in lines


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("results/tiny/tables/nothing.csv", "no file"),
        ("results/tiny/tables/nothing.csv:2", "no file"),
        ("results/tiny/tables/claims.csv:100000", "has rows 1 to"),
        ("results/tiny/logs/claims.log", "carries no record"),
        ("results/tiny/logs/claims.log:1", "has no rows"),
    ],
)
def test_nothing_to_trace_is_a_clear_error(
    finished: Any, what: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert trace.main([str(finished.workdir / what)]) == 1
    assert message in capsys.readouterr().err


def test_outside_of_results_it_asks_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trace.main([str(tmp_path / "figure.svg")]) == 1
    assert "--results" in capsys.readouterr().err
