"""Unfinished runs: those that a plan goes on from are kept, those of other options or code can be deleted."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from seqarch.cli.clean import left
from seqarch.files import write_json
from seqarch.plan import open_experiment

CONFIG = Path(__file__).parents[2] / "config"
pytestmark = pytest.mark.slow


def test_recall_is_gone_on_with_by_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recall job makes several runs, which its own specification does not list."""
    plan = open_experiment(CONFIG / "config.yaml", CONFIG)
    code = plan.fingerprint("recall", learner=next(iter(plan.recall.mixers)))
    for name, digest in (("a", code), ("b", "0" * 64)):
        about = {"step": "recall", "code": digest, "asked": name, "setting": "recall"}
        write_json(tmp_path / plan.root / "work" / name / "job.json", about)
    monkeypatch.chdir(tmp_path)
    assert [each.status for each in left(plan)] == ["planned", "stale"]


def clean(project: Any, *arguments: str) -> list[str]:
    command = [sys.executable, "-m", "seqarch.cli.clean", "--configfile", str(project.folder / "tiny.yaml")]
    done = subprocess.run(
        [*command, *arguments],
        env=project.environment,
        cwd=project.workdir,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_states_of_other_options_are_stale_and_those_in_use_are_kept(project: Any) -> None:
    assert clean(project) == ["nothing unfinished in results/tiny/work"]
    project.configure(lambda config: config["train"].update(budgets=[1_024_000, 4_096_000]))
    run = "results/tiny/runs/limited/gla/seed0/run.json"
    process = subprocess.Popen(
        project.command("--cores", "1", run),
        env=project.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    work = project.results / "tiny" / "work"
    deadline = time.monotonic() + 120
    while not list(work.glob("*/job.json")):
        assert time.monotonic() < deadline, "the run did not start"
        assert process.poll() is None, "the run ended too early"
        time.sleep(0.1)
    assert [line.split()[0] for line in clean(project)] == ["used"]
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    folder = next(iter(work.iterdir()))
    _wait_for_lock(folder)

    (line,) = clean(project, "--stale")
    assert line.startswith("planned")
    assert line.endswith("limited/gla/0")
    assert folder.is_dir()
    project.configure(lambda config: config["train"].update(learning_rate=0.001))
    assert clean(project)[0].startswith("stale")
    with open(folder / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert clean(project, "--stale")[0].startswith("used")
    assert clean(project, "--stale")[0].startswith("deleted")
    assert not folder.exists()
    (work / "0123").mkdir()
    assert clean(project, "--stale")[0].startswith("unknown")


def _wait_for_lock(folder: Path) -> None:
    """Until the killed job has let go of it."""
    deadline = time.monotonic() + 30
    with open(folder / "lock") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            else:
                return
