"""Training jobs that Slurm ends, or that die, go on through `retries` and end in the undisturbed run's bytes.

All of them run side by side, each under a configuration of its own name that trains the same model.
"""

import hashlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

RUN = "runs/limited/transformer/seed0"
OPTIONS = {
    "batch_tokens": 4096,
    "learning_rate": 1.0e-3,
    "validation": {"tokens": 2_048, "every_tokens": 4_000_000},
}
# Ten seconds on one core. The state is saved where the trunk forks.
SHORT = OPTIONS | {"budgets": [150_000, 600_000]}


def longer(site: Any) -> dict[str, Any]:
    """More than a job of Slurm's shortest time limit, a minute, can train on this machine."""
    rate = json.loads((site.results / "smoke" / RUN / "run.json").read_text())["tokens_per_second"]
    tokens = max(4_000_000, round(150 * rate))
    return OPTIONS | {"budgets": [tokens // 5, tokens]}


@pytest.fixture(scope="module")
def runs(site: Any, config: Callable[..., Any]) -> Iterator[dict[str, str]]:
    """Snakemake's output for each experiment, all done."""
    configs = {
        "calm-long": config("calm-long", **longer(site)),
        "limit": config("limit", **longer(site)),
        "calm": config("calm", **SHORT),
        "killed": config("killed", **SHORT),
        "cancelled": config("cancelled", **SHORT),
        # At the smoke configuration's rate, five times as high, AdamW lets roundings grow past the bound.
        "one": config("one", learning_rate=OPTIONS["learning_rate"]),
        "two": config(
            "two",
            learning_rate=OPTIONS["learning_rate"],
            launcher={"kind": "submitit", "processes": 2},
        ),
    }
    # One snakemake a working directory: they are users of one cluster.
    sites = {name: site.copy(site.folder.with_name(f"user {name}")) for name in configs}
    options = {name: [f"results/{name}/{RUN}/run.json"] for name in configs}
    options["limit"] += ["--set-resources", "train:runtime=1"]
    started = {name: sites[name].start(configs[name], *options[name]) for name in configs}
    try:
        with ThreadPoolExecutor() as pool:  # whichever gets its turn first
            waiting = [pool.submit(kill, sites["killed"]), pool.submit(cancel, sites["cancelled"])]
        for each in waiting:
            each.result()
        yield {name: sites[name].finish(started[name], configs[name]) for name in configs} | {
            f"{name} run": str(sites[name].results / name / RUN) for name in configs
        }
    finally:
        for process in started.values():
            if process.poll() is None:
                process.kill()
                process.wait()


def wait_until(condition: Callable[[], object], seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)


def states(site: Any, name: str) -> list[Path]:
    return list((site.results / name / "work").glob("*/state-*"))


def kill(site: Any, name: str = "killed") -> None:
    """The trainer, as a node failure would, once it has saved its state."""
    wait_until(lambda: states(site, name))
    (lock,) = (site.results / name / "work").glob("*/lock")
    os.kill(int(lock.read_text().split()[1]), signal.SIGKILL)


def cancel(site: Any, name: str = "cancelled") -> None:
    """The Slurm job, in the middle of a segment."""
    wait_until(lambda: states(site, name))
    user = str(site.folder)
    jobs = [
        line.split("|")[0]
        for line in site.cluster.output("squeue", "-h", "-o", "%i|%Z|%k").splitlines()
        if line.split("|")[1] == user and "train" in line
    ]
    assert len(jobs) == 1
    assert site.cluster.ask("scancel", jobs[0])


def weights(run: str) -> dict[str, str]:
    files = [*sorted(Path(run, "checkpoints").iterdir()), Path(run, "metrics.parquet")]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def resumed(run: str) -> int:
    return json.loads(Path(run, "run.json").read_text())["resumed"]


@pytest.mark.parametrize(
    ("name", "calm"), [("limit", "calm-long"), ("killed", "calm"), ("cancelled", "calm")]
)
def test_an_interrupted_job_goes_on_to_the_same_bytes(runs: dict[str, str], name: str, calm: str) -> None:
    assert "Trying to restart job" in runs[name]
    assert "Trying to restart job" not in runs[calm]
    assert resumed(runs[f"{calm} run"]) == 0
    assert resumed(runs[f"{name} run"]) >= 1
    assert weights(runs[f"{name} run"]) == weights(runs[f"{calm} run"])


def test_at_its_limit_a_job_ends_by_itself(site: Any, runs: dict[str, str]) -> None:
    """FAILED, not TIMEOUT, and in good time: the trainer knew of the limit."""
    lines = site.cluster.output("sacct", "-n", "-P", "-X", "-o", "State,ElapsedRaw,TimelimitRaw").splitlines()
    limited = [line.split("|") for line in lines if line.endswith("|1")]
    assert len(limited) >= 2
    assert {state for state, _, _ in limited} == {"FAILED", "COMPLETED"}
    assert all(int(seconds) <= 60 for _, seconds, _ in limited)


def test_two_gpus_are_two_processes_with_the_same_curve(site: Any, runs: dict[str, str]) -> None:
    resources = site.cluster.output("sacct", "-n", "-P", "-X", "-o", "AllocTRES%200")
    assert "gres/gpu=2" in resources
    run = Path(runs["two run"])
    assert json.loads((run / "run.json").read_text())["environment"]["processes"] == 2
    curves = [
        pq.read_table(each / "metrics.parquet").column("loss").to_pylist()
        for each in (run, Path(runs["one run"]))
    ]
    assert curves[0] == pytest.approx(curves[1], abs=1e-5)
