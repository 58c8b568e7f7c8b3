"""The benchmark runner: verdicts, refusal on a busy machine, the summary."""

import csv
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

BENCH = """
def rows():
    row = {"benchmark": "sum", "shape": "10", "threads": 1, "ours": "a", "ours_seconds": 2.0, "goal": 0.5}
    yield {**row, "peer": "b", "peer_seconds": 1.0}
    yield {**row, "peer": "b", "peer_seconds": 0.9}
    yield {**row, "pass": True}
    yield {**row, "peer": "c (not there)", "pass": None}
    yield {**row, "colour": "red"}
"""


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    spec = importlib.util.spec_from_file_location("bench_runner", Path(__file__).with_name("run.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "bench_sum.py").write_text(BENCH)
    monkeypatch.setattr(module, "HERE", tmp_path)
    return module


def test_the_summary_holds_verdicts_and_a_failing_benchmark_is_reported(
    runner: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert runner.main(["--busy", "--out", str(tmp_path / "out" / "summary.csv")]) == 1
    with open(tmp_path / "out" / "summary.csv") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == runner.COLUMNS
    assert [row["ratio"] for row in rows] == ["0.5", "0.45", "", ""]
    assert [row["pass"] for row in rows] == ["True", "False", "True", ""]
    shown = capsys.readouterr()
    assert "4 rows: 1 missed, 1 without a peer" in shown.out
    assert "unknown columns ['colour']" in shown.err


def test_a_busy_machine_is_refused(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "busy_cores", lambda: 1.4)
    assert runner.main([]) == 2
    assert "other processes use 1.4 cores" in capsys.readouterr().err
