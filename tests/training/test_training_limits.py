"""Time limits and attempts: a run stops before it is killed, and is not retried for ever."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from seqarch.files import sha256_file
from seqarch.training.errors import Interrupted, NonFiniteError, NoProgress
from seqarch.training.job import Job
from seqarch.training.loop import train
from seqarch.training.signals import Stop, _seconds, end_of_slurm_job

MakeJob = Callable[..., Job]


def weights(job: Job) -> list[str]:
    return [sha256_file(path) for path in sorted((job.run / "checkpoints").iterdir())]


def test_time_is_up_when_another_step_and_saving_no_longer_fit() -> None:
    assert not Stop()
    assert not Stop(ends=time.time() + 1000)
    assert Stop(ends=time.time())
    stop = Stop(ends=time.time() + 1.0)  # a tenth of it is kept
    assert not stop
    stop.lap()
    time.sleep(0.3)
    assert not stop
    stop.lap()  # one step takes 0.3 s: 0.7 s are left, and 0.6 + 0.1 of them are needed
    time.sleep(0.05)
    assert stop
    assert stop.reason == "its time limit"


def test_a_run_that_is_cut_by_its_time_limit_ends_in_the_same_bytes(make_job: MakeJob) -> None:
    whole, parts = make_job("whole"), make_job("parts")
    train(whole)
    with pytest.raises(Interrupted, match="stopped by its time limit after step"):
        train(replace(parts, ends=time.time(), invocation="one"))
    while not parts.run.exists():
        with contextlib.suppress(Interrupted):
            train(replace(parts, ends=time.time() + 0.05, invocation="one"))
    assert weights(parts) == weights(whole)


def test_two_attempts_without_progress_are_the_last(make_job: MakeJob) -> None:
    """Of one `snakemake`; the next one tries again. Here each attempt ends before it can save anything."""
    job = make_job("run", learning_rate=1e30)
    for _ in range(3):  # the first one gets as far as the bad step
        with pytest.raises(NonFiniteError):
            train(replace(job, invocation="one"))
    for _ in range(2):
        with pytest.raises(NoProgress, match=r"two attempts got no further than the \d+ steps"):
            train(replace(job, invocation="one"))
    with pytest.raises(NonFiniteError):
        train(replace(job, invocation="two"))
    with pytest.raises(NonFiniteError):
        train(job)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0:59", 59),
        ("10:00", 600),
        ("1:00:01", 3601),
        ("2-01:00:00", 176400),
        ("UNLIMITED", None),
        ("", None),
    ],
)
def test_slurm_s_durations(text: str, seconds: float | None) -> None:
    assert _seconds(text) == seconds


def test_the_end_of_a_job_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert end_of_slurm_job() is None
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert end_of_slurm_job() is None  # no squeue: a warning, no failure
    (tmp_path / "squeue").write_text('#!/bin/sh\n[ "$2" = --jobs=7 ] && echo 1:00\n')
    (tmp_path / "squeue").chmod(0o755)
    end = end_of_slurm_job()
    assert end is not None
    assert end - time.time() == pytest.approx(60, abs=5)
