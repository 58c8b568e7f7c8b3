"""`seqarch.cli.sweep`: jobs by submitit, one of which is sent back into the queue."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def test_a_sweep_with_a_requeued_job(site: Any, tmp_path: Path) -> None:
    record = json.loads((site.results / "smoke/runs/limited/transformer/seed0/run.json").read_text())
    spec = record["provenance"]["spec"]
    spec["train"] |= {"budgets": [700_000], "batch_tokens": 4096}
    tokens = site.results / "corpora" / "smoke" / "tokens"
    command = [
        *(sys.executable, "-m", "seqarch.cli.sweep", "--spec", json.dumps(spec)),
        *("--grid", "1e-3", "1e-2", "--out", str(tmp_path / "sweep"), "--save-seconds", "1"),
        *(
            "--manifests",
            str(tokens / "train/words/manifest.json"),
            str(tokens / "validation/words/manifest.json"),
        ),
        *("--minutes", "5", "--gpus", "1", "--memory-gb", "2"),
    ]
    with subprocess.Popen(command, env=site.environment, text=True, stderr=subprocess.PIPE) as process:
        work = tmp_path / "sweep" / "work"
        end = time.monotonic() + 120
        while len({file.parent for file in work.glob("*/state-*")}) < 2:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end
            time.sleep(0.05)
        jobs = site.cluster.output("squeue", "-h", "-n", "seqarch-sweep", "-o", "%i").split()
        assert len(jobs) == 2
        assert site.cluster.ask("scontrol", "requeue", jobs[0])
        # Slurm lets a requeued job wait for two minutes; this one need not.
        while "PENDING" not in site.cluster.output("squeue", "-h", "-j", jobs[0], "-o", "%T"):
            time.sleep(0.1)
        assert site.cluster.ask("scontrol", "update", f"JobId={jobs[0]}", "StartTime=now")
        _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    choice = json.loads((tmp_path / "sweep" / "choice.json").read_text())
    assert [each["learning_rate"] for each in choice["trials"]] == [1e-3, 1e-2]
    losses = [each["validation_loss"] for each in choice["trials"]]
    assert choice["learning_rate"] == choice["trials"][losses.index(min(losses))]["learning_rate"]
    runs = [tmp_path / "sweep" / name / "run.json" for name in ("lr0.001", "lr0.01")]
    assert sorted(json.loads(run.read_text())["resumed"] for run in runs) == [0, 1]
    assert "best: " in err
