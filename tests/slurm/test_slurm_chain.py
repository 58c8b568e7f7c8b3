"""The whole workflow through `snakemake --profile slurm`, as shipped; a Slurm that does not start."""

import csv
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml


def test_from_raw_text_to_figures(site: Any) -> None:
    root = site.results / "smoke"
    for figure in ("corpus", "training", "ood_vs_id", "loss_by_position", "equal_loss"):
        assert "<svg" in (root / "figures" / f"{figure}.svg").read_text()
    with open(root / "tables" / "losses.csv") as file:
        assert {row["arch"] for row in csv.DictReader(file)} == {"transformer", "window-16", "gla"}
    assert not list((root / "work").glob("*"))


def test_every_step_was_a_job_with_the_profile_s_resources(site: Any) -> None:
    """In the accounting: a job's comment is its rule."""
    columns = "Comment%200,AllocTRES%200,TimelimitRaw"
    lines = site.cluster.output("sacct", "-n", "-P", "-X", "-o", columns).splitlines()
    found: dict[str, list[tuple[str, str]]] = {}
    for comment, resources, minutes in (line.split("|") for line in lines):
        rule = comment.removeprefix("rule_").split("_wildcards_")[0]
        found.setdefault(rule, []).append((resources, minutes))
    assert {"filter", "deduplicate", "tokenizer", "tokenize", "equal_loss", "claims"} <= found.keys()
    for rule, minutes in (("train", "1440"), ("loss", "480")):
        assert len(found[rule]) >= 3
        assert all("gres/gpu=1" in resources for resources, _ in found[rule])
        assert {limit for _, limit in found[rule]} == {minutes}
    assert not any("gpu" in resources for resources, _ in found["filter"])


def test_repeating_it_submits_nothing(site: Any) -> None:
    before = site.cluster.output("sacct", "-n", "-X", "-o", "JobID")
    config = yaml.safe_load((site.folder / "smoke.yaml").read_text())
    assert "Nothing to be done" in site.finish(site.start(config), config)
    assert site.cluster.output("sacct", "-n", "-X", "-o", "JobID") == before


def test_a_daemon_that_does_not_start_is_named_with_all_logs(site: Any, tmp_path: Path) -> None:
    program = tmp_path / "slurmdbd"
    program.write_text("#!/bin/sh\necho no room for accounts\nexit 3\n")
    program.chmod(0o755)
    kind = type(site.cluster)
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"broken-{tmp_path.name}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        with pytest.raises(Exception, match="slurmdbd ended with exit code 3") as caught, kind(folder):
            pass
    message = str(caught.value)
    assert "no room for accounts" in message
    assert "--- mariadbd" in message
    shutil.rmtree(folder)
