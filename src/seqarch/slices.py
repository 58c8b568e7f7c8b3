"""Exactly what each step depends on, as plain JSON: one method for each command of seqarch.cli.

A key that a step does not use is not in its slice, so that changing it leaves the step's results standing.
"""

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from seqarch.analysis.claims_spec import Entry
from seqarch.analysis.realised import load_claims, realised
from seqarch.analysis.spec import StudyFigure, StudySpec
from seqarch.architecture import ModelSpec, mixer_names
from seqarch.config import Experiment
from seqarch.corpus.catalogue import groups, source_slice
from seqarch.recall import RecallJobs
from seqarch.training.spec import checkpoint_names

Slice = dict[str, Any]
SPLITS = ("train", "validation", "test")
STUDY_FIGURES: tuple[str, ...] = get_args(StudyFigure)


class Slices:
    """Slices of one experiment. Arguments are the wildcards of a job, strings as in Snakemake."""

    def __init__(self, experiment: Experiment, config_dir: Path) -> None:
        self.experiment = experiment
        self.options = experiment.model_dump(mode="json")
        self.domains: dict[str, str] = self.options["corpus"]["domains"]
        self.groups = groups(experiment.corpus)
        self.models = {name: experiment.model_of(name) for name in experiment.architectures}
        self.runs = {name: experiment.train.for_run(name) for name in experiment.architectures}
        self.rates = {name: self._rates(name) for name in experiment.architectures}
        self._sources = {group: source_slice(experiment.corpus, group, config_dir) for group in self.groups}
        self._claims = load_claims(config_dir / "claims.yaml")

    def group_of(self, domain: str) -> str:
        return next(group for group, domains in self.groups.items() if domain in domains)

    # --- corpus and tokens ----------------------------------------------------------------------------

    def sources(self, group: str) -> Slice:
        return {"source": self._sources[group], "group": group, "domains": self.groups[group]}

    def filter(self, group: str, shard: str) -> Slice:
        corpus = self.options["corpus"]
        return {
            "source": self._sources[group],
            "group": group,
            "domains": {domain: self.domains[domain] for domain in self.groups[group]},
            "filter": corpus["filter"],
            "split": corpus["split"],
            "n_shards": corpus["n_shards"],
            "shard": int(shard),
        }

    def deduplicate(self, group: str) -> Slice:
        corpus = self.options["corpus"]
        dedup = {"dedup": corpus["filter"]["dedup"]}
        return {"group": group, "n_shards": corpus["n_shards"], "filter": dedup}

    def tokenizer(self) -> Slice:
        return {"tokenizer": self.options["tokenizer"], "domains": list(self.experiment.in_domains)}

    def tokenize(self, group: str, shard: str) -> Slice:
        tokenizer = self.options["tokenizer"]
        return {"group": group, "shard": int(shard), "tokenizer": tokenizer, "domains": self.groups[group]}

    def tokens_group(self, group: str) -> Slice:
        return {"group": group}

    def tokens_manifest(self, domain: str) -> Slice:
        return {"group": self.group_of(domain), "domains": [domain], "splits": list(SPLITS)}

    def discard_text(self, group: str) -> Slice:
        return {"group": group}

    def corpus_table(self) -> Slice:
        return {"corpus": self.options["corpus"]["name"], "domains": self.domains}

    # --- runs -----------------------------------------------------------------------------------------

    def train(self, setting: str, architecture: str, seed: str) -> Slice:
        return {
            "architecture": architecture,
            "setting": setting,
            "seed": int(seed),
            "model": self.models[architecture],
            "data": {
                "kind": "tokens",
                "weights": self.experiment.weights(setting),
                "id_domains": list(self.experiment.in_domains),
            },
            "train": self._run_options[architecture],
        }

    @cached_property
    def _run_options(self) -> dict[str, Slice]:
        options = {name: run.model_dump(mode="json") for name, run in self.runs.items()}
        for name in options:
            if self.rates[name]:
                options[name]["learning_rate"] = None  # the choice's, which the run reads
        return options

    def _rates(self, architecture: str) -> dict[str, float]:
        """The learning rates to try, by their names in paths."""
        grid = self.experiment.train.grid_of(architecture)
        return {f"{rate:g}": rate for rate in grid.grid} if grid else {}

    def sweep(self, setting: str, architecture: str, rate: str) -> Slice:
        train = self.experiment.train
        grid = train.grid_of(architecture)
        assert grid is not None
        trial = train.for_trial(architecture, self.rates[architecture][rate])
        run = self.train(setting, architecture, str(grid.seed))
        return run | {"train": trial.model_dump(mode="json")}

    def choice(self, setting: str, architecture: str) -> Slice:
        rates = list(self.rates[architecture].values())
        return {"setting": setting, "architecture": architecture, "rates": rates}

    def learning_rates(self) -> Slice:
        return {"experiment": self.experiment.experiment}

    def evaluation_set(self, domain: str) -> Slice:
        loss = self.options["evaluation"]["loss"]
        return {
            "domain": domain,
            "role": self.domains[domain],
            "bytes": loss["bytes_per_domain"],
            "max_doc_bytes": loss["max_doc_bytes"],
            "seed": loss["seed"],
        }

    def loss(self, setting: str, architecture: str, seed: str) -> Slice:
        run = self.runs[architecture]
        return {
            "experiment": self.experiment.experiment,
            "setting": setting,
            "architecture": architecture,
            "seed": int(seed),
            "model": self.models[architecture],
            "train": {
                "sequence_length": run.sequence_length,
                "batch_tokens": run.batch_tokens,
                "checkpoints": checkpoint_names(run),
                "torch_threads": run.torch_threads,
            },
            "loss": self.options["evaluation"]["loss"],
            "domains": self.domains,
        }

    def downstream(self, setting: str, architecture: str, seed: str) -> Slice:
        run = self.runs[architecture]
        return {
            "experiment": self.experiment.experiment,
            "setting": setting,
            "architecture": architecture,
            "seed": int(seed),
            "model": self.models[architecture],
            "checkpoint": checkpoint_names(run)[-1],
            "sequence_length": run.sequence_length,
            "torch_threads": run.torch_threads,
            "downstream": self.options["evaluation"]["downstream"],
        }

    # --- tables and figures ---------------------------------------------------------------------------

    def tables(self) -> Slice:
        return {"experiment": self.experiment.experiment}

    def unigram(self) -> Slice:
        return {
            "experiment": self.experiment.experiment,
            "settings": {name: self.experiment.weights(name) for name in self.experiment.train.settings},
            "domains": self.domains,
        }

    def equal_loss(self) -> Slice:
        statistics = self.options["statistics"]
        studies = {
            name: {"reference": study["reference"], "compare": study["compare"]}  # not where it is drawn
            for name, study in self.options["studies"].items()
        }
        return {"studies": studies, "statistics": statistics, "domains": self.domains}

    def equal_loss_sensitivity(self) -> Slice:
        settings = {name: self.experiment.weights(name) for name in self.experiment.train.settings}
        inside = set(self.experiment.in_domains)
        return self.equal_loss() | {
            "settings": {
                name: {domain: weight for domain, weight in weights.items() if domain in inside}
                for name, weights in settings.items()
            }
        }

    def claims(self) -> Slice:
        experiment = self.experiment
        entries = realised(
            experiment.architectures,
            self.models,
            experiment.model,
            experiment.tokenizer.vocab_size,
            experiment.train.sequence_length,
        )
        return {
            **self._claims.model_dump(mode="json"),
            "experiment": experiment.experiment,
            "architectures": {name: entry.model_dump(mode="json") for name, entry in entries.items()},
            "learners": {name: entry.model_dump(mode="json") for name, entry in self._learners().items()},
            "published": {
                name: Entry(mixers=tuple(sorted(model.mixers)), pattern=len(model.mixers) > 1).model_dump(
                    mode="json"
                )
                for name, model in (experiment.pretrained.models if experiment.pretrained else {}).items()
                if model.mixers
            },
            "domains": self.domains,
            "statistics": self.options["statistics"],
        }

    def _learners(self) -> dict[str, Entry]:
        """The entries of the recall tasks alone, as selectors see them."""
        recall = self.experiment.evaluation.recall
        if recall is None or not recall.entries:
            return {}
        name, task = next(iter(recall.tasks.items()))
        models = {entry: self.experiment.learner_model(entry, name) for entry in recall.entries}
        sizes = ModelSpec(d_model=recall.d_model, n_layers=recall.n_layers)
        return realised(recall.entries, models, sizes, task.vocab_size, task.train_length)

    def figure(self, figure: str) -> Slice:
        options = {"figure": figure, **self.options["figures"]}
        if figure not in ("corpus", "claims"):  # colours are chosen from all architectures
            options["architectures"] = {name: mixer_names(model) for name, model in self.models.items()}
            options["architectures"] |= RecallJobs(self.experiment).mixers
        if figure == "ood_vs_id":
            options["study"] = next(iter(self.experiment.studies), None)
        if figure in STUDY_FIGURES:
            chosen = self.experiment.studies_in(figure)
            options["studies"] = list(chosen)
            if figure in ("minor_factors", "major_factors"):
                options["factors"] = self._factors(chosen.values())
        return options

    def _factors(self, studies: Iterable[StudySpec]) -> dict[str, list[str]]:
        """Entry -> the keys in which it differs from its reference, but for sizes that make up for it."""
        entries = self.experiment.architectures
        return {
            name: sorted(
                key
                for key in {*entries[name], *entries[study.reference]} - {"hidden", "layers"}
                if entries[name].get(key) != entries[study.reference].get(key)
            )
            for study in studies
            for name in study.compare
        }
