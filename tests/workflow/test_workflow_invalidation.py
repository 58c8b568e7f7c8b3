"""The invalidation matrix: what an edit makes again, exactly, as real Snakemake sees it after a real run."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ARCHITECTURES = ("transformer", "retnet", "gla")
SETTINGS = ("limited", "mixed")
LOSS_FIGURES = {"figure_ood_vs_id", "figure_loss_by_position", "figure_equal_loss", "figure_claims"}
LOSS_TABLES = {"losses_table", "positions_table", "equal_loss", "equal_loss_sensitivity", "claims"}
COMPARED = {"equal_loss", "equal_loss_sensitivity", "figure_equal_loss", "figure_ood_vs_id"}
COMPARED |= {"claims", "figure_claims"}
AFTER_LOSS = LOSS_TABLES | LOSS_FIGURES
AFTER_TRAINING = {"training_table", "figure_training"}
RECALL_FIGURES = {"figure_recall", "figure_needle_heatmap"}
AFTER_RECALL = {"recall_table", *RECALL_FIGURES, "claims", "figure_claims"}
FIGURES = LOSS_FIGURES | RECALL_FIGURES | {"figure_training", "figure_corpus"}
COLOURED = FIGURES - {"figure_corpus", "figure_claims"}  # colours are chosen from all architectures
TASKS = ("pairs", "lines")
SETS = {"evaluation_set prose", "evaluation_set code"}


def runs(
    rule: str, architectures: tuple[str, ...] = ARCHITECTURES, seeds: tuple[int, ...] = (0,)
) -> set[str]:
    return {
        f"{rule} {setting} {name} {seed}" for setting in SETTINGS for name in architectures for seed in seeds
    }


def retrained(*architectures: str, seeds: tuple[int, ...] = (0,)) -> set[str]:
    """Runs that are trained again, and all that shows them."""
    again = runs("train", architectures, seeds) | runs("loss", architectures, seeds)
    return again | AFTER_LOSS | AFTER_TRAINING


def recalled(*architectures: str, tasks: tuple[str, ...] = TASKS) -> set[str]:
    """Recall jobs that are done again, and all that shows them."""
    return {f"recall {task} {name}" for task in tasks for name in architectures} | AFTER_RECALL


def append(line: str) -> Callable[[str], str]:
    return lambda text: f"{text}\n{line}\n"


def replace(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new, 1)


CODE = {
    "a comment": ("training/loop.py", append("# a remark"), set()),
    "a docstring": ("training/loop.py", replace('"""Train, or', '"""Yes: train, or'), set()),
    "a mixer": ("mixers/gla/module.py", append("EDITED = 1"), retrained("gla") | recalled("gla")),
    "a mixer's options": (
        "mixers/retnet/config.py",
        append("EDITED = 1"),
        retrained("retnet") | recalled("retnet"),
    ),
    "a shared op": (
        "ops/linear_attention/op.py",
        append("EDITED = 1"),
        retrained("retnet", "gla") | recalled("retnet", "gla"),
    ),
    "the training loop": (
        "training/loop.py",
        append("EDITED = 1"),
        retrained(*ARCHITECTURES) | recalled(*ARCHITECTURES),
    ),
    "the loss evaluation": ("evaluation/score.py", append("EDITED = 1"), runs("loss") | AFTER_LOSS),
    "a recall task": ("tasks/recall/mqar.py", append("EDITED = 1"), recalled(*ARCHITECTURES)),
    "the recall evaluation": ("evaluation/recall_score.py", append("EDITED = 1"), recalled(*ARCHITECTURES)),
    "a recall figure": ("figures/recall.py", append("EDITED = 1"), {"figure_recall"}),
    "the analysis": (
        "analysis/equal_loss.py",
        append("EDITED = 1"),
        COMPARED,
    ),
    "the other methods": ("analysis/sensitivity.py", append("EDITED = 1"), {"equal_loss_sensitivity"}),
    "the figures' style": ("figures/style.py", append("EDITED = 1"), FIGURES),
    "one figure": ("figures/ood_vs_id.py", append("EDITED = 1"), {"figure_ood_vs_id"}),
    "the workflow": ("workflow.py", append("EDITED = 1"), set()),
    "provenance": ("provenance.py", append("EDITED = 1"), set()),
}


@pytest.mark.parametrize("edit", CODE)
def test_an_edit_of_the_code_reruns_what_runs_it(project: Any, edit: str) -> None:
    file, change, expected = CODE[edit]
    project.edit(file, change)
    assert project.pending() == expected


def learning_rate(config: dict[str, Any]) -> None:
    config["train"]["learning_rate"] = 0.004


def add_architecture(config: dict[str, Any]) -> None:
    config["architectures"]["window-8"] = {"mixer": "attention", "window": 8}


def remove_architecture(config: dict[str, Any]) -> None:
    del config["architectures"]["gla"]
    config["studies"]["all"]["compare"] = ["retnet"]


def add_seed(config: dict[str, Any]) -> None:
    config["train"]["seeds"] = [0, 1]


def figure_option(config: dict[str, Any]) -> None:
    config["figures"]["dpi"] = 100


def statistics(config: dict[str, Any]) -> None:
    config["statistics"]["margin"] = 0.05


def byte_budget(config: dict[str, Any]) -> None:
    config["evaluation"]["loss"]["bytes_per_domain"] = 3000


def add_domain(config: dict[str, Any]) -> None:
    paths = config["corpus"]["source"]["paths"]
    paths["poems"] = paths["prose"].replace("prose", "poems")
    config["corpus"]["domains"]["poems"] = "out"


def extend_one(config: dict[str, Any]) -> None:
    config["train"]["overrides"] = {"gla": {"budgets": [2560, 5120, 7680]}}


def vocabulary(config: dict[str, Any]) -> None:
    config["tokenizer"]["vocab_size"] = 310


def recall_steps(config: dict[str, Any]) -> None:
    config["evaluation"]["recall"]["tasks"]["lines"]["steps"] = 3


def recall_entry(config: dict[str, Any]) -> None:
    config["evaluation"]["recall"]["entries"] = {"rwkv7": {"mixer": "rwkv7"}}


def recall_seed(config: dict[str, Any]) -> None:
    config["evaluation"]["recall"]["seeds"] = [0, 1]


NEW_DOMAIN = {
    *(f"{rule} poems" for rule in ("sources", "deduplicate", "tokens_manifest", "evaluation_set")),
    *(f"{rule} poems-{shard}" for rule in ("filter", "tokenize") for shard in (0, 1)),
}
CONFIGURATION: dict[str, tuple[Callable[[dict[str, Any]], None], set[str]]] = {
    "the learning rate": (learning_rate, retrained(*ARCHITECTURES)),
    "an architecture more": (add_architecture, retrained("window-8") | recalled("window-8")),
    "an architecture less": (remove_architecture, AFTER_LOSS | AFTER_TRAINING | AFTER_RECALL),
    "the steps of a recall task": (recall_steps, recalled(*ARCHITECTURES, tasks=("lines",))),
    "an architecture of recall tasks alone": (recall_entry, recalled("rwkv7") | COLOURED),
    "a seed of recall tasks more": (recall_seed, recalled(*ARCHITECTURES)),
    "a seed more": (add_seed, retrained(*ARCHITECTURES, seeds=(1,))),
    "a figure's option": (figure_option, FIGURES),
    "the margin": (statistics, COMPARED),
    "the evaluation's bytes": (byte_budget, SETS | {"unigram"} | runs("loss") | AFTER_LOSS),
    "an evaluation domain more": (
        add_domain,
        NEW_DOMAIN | {"corpus_table", "figure_corpus", "unigram"} | runs("loss") | AFTER_LOSS,
    ),
    "the tokens of one architecture": (extend_one, retrained("gla")),
    "the vocabulary": (
        vocabulary,
        {"tokenizer", "unigram", "corpus_table", "figure_corpus", *SETS}
        | {f"tokenize {domain}-{shard}" for domain in ("prose", "code") for shard in (0, 1)}
        | {f"tokens_manifest {domain}" for domain in ("prose", "code")}
        | retrained(*ARCHITECTURES),
    ),
}


@pytest.mark.parametrize("change", CONFIGURATION)
def test_a_change_of_the_configuration_reruns_what_depends_on_it(project: Any, change: str) -> None:
    configure, expected = CONFIGURATION[change]
    project.configure(configure)
    assert project.pending() == expected


def test_touching_every_file_reruns_nothing(project: Any) -> None:
    for path in project.folder.rglob("*"):
        if path.is_file() and ".snakemake" not in path.parts:
            os.utime(path)
    assert project.pending() == set()


def test_results_without_snakemake_s_records_are_taken_if_they_match(project: Any) -> None:
    shutil.rmtree(project.workdir / ".snakemake")
    assert project.pending() == set()
    assert "Nothing to be done" in project.snakemake("--cores", "1")


def test_results_without_snakemake_s_records_that_do_not_match_are_an_error(project: Any) -> None:
    shutil.rmtree(project.workdir / ".snakemake")
    project.configure(byte_budget)
    output = project.snakemake("--cores", "1", "-n", fails=True)
    assert "results/tiny/evaluation/sets/prose.json: made by evaluation_set with recipe" in output
    assert "… and" in output
    advice = next(line for line in output.splitlines() if line.startswith("To make them again: "))
    rules = advice.split("--forcerun ")[1].split()
    assert rules == ["evaluation_set", "loss"]
    expected = SETS | {"unigram"} | runs("loss") | AFTER_LOSS
    assert project.pending("--forcerun", *rules) == expected


def test_a_changed_figure_is_drawn_again_and_nothing_else_is_touched(project: Any) -> None:
    before = changes(project.results)
    project.edit("figures/equal_loss.py", append("EDITED = 1"))
    project.snakemake("--cores", "2")
    changed = {path for path, time in changes(project.results).items() if before.get(path) != time}
    drawn = {f"tiny/figures/equal_loss.{ending}" for ending in ("svg", "csv", "json")}
    assert changed == drawn | {"tiny/logs/figures/equal_loss.log"}
    assert "Nothing to be done" in project.snakemake("--cores", "1")


def test_the_longer_budget_of_one_architecture_trains_it_and_leaves_the_others(project: Any) -> None:
    before = changes(project.results)
    project.configure(extend_one)
    project.snakemake("--cores", "2")
    after = changes(project.results)
    changed = {Path(path) for path, time in after.items() if before.get(path) != time}
    trained = {path.parts[2:4] for path in changed if path.parts[1] == "runs"}
    scored = {path.parts[3:5] for path in changed if path.parts[1:3] == ("evaluation", "loss")}
    assert trained == scored == {(setting, "gla") for setting in SETTINGS}
    assert not {path for path in changed if path.parts[0] == "corpora"}
    assert "tiny/runs/mixed/gla/seed0/checkpoints/annealed-00000030.safetensors" in after
    assert project.pending() == set()


def test_text_that_is_not_kept_is_deleted_when_it_is_tokenized(project: Any) -> None:
    project.configure(lambda config: config["corpus"].update(keep_text=False))
    assert project.pending() == {"discard_text prose", "discard_text code"}
    texts = project.results / "corpora" / "words" / "text"
    assert len(list(texts.glob("train/*/*.parquet"))) == 4
    project.snakemake("--cores", "2")
    assert not list(texts.glob("t*/*/*.parquet"))
    assert project.pending() == set()


def changes(folder: Path) -> dict[str, int]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".snakemake_timestamp")
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in files}
