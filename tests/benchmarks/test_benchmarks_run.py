"""The benchmark runner: verdicts, refusal on a busy machine, the summary."""

import csv
import importlib.util
import subprocess
import sys
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
SLOW = """
import os, signal
def rows():
    yield {"benchmark": "sum", "shape": "10", "threads": 1, "ours": "a", "ours_seconds": 2.0, "goal": 0.5}
    os.kill(os.getpid(), signal.SIGTERM)
    signal.pause()
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


@pytest.mark.parametrize("goal", ['""', "None"])
def test_a_goal_that_is_no_number_is_an_error(
    runner: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], goal: str
) -> None:
    (tmp_path / "bench_sum.py").write_text(BENCH.replace('"goal": 0.5', f'"goal": {goal}'))
    assert runner.main(["--busy", "--out", str(tmp_path / "summary.csv")]) == 1
    assert "goal: expected a number" in capsys.readouterr().err


def test_what_was_measured_before_sigterm_is_kept(tmp_path: Path) -> None:
    here = Path(__file__).parent
    for name in ("run.py", "quiet.py"):
        (tmp_path / "tests" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "tests" / name).write_text((here / name).read_text())
    (tmp_path / "tests" / "bench_slow.py").write_text(SLOW)
    command = [
        sys.executable,
        str(tmp_path / "tests" / "run.py"),
        "--busy",
        "--out",
        str(tmp_path / "rows.csv"),
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 143, run.stderr
    with open(tmp_path / "rows.csv") as file:
        assert [row["benchmark"] for row in csv.DictReader(file)] == ["sum"]


def test_a_busy_machine_is_refused(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "busy_cores", lambda: 1.4)
    assert runner.main([]) == 2
    assert "other processes use 1.4 cores" in capsys.readouterr().err
