"""Planning: errors before anything runs, the size of the graph, the profile, what parsing costs."""

import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from seqarch.config import load
from seqarch.plan import Plan
from seqarch.rules import RULES

ROOT = Path(__file__).parents[2]
CONFIGURATIONS = sorted(path.stem for path in (ROOT / "config").glob("*.yaml") if path.stem != "claims")


def snakemake(*arguments: str, folder: Path, fails: bool = False) -> str:
    """Snakemake on the repository's own Snakefile in an empty directory; its output."""
    run = subprocess.run(
        [sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile"), "-d", str(folder), *arguments],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if name != "SEQARCH_CODE_TABLE"},
    )
    assert (run.returncode != 0) == fails, run.stdout
    return run.stdout


def read(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / "config" / f"{name}.yaml").read_text())


def counts(output: str) -> dict[str, int]:
    """Jobs by rule, from the statistics of a dry run."""
    return {name: int(number) for name, number in re.findall(r"^(\w+) +(\d+)$", output, re.MULTILINE)}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_dry_run_on_an_empty_folder_plans_every_job_and_needs_no_data(
    name: str, tmp_path: Path, cpu_seconds: Callable[[], float]
) -> None:
    config = read(name)
    output = snakemake(
        "-n", "--quiet", "rules", "--configfile", f"{ROOT}/config/{name}.yaml", folder=tmp_path
    )
    seconds = cpu_seconds()
    plan = Plan(load(config, ROOT / "config"), ROOT / "config")
    train = config["train"]
    runs = len(config["architectures"]) * len(train["settings"]) * len(train["seeds"])
    shards = len(plan.groups) * config["corpus"]["n_shards"]
    found = counts(output)
    assert found["filter"] == found["tokenize"] == shards
    assert found["train"] == found["loss"] == runs
    expected = {rule: len(list(plan.jobs(rule))) for rule in RULES}
    assert {rule: found.get(rule, 0) for rule in RULES} == expected
    assert found["total"] == sum(expected.values()) + 1
    assert seconds < 20  # on a busy machine; bench_workflow.py has the goal, 10 s, which is not met yet
    assert not (tmp_path / "results").exists()


def test_no_value_of_the_demo_leaks_into_another_configuration(tmp_path: Path) -> None:
    config = read("smoke")
    for section in ("experiment", "train", "architectures"):
        file = tmp_path / f"without-{section}.yaml"
        file.write_text(yaml.safe_dump({key: value for key, value in config.items() if key != section}))
        assert f"{section}: Field required" in snakemake(
            "-n", "--configfile", str(file), folder=tmp_path, fails=True
        )
    output = snakemake("-n", "--configfile", f"{ROOT}/config/smoke.yaml", folder=tmp_path)
    assert "results/demo" not in output
    assert "corpora/embedded" not in output


def test_an_unknown_key_is_an_error_with_a_suggestion_and_without_a_traceback(tmp_path: Path) -> None:
    config = read("smoke")
    config["train"]["lerning_rate"] = 1
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(config))
    output = snakemake("-n", "--configfile", f"{tmp_path}/wrong.yaml", folder=tmp_path, fails=True)
    assert "train: unknown key 'lerning_rate': did you mean 'learning_rate'?" in output
    assert "Traceback" not in output


def test_the_profile_names_rules_that_exist_and_plans_here(tmp_path: Path) -> None:
    rules = set(snakemake("--list-rules", folder=tmp_path).split())
    profile = yaml.safe_load((ROOT / "slurm" / "profile.yaml").read_text())
    assert set(profile["set-resources"]) <= rules
    assert rules == {*RULES, "all", "corpus", "figures", "paper_a", "paper_b"}
    output = snakemake("--profile", str(ROOT / "slurm"), "-n", "--quiet", "rules", folder=tmp_path)
    assert counts(output)["train"] == 30


def test_without_slurm_the_profile_says_so_at_once(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("bash", "sh", "which"):
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(tmp_path / "bin"))
        output = snakemake("--profile", str(ROOT / "slurm"), "corpus", folder=tmp_path, fails=True)
    assert "there is no `sbatch` on this machine" in output
    assert not (tmp_path / "results").exists()


def test_lint_is_clean(tmp_path: Path) -> None:
    assert "Congratulations, your workflow is in a good condition!" in snakemake("--lint", folder=tmp_path)


def test_parsing_loads_no_torch_and_is_fast(tmp_path: Path, cpu_seconds: Callable[[], float]) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "snakemake", "--list-rules"]
    where = ["-s", ROOT / "Snakefile", "-d", tmp_path]
    run = subprocess.run([*command, *where], capture_output=True, text=True, check=True)
    loaded = {
        line.split("|")[-1].strip() for line in run.stderr.splitlines() if line.startswith("import time:")
    }
    assert "seqarch.workflow" in loaded
    assert not {name for name in loaded if name.split(".")[0] in ("torch", "datasets", "scipy", "matplotlib")}
    assert cpu_seconds() < 6


def test_our_own_share_of_parsing_is_well_under_a_second(tmp_path: Path) -> None:
    code = """
import sys, time, yaml
from pathlib import Path
import pydantic
start = time.process_time()
from seqarch.config import load
from seqarch.plan import Plan
plan = Plan(load(yaml.safe_load(open(sys.argv[1])), Path(sys.argv[2])), Path(sys.argv[2]))
plan.export()
print(time.process_time() - start)
"""
    files = [f"{ROOT}/config/slimpajama_110m.yaml", f"{ROOT}/config"]
    runs = [
        subprocess.run([sys.executable, "-c", code, *files], capture_output=True, text=True) for _ in range(3)
    ]
    assert min(float(run.stdout) for run in runs) < 1.5, runs[0].stderr


def test_a_job_of_1024_shards_fits_on_a_command_line(tmp_path: Path) -> None:
    """Linux allows 128 KiB for one argument, and Snakemake gives bash the whole command as one."""
    config = read("slimpajama_110m")
    config["corpus"]["n_shards"] = 1024
    plan = Plan(load(config, ROOT / "config"), ROOT / "config")
    for rule, group in itertools.product(("filter", "tokenize"), plan.groups):
        parts = plan.paths(rule, group=group)
        assert len(parts) == 1024
        assert len(" ".join(parts)) + len(plan.expects(None, parts)) < 120_000


def test_a_run_in_domain_depends_on_in_domain_text_alone() -> None:
    config = read("slimpajama_110m")
    plan = Plan(load(config, ROOT / "config"), ROOT / "config")
    before = plan.spec("train")({"setting": "limited", "architecture": "gla", "seed": "0"})
    config["corpus"]["domains"] = {**config["corpus"]["domains"], "patents": "out"}
    after = Plan(load(config, ROOT / "config"), ROOT / "config")
    assert after.spec("train")({"setting": "limited", "architecture": "gla", "seed": "0"}) == before
    assert after.spec("filter")({"group": "in", "shard": "3"}) == plan.spec("filter")(
        {"group": "in", "shard": "3"}
    )
    assert after.spec("filter")({"group": "out", "shard": "3"}) != plan.spec("filter")(
        {"group": "out", "shard": "3"}
    )
    assert plan.in_groups() == ["in"]
    assert plan.tokenized("arxiv") == ["results/corpora/slimpajama_627b/tokens/groups/out.json"]


def test_long_context_samples_are_made_once_for_each_tokenizer_and_from_the_text_they_name() -> None:
    config = read("long_context")
    corpus = {"kind": "corpus", "domains": ["news", "scripture"]}
    config["evaluation"]["ruler"] |= {"models": ["own", "pretrained"], "haystack": corpus}
    config["evaluation"]["ruler"]["questions"]["qa_1"] = {"kind": "corpus", "domains": ["code"]}
    plan = Plan(load(config, ROOT / "config"), ROOT / "config")
    data = list(plan.jobs("ruler_data"))
    assert len(data) == len({tuple(job.items()) for job in data}) == 13 * 5 * 5
    assert {job["vocab"] for job in data} == {"own", "neox", "llama", "gemma", "rwkv-world"}
    needle = {(job["vocab"], job["length"]) for job in plan.jobs("needle_data")}
    assert {length for vocab, length in needle if vocab == "gemma"} == {
        "1024",
        "2048",
        "4096",
        "8192",
        "16384",
    }
    assert "own" not in {vocab for vocab, _ in needle}

    class Wildcards:
        def __init__(self, probe: str) -> None:
            self.probe = probe

    texts = {probe: plan.sample_text(Wildcards(probe)) for probe in ("niah_single_2", "qa_1", "qa_2", "cwe")}
    groups = {domain: plan.slices.group_of(domain) for domain in ("news", "scripture", "code")}
    folder = "results/corpora/embedded/text"
    assert texts["niah_single_2"] == [
        f"{folder}/{groups['news']}.json",
        f"{folder}/{groups['scripture']}.json",
    ]
    assert texts["qa_1"] == [f"{folder}/{groups['code']}.json"]
    assert texts["qa_2"] == texts["cwe"] == []
    spec = plan.slice("ruler_data", vocab="neox", suite="fixed", probe="vt", length="4096")
    assert "haystack" not in spec
    assert "questions" not in spec


def test_ours_are_drawn_against_published_ones_only_where_there_are_any() -> None:
    config = read("long_context")
    drawn = {}
    for length in (16_384, 16_000):
        config["evaluation"]["ruler"]["lengths"] = [length]
        plan = Plan(load(config, ROOT / "config"), ROOT / "config")
        drawn[length] = bool(plan.paths("figure_published"))
        assert plan.paths("figure_ruler")
    assert drawn == {16_384: True, 16_000: False}


def test_without_its_sections_there_is_no_long_context_job() -> None:
    plan = Plan(load(read("smoke"), ROOT / "config"), ROOT / "config")
    assert not any(plan.long_context.jobs.values())
    assert plan.paper_b() == []


def test_where_a_study_is_drawn_changes_no_analysis() -> None:
    config = read("study_cpu")
    before = Plan(load(config, ROOT / "config"), ROOT / "config")
    config["studies"]["keys"]["figures"] = []
    after = Plan(load(config, ROOT / "config"), ROOT / "config")
    for rule in ("equal_loss", "equal_loss_sensitivity", "claims"):
        assert before.slice(rule) == after.slice(rule)
    figure = before.slice("figure_major_factors")
    assert figure["studies"] == ["visibility", "keys", "temperature", "alibi"]
    assert figure["factors"]["random-keys-shared"] == ["keys"]
    assert before.slice("figure_minor_factors")["factors"]["gla-no-gate"] == ["gate"]
    assert after.slice("figure_major_factors")["studies"] == ["visibility", "temperature", "alibi"]
    for study in config["studies"].values():
        study["figures"] = []
    assert not Plan(load(config, ROOT / "config"), ROOT / "config").study_figures()


def test_claims_know_published_models_and_the_learners_of_recall_tasks() -> None:
    published = Plan(load(read("long_context"), ROOT / "config"), ROOT / "config").slice("claims")[
        "published"
    ]
    assert published["mamba2-2.7b"]["mixers"] == ["mamba2"]
    assert published["recurrentgemma-2b"]["pattern"]
    config = read("smoke")
    task = {"kind": "mqar", "steps": 5, "length": 32, "test_lengths": [32], "vocab": 64, "pairs": [2]}
    recall = {"d_model": 32, "n_layers": 2, "seeds": [0], "learning_rates": [0.01]}
    recall["entries"] = {"delta": {"mixer": "deltanet"}, "gla-plain": {"mixer": "gla", "decay": "none"}}
    config["evaluation"]["recall"] = recall | {"tasks": {"small": task | {"test_pairs": [2]}}}
    plan = Plan(load(config, ROOT / "config"), ROOT / "config")
    learners = plan.slice("claims")["learners"]
    assert learners["delta"]["mixers"] == ["deltanet"]
    assert learners["gla-plain"]["changed"] == ["decay"]
    assert plan.score_tables() == ["results/smoke/tables/recall.parquet"]
