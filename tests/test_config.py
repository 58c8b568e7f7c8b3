"""The one configuration: its errors, and its documentation, which must name every key."""

import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from seqarch.config import Experiment, check_unique_keys, load
from seqarch.errors import ConfigError
from seqarch.mixers import registry
from seqarch.mixers.base import PLACE
from seqarch.plan import Plan

CONFIG = Path(__file__).parents[1] / "config"
FILES = sorted(path for path in CONFIG.glob("*.yaml") if path.stem != "claims")


@pytest.fixture
def smoke() -> dict[str, Any]:
    return yaml.safe_load((CONFIG / "smoke.yaml").read_text())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_shipped_configurations_are_valid(file: Path) -> None:
    check_unique_keys(file)
    assert load(yaml.safe_load(file.read_text()), CONFIG).experiment == file.stem.replace("config", "demo")


def test_the_paper_scale_has_every_mixer() -> None:
    config = yaml.safe_load((CONFIG / "slimpajama_110m.yaml").read_text())
    used = {entry.get("mixer") for entry in config["architectures"].values()}
    assert used >= set(registry.names())


def set_at(config: dict[str, Any], path: str, value: Any) -> None:
    *parents, key = path.split("/")
    for parent in parents:
        config = config[parent]
    config[key] = value


WRONG = [
    ("expriment", "x", "unknown key 'expriment': did you mean 'experiment'?"),
    ("corpus/n_shard", 2, "corpus: unknown key 'n_shard': did you mean 'n_shards'?"),
    ("corpus/source/path", "x", "unknown key 'path'"),
    ("corpus/filter/dedupe", "x", "did you mean 'dedup'?"),
    ("evaluation/loss/window", 1, "evaluation.loss: unknown key 'window': did you mean 'windows'?"),
    ("train/schedule/decay", 0.1, "unknown key 'decay': did you mean 'decay_fraction'?"),
    ("train/learning_rate", "1e-3", "write it with a dot and a sign, e.g. 1.0e-3"),
    ("train/sequence_length", "64", "YAML reads 64 as text: write it without quotes"),
    ("train/sequence_length", True, "sequence_length: expected a number, not true"),
    ("train/seeds", [True], "seeds: expected a number, not true"),
    ("train/seeds", 3, "train.seeds: expected a list, e.g. [0, 1] (given: 3)"),
    ("train/seeds", [], "train.seeds: expected at least one entry"),
    ("train/settings/limited", "inn", "train.settings.limited: Input should be 'in' or 'all' (given: 'inn')"),
    ("corpus/source", {"paths": ["a.jsonl"]}, "corpus.source: expected a mapping that says its `kind`"),
    ("corpus/source", {"kind": "files", "paths": []}, "paths: expected at least one entry"),
    ("corpus/source", {"kind": "files", "paths": {"news": []}}, "paths.news: expected at least one entry"),
    (
        "train/settings/limited",
        {"newz": 1.0},
        "train.settings.limited: unknown domain 'newz': did you mean 'news'?",
    ),
    ("train/overrides", {"glaa": {"learning_rate": 0.1}}, "unknown architecture 'glaa': did you mean 'gla'?"),
    ("train/seeds", [0, 0], "a seed is there twice"),
    ("architectures/gla", {"mixer": "glaa"}, "no mixer 'glaa': did you mean 'gla'?"),
    ("architectures/gla", {"mixer": "gla", "convv": True}, "did you mean 'conv'?"),
    ("architectures/GLA", {"mixer": "gla"}, "'gla' and 'GLA' are one folder where case does not count"),
    ("architectures/..", {"mixer": "gla"}, "architectures"),
    ("architectures/a b", {"mixer": "gla"}, "architectures"),
    (
        "studies/architectures/compare",
        ["window-16", "glaa"],
        "unknown architecture 'glaa': did you mean 'gla'?",
    ),
    ("evaluation/loss/checkpoints", ["mid"], "has no 'mid' checkpoints; with 'wsd' it has annealed, stable"),
    ("statistics/phases", ["stable"], "statistics.phases: 'stable' checkpoints are not scored"),
    (
        "evaluation/recall/architectures",
        ["glaa"],
        "evaluation.recall.architectures: unknown architecture 'glaa'",
    ),
    (
        "evaluation/recall/entries",
        {"gla": {"mixer": "gla"}},
        "recall.entries.gla: the experiment has an arch",
    ),
    ("evaluation/recall/entries", {"x": {"mixer": "glaa"}}, "no mixer 'glaa': did you mean 'gla'?"),
    ("evaluation/recall/tasks/pairs/kind", "mqarr", "'mqar', 'needle_lines'"),
    ("evaluation/recall/tasks/pairs/pair", [2], "unknown key 'pair': did you mean 'pairs'?"),
    ("evaluation/recall/sweep_seeds", [7], "sweep_seeds [7] are not among seeds [0, 1]"),
    (
        "architectures/gla",
        {"mixer": "attention", "position": "learned"},
        "gla has 32 learned positions, and the",
    ),
    ("corpus/domains/scriptures", "out", "unknown domain 'scriptures': did you mean 'scripture'?"),
    (
        "evaluation/ruler",
        {"tasks": ["fwe"], "lengths": [512], "models": ["pretrained"]},
        "evaluation.ruler.models: pretrained alone, but there is no section `pretrained`",
    ),
    (
        "evaluation/ruler",
        {"tasks": ["niah_single_2"], "lengths": [512]},
        "niah_single_2 hide needles in essays",
    ),
    ("evaluation/ruler", {"tasks": ["qa_1"], "lengths": [512]}, "qa_1: give their `questions`"),
    (
        "evaluation/needle",
        {"formats": ["Essay-Word-Num"], "haystack": {"kind": "corpus", "domains": ["newz"]}},
        "unknown domain 'newz': did you mean 'news'?",
    ),
    (
        "pretrained",
        {
            "tokenizers": {"a": {"path": "a"}},
            "models": {
                "gla": {"path": "m", "tokenizer": "a", "training_length": 8, "training_length_source": "x"}
            },
        },
        "pretrained.models.gla: an architecture has this name, too",
    ),
    (
        "pretrained",
        {
            "tokenizers": {"a": {"path": "a"}},
            "models": {
                "m": {"path": "m", "tokenizer": "b", "training_length": 8, "training_length_source": "x"}
            },
        },
        "models.m.tokenizer: no 'b'; known: a",
    ),
    ("part", "coree", "part: unknown part 'coree'"),
    ("part", "", "part: unknown part ''"),
    (
        "parts",
        {"few": {"architectures": ["glaa"]}},
        "parts.few.architectures: unknown architecture 'glaa': did you mean 'gla'?",
    ),
    ("experiment", "corpora", "results/corpora is taken"),
    ("experiment", "../x", "experiment"),
]


@pytest.mark.parametrize(
    ("path", "value", "message"), WRONG, ids=[f"{path}={value}" for path, value, _ in WRONG]
)
def test_a_mistake_is_named_with_what_was_meant(
    smoke: dict[str, Any], path: str, value: Any, message: str
) -> None:
    set_at(smoke, path, value)
    with pytest.raises(ConfigError) as caught:
        load(smoke, CONFIG)
    assert message in str(caught.value)


def test_what_is_told_is_of_the_configuration(smoke: dict[str, Any]) -> None:
    """No types that pydantic tried, nothing twice, and no list called empty whose entries are wrong."""
    smoke["train"]["seeds"] = [-1]
    smoke["train"]["learning_rate"] = -0.1
    smoke["study"] = {}
    with pytest.raises(ConfigError) as caught:
        load(smoke, CONFIG)
    assert str(caught.value) == "unknown key 'study': did you mean 'studies'?"
    del smoke["study"]
    with pytest.raises(ConfigError) as caught:
        load(smoke, CONFIG)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(set(lines))
    assert {line.split(":")[0] for line in lines} == {"train.seeds.0", "train.learning_rate"}


def test_all_mistakes_are_told_at_once(smoke: dict[str, Any]) -> None:
    smoke["architectures"]["gla"]["mixer"] = "glaa"
    smoke["studies"]["architectures"]["compare"] = ["windo-16"]
    with pytest.raises(ConfigError) as caught:
        load(smoke, CONFIG)
    assert "windo-16" in str(caught.value)
    assert "glaa" in str(caught.value)


def test_a_key_that_is_there_twice_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "twice.yaml").write_text("train:\n  seeds: [0]\n  seeds: [1]\n")
    with pytest.raises(ConfigError, match=r"twice\.yaml.*line 3: the key 'seeds' is there twice"):
        check_unique_keys(tmp_path / "twice.yaml")


def test_one_seed_and_one_architecture_are_enough(smoke: dict[str, Any]) -> None:
    smoke["train"]["seeds"] = [7]
    smoke["architectures"] = {"gla": {"mixer": "gla"}}
    smoke["studies"] = {}
    assert load(smoke, CONFIG).train.seeds == (7,)


def test_a_part_is_the_whole_without_the_rest() -> None:
    config = yaml.safe_load((CONFIG / "study_cpu.yaml").read_text())
    config["parts"]["some"] = {"architectures": ["transformer", "mamba2", "mamba2-no-conv"], "recall": True}
    whole, part = (Plan(load(config | chosen, CONFIG), CONFIG) for chosen in ({}, {"part": "some"}))
    assert part.values["architecture"] == ["transformer", "mamba2", "mamba2-no-conv"]
    assert {name: study.compare for name, study in part.experiment.studies.items()} == {
        "architectures": ("mamba2",),
        "mamba2": ("mamba2-no-conv",),
    }
    assert part.recall.values["learner"] == ["transformer", "mamba2"]
    # The whole goes on from what the part has made: the same files, made in the same way.
    for rule in ("train", "loss", "recall"):
        jobs = [tuple(job.items()) for job in part.jobs(rule)]
        assert jobs
        assert all(part.recipe(rule, job) == whole.recipe(rule, job) for job in jobs)
    config["parts"]["some"]["recall"] = False
    assert not list(Plan(load(config | {"part": "some"}, CONFIG), CONFIG).jobs("recall"))


def test_a_part_names_what_its_patterns_are_made_of() -> None:
    config = yaml.safe_load((CONFIG / "study_cpu.yaml").read_text())
    config["parts"]["some"] = {"architectures": ["griffin", "window-128"]}
    with pytest.raises(
        ConfigError, match=r"parts\.some\.architectures: griffin is made of rg-lru, which the part"
    ):
        load(config, CONFIG)


def test_a_pattern_in_a_part_that_is_no_list_is_told(smoke: dict[str, Any]) -> None:
    smoke["architectures"]["odd"] = {"pattern": 3}
    smoke["parts"] = {"few": {"architectures": ["odd"]}}
    with pytest.raises(ConfigError, match=r"architectures\.odd\.pattern: expected a list of entries, got 3"):
        load(smoke, CONFIG)


def test_weights_of_a_setting(smoke: dict[str, Any]) -> None:
    smoke["train"]["settings"]["half"] = {"news": 1, "scripture": 0.5}
    experiment = load(smoke, CONFIG)
    assert experiment.weights("limited") == {"news": None}
    assert experiment.weights("mixed") == {"news": None, "scripture": None, "mathematics": None}
    assert experiment.weights("half") == {"news": 1.0, "scripture": 0.5}


# --- config/README.md ---------------------------------------------------------------------------------


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every key of a model, with `<name>` for the names in a mapping: train.overrides.<name>.budgets."""
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        yield from below(field.annotation, f"{prefix}{name}.")


def below(annotation: Any, prefix: str) -> Iterator[str]:
    arguments = typing.get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from keys(annotation, prefix)
    elif typing.get_origin(annotation) is dict:
        yield from below(arguments[1], f"{prefix}<name>.")
    elif typing.get_origin(annotation) in (typing.Union, types.UnionType, typing.Annotated):
        for each in arguments:
            yield from below(each, prefix)


def documented() -> set[str]:
    """First cells of the README's tables, mixers left out."""
    cells = re.findall(r"^\| `([^`]+)` \|", (CONFIG / "README.md").read_text(), re.MULTILINE)
    return set(cells) - set(registry.names())


def test_the_readme_documents_every_key_and_no_other() -> None:
    expected = {*keys(Experiment), *(f"architectures.<name>.{key}" for key in ("mixer", "pattern", "layers"))}
    assert documented() == expected


def test_the_readme_documents_every_switch_of_every_mixer() -> None:
    expected = set()
    for mixer in registry.names():
        fields = [name for name in registry.config_class(mixer).model_fields if name not in PLACE]
        expected |= {f"{mixer}.{name}" for name in fields}
    lines = re.findall(
        r"^\| `(\w+)` \| ((?:`\w+`(?:, )?)+) \|", (CONFIG / "README.md").read_text(), re.MULTILINE
    )
    found = {f"{mixer}.{name}" for mixer, names in lines for name in re.findall(r"`(\w+)`", names)}
    assert found == expected
