"""The jobs of a configuration, their files, and what each depends on.

Nothing here loads torch, uses the network or reads data: every cluster job parses the Snakefile again. A rule
gets three parameters, and whatever changes none of them for a job leaves that job's results standing:

- `spec`: exactly the slice of the configuration that the step depends on, as canonical JSON;
- `code`: the fingerprint of the code that the step runs (seqarch.provenance);
- `expects`: the recipes that must have made its inputs.
"""

import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from seqarch.architecture import mixer_names
from seqarch.config import Experiment, check_unique_keys, load
from seqarch.errors import ConfigError, SeqarchError
from seqarch.files import canonical_json
from seqarch.long_context import LOADED, NEEDLE, OWN, SAMPLES, LongContext
from seqarch.provenance import (
    TABLE_VARIABLE,
    entry_modules,
    mismatch,
    planned_fingerprint,
    recipe,
    remember,
)
from seqarch.recall import RecallJobs
from seqarch.rules import RULES, RUN_PATH, SWEEP_PATH
from seqarch.slices import SPLITS, STUDY_FIGURES, Slices

SCORE_TABLES = ("ruler_table", "needle_table", "recall_table")
RECIPE_DIGITS = 16  # of a recipe in `expects`: keeps the command line of a job with 1024 inputs short enough
SHOWN = 10  # files named in an error


class StaleOutputs(SeqarchError):
    """Files that Snakemake has no record of do not belong to the present configuration."""


class Plan:
    """The jobs of one experiment. `rule` is a name of RULES; wildcards are strings, as in Snakemake."""

    def __init__(self, experiment: Experiment, config_dir: Path) -> None:
        self.experiment = experiment
        self.corpus = f"results/corpora/{experiment.corpus.name}"
        self.root = f"results/{experiment.experiment}"
        self.run = f"{self.root}/runs/{RUN_PATH}"
        self.loss = f"{self.root}/evaluation/loss/{RUN_PATH}"
        self.sweep = f"{SWEEP_PATH}/lr{{rate}}".replace("{root}", self.root)
        self.archives = getattr(experiment.corpus.source, "archives_dir", None) or f"{self.corpus}/archives"
        self.slices = Slices(experiment, config_dir)
        self.groups, self.models = self.slices.groups, self.slices.models
        self.long_context = LongContext(experiment, self.models, config_dir)
        self.recall = RecallJobs(experiment)
        self._recipes: dict[tuple[str, tuple[tuple[str, str], ...]], str] = {}
        self._fingerprints: dict[tuple[str, ...], str] = {}

    # --- jobs and files -------------------------------------------------------------------------------

    @cached_property
    def values(self) -> dict[str, list[str]]:
        """The values of each wildcard."""
        experiment = self.experiment
        return {
            "group": list(self.groups),
            "shard": [str(shard) for shard in range(experiment.corpus.n_shards)],
            "domain": list(experiment.corpus.domains),
            "setting": list(experiment.train.settings),
            "architecture": list(experiment.architectures),
            "seed": [str(seed) for seed in experiment.train.seeds],
            "rate": list(dict.fromkeys(itertools.chain(*self.slices.rates.values()))),
            **self.long_context.values,
            **self.recall.values,
        }

    @property
    def constraints(self) -> dict[str, str]:
        """A regular expression for each wildcard: the values that there are, and nothing else."""
        return {
            name: "|".join(map(re.escape, values))
            for name, values in self.values.items()
            if values and name != "shard"
        }

    def jobs(self, rule: str, **fixed: str) -> Iterator[dict[str, str]]:
        """The wildcards of each job of a rule; `fixed` ones keep their value."""
        for section in (self.long_context, self.recall):
            if rule in section.jobs:
                yield from (job for job in section.jobs[rule] if fixed.items() <= job.items())
                return
        names = RULES[rule].wildcards
        for combination in itertools.product(*([fixed[n]] if n in fixed else self.values[n] for n in names)):
            job = dict(zip(names, combination, strict=True))
            if self._is_needed(rule, job):
                yield job

    def _is_needed(self, rule: str, job: Mapping[str, str]) -> bool:
        """Whether the configuration has a use for a job."""
        figure = rule.removeprefix("figure_")
        if figure in STUDY_FIGURES:
            return bool(self.experiment.studies_in(figure))
        match rule:
            case "discard_text":
                return not self.experiment.corpus.keep_text
            case "downstream" | "downstream_table" | "figure_downstream":
                return self.experiment.evaluation.downstream is not None
            case "tokens_group":
                return len(self.groups[job["group"]]) > 1
            case "sweep":
                return job["rate"] in self.slices.rates[job["architecture"]]
            case "choice":
                return bool(self.slices.rates[job["architecture"]])
            case "learning_rates" | "figure_learning_rates":
                return bool(self.values["rate"])
        return True

    def path(self, rule: str, output: int = 0) -> str:
        """The pattern of a rule's output, wildcards left open."""
        pattern = RULES[rule].outputs[output]
        return pattern.replace("{corpus}", self.corpus).replace("{root}", self.root)

    def paths(self, rule: str, output: int = 0, **fixed: str) -> list[str]:
        """That output of all jobs of the rule."""
        pattern = self.path(rule, output)
        return [pattern.format(**job) for job in self.jobs(rule, **fixed)]

    def in_groups(self) -> list[str]:
        """The groups that hold in-domain text."""
        return list(dict.fromkeys(map(self.slices.group_of, self.experiment.in_domains)))

    def tokenized(self, domain: str) -> list[str]:
        """What a domain's token manifests are merged from. Many domains of many shards would make a graph too
        large to plan: then their group's manifest stands between."""
        group = self.slices.group_of(domain)
        return self.paths("tokens_group", group=group) or self.paths("tokenize", group=group)

    def token_manifests(self, split: str, domains: Iterable[str]) -> list[str]:
        output = SPLITS.index(split)
        return [self.path("tokens_manifest", output).format(domain=domain) for domain in domains]

    def trained_domains(self) -> list[str]:
        """The domains that some setting trains on."""
        settings = self.experiment.train.settings
        return list(dict.fromkeys(domain for name in settings for domain in self.experiment.weights(name)))

    def tokenizer_inputs(self) -> list[str]:
        """The text that the tokenizer is trained on; a pretrained one needs none."""
        if self.experiment.tokenizer.kind == "pretrained":
            return []
        return [self.path("deduplicate").format(group=group) for group in self.in_groups()]

    def choice(self, wildcards: Any) -> list[str]:
        """An input: the choice of a run's learning rate, unless the configuration gives it."""
        fixed = {"setting": wildcards.setting, "architecture": wildcards.architecture}
        return self.paths("choice", **fixed)

    def compared(self) -> list[str]:
        """The table of the equal-loss comparison, if the configuration compares anything."""
        return self.paths("equal_loss") if self.experiment.studies else []

    def tokenizer_of(self, vocab: str) -> str:
        """The manifest of a tokenizer that long-context samples are made for."""
        return (
            self.path("tokenizer") if vocab == OWN else self.path("pretrained_tokenizer").format(vocab=vocab)
        )

    def sample_text(self, wildcards: Any) -> list[str]:
        """An input: the corpus' text that samples are made of."""
        groups = map(self.slices.group_of, self.long_context.text_domains(wildcards.probe))
        return [self.path("deduplicate").format(group=group) for group in dict.fromkeys(groups)]

    def samples(self, vocab: str) -> str:
        """The pattern of the samples for a tokenizer, .json."""
        return self.path("ruler_data").replace("{vocab}", vocab)

    def samples_of(self, wildcards: Any) -> str:
        """The samples that a published model reads, .json."""
        vocab = self.long_context.vocab_of(wildcards.published)
        return self.samples(vocab).format(**{name: getattr(wildcards, name) for name in SAMPLES})

    def scores(self, needle: bool) -> list[str]:
        """The scores that a table gathers."""
        rules = ("run_scores", "pretrained_scores")
        return [
            self.path(rule).format(**job)
            for rule in rules
            for job in self.long_context.jobs[rule]
            if (job["suite"] == NEEDLE) == needle
        ]

    def paper_b(self) -> list[str]:
        """What the long-context evaluation ends in; nothing without its sections."""
        rules = (
            *("ruler_table", "figure_ruler", "figure_published"),
            *("needle_table", "figure_needle_formats", "figure_needle_text"),
        )
        return [path for rule in rules for path in self.paths(rule)]

    def score_tables(self) -> list[str]:
        """The tables of scores that claims are judged by; none without their sections."""
        return [path for rule in SCORE_TABLES for path in self.paths(rule)]

    def study_figures(self) -> list[str]:
        """The figures of paper A that some study names."""
        return [path for figure in STUDY_FIGURES for path in self.paths(f"figure_{figure}")]

    def recalled(self) -> list[str]:
        """What the recall evaluation ends in; nothing without its section."""
        rules = ("recall_table", "figure_recall", "figure_needle_heatmap")
        return [path for rule in rules for path in self.paths(rule)]

    def images(self, figure: str) -> list[str]:
        return [f"{self.root}/figures/{figure}.{ending}" for ending in self.experiment.figures.formats]

    # --- what the rules say ---------------------------------------------------------------------------

    def spec(self, rule: str) -> Callable[..., str]:
        """The parameter `spec` of a rule."""
        return lambda wildcards: canonical_json(self.slice(rule, **wildcards))

    def code(self, rule: str) -> Callable[..., str] | str:
        """The parameter `code` of a rule."""
        if not {"architecture", "learner"} & set(RULES[rule].wildcards):
            return self.fingerprint(rule)
        return lambda wildcards: self.fingerprint(rule, **wildcards)

    def expects(self, wildcards: Any, input: Iterable[str]) -> str:
        """The parameter `expects` of a rule: folder -> file -> recipe, for the inputs that a rule makes."""
        recipes: dict[str, dict[str, str]] = {}
        for path in map(str, input):
            if path in self.producers:
                folder, name = os.path.split(path)
                recipes.setdefault(folder, {})[name] = self.recipe(*self.producers[path])[:RECIPE_DIGITS]
        return canonical_json(recipes)

    def stem(self, wildcards: Any, output: Sequence[str]) -> str:
        """A parameter: the first output without its ending, for commands that make several files."""
        return os.path.splitext(output[0])[0]

    def folder(self, pattern: str) -> Callable[..., str]:
        """A parameter: a folder of undeclared files."""
        return lambda wildcards: pattern.format(**wildcards)

    @cached_property
    def producers(self) -> dict[str, tuple[str, tuple[tuple[str, str], ...]]]:
        """Which job makes each file that carries a record."""
        return {
            self.path(rule, output).format(**job): (rule, tuple(job.items()))
            for rule, (_, outputs, _) in RULES.items()
            for job in self.jobs(rule)
            for output in range(len(outputs))
        }

    def recipe(self, rule: str, job: tuple[tuple[str, str], ...]) -> str:
        key = rule, job
        if key not in self._recipes:
            wildcards, command = dict(job), RULES[rule].command or rule
            code = self.fingerprint(rule, **wildcards)
            self._recipes[key] = recipe(command, self.slice(rule, **wildcards), code)
        return self._recipes[key]

    def fingerprint(self, rule: str, architecture: str = "", learner: str = "", **_: str) -> str:
        modules = self.modules(rule, architecture or learner)
        if modules not in self._fingerprints:
            self._fingerprints[modules] = planned_fingerprint(modules)
        return self._fingerprints[modules]

    def modules(self, rule: str, architecture: str = "") -> tuple[str, ...]:
        """Where the code of a rule's jobs starts: its command and what that loads by name."""
        if rule == "recall":
            return entry_modules(rule, self.recall.mixers[architecture])
        with_model = "architecture" in RULES[rule].wildcards and rule not in ("choice", "run_scores")
        mixers = mixer_names(self.models[architecture]) if with_model else LOADED.get(rule, ())
        figures = (
            [f"seqarch.figures.{rule.removeprefix('figure_')}"] if RULES[rule].command == "figure" else ()
        )
        return entry_modules(RULES[rule].command or rule, mixers, figures)

    def slice(self, rule: str, **wildcards: str) -> dict[str, Any]:
        """What a job depends on, as plain JSON."""
        command = RULES[rule].command
        if command == "figure":
            options = self.slices.figure(rule.removeprefix("figure_"))
            if rule in self.long_context.jobs:
                options["architectures"] |= self.long_context.mixers
            return options
        for section in (self.long_context, self.recall):
            if rule in section.jobs:
                return getattr(section, rule)(**wildcards)
        method = rule if hasattr(self.slices, rule) else command
        return getattr(self.slices, method)(**wildcards)

    # --- the process ----------------------------------------------------------------------------------

    def export(self) -> None:
        """Fix the code that is planned with, for the jobs: they may parse the Snakefile after an edit."""
        os.environ.pop(TABLE_VARIABLE, None)
        for rule, (wildcards, _, _) in RULES.items():
            for architecture in self.models if "architecture" in wildcards else [""]:
                for learner in self.recall.mixers if "learner" in wildcards else [""]:
                    self.fingerprint(rule, architecture, learner)
        table = {" ".join(modules): digest for modules, digest in sorted(self._fingerprints.items())}
        os.environ[TABLE_VARIABLE] = json.dumps(table)
        remember()

    def check_unrecorded(self, has_record: Callable[[str], bool], forced: Iterable[str] = ()) -> None:
        """Raise StaleOutputs if outputs that Snakemake has no record of were made differently.

        Without records (a fresh clone beside old results) Snakemake takes whatever lies there. The outputs'
        own records decide instead. Where Snakemake has a record, it compares, and nothing is read here.

        Args:
            has_record: whether Snakemake knows how a file was made.
            forced: rules and files that will be made again in any case.
        """
        skipped, stale = set(forced), {}
        for path, (rule, job) in self.producers.items():
            known = {rule, path} & skipped or not os.path.exists(path) or has_record(path)
            if not known and (problem := mismatch(Path(path), self.recipe(rule, job))):
                stale[path] = rule, problem
        if stale:
            lines = [f"  {path}: {problem}" for path, (_, problem) in stale.items()]
            if len(lines) > SHOWN:
                lines[SHOWN:] = [f"  … and {len(lines) - SHOWN} more"]
            rules = " ".join(dict.fromkeys(rule for rule, _ in stale.values()))
            raise StaleOutputs(
                "these files are not what the present configuration and code make, and Snakemake has no "
                "record of how they were made:\n"
                + "\n".join(lines)
                + f"\nTo make them again: snakemake --forcerun {rules}"
                + "\nTo keep them: go back to the configuration and the code that made them."
            )


def open_experiment(path: Path, config_dir: Path, part: str | None = None) -> Plan:
    """The plan of a configuration file or of one of its parts, for commands about whole experiments.

    Raises ConfigError if the file cannot be read, or is no configuration.
    """
    try:
        check_unique_keys(path)
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: expected a mapping of keys, as in config/README.md")
    return Plan(load(config if part is None else {**config, "part": part}, config_dir), config_dir)
