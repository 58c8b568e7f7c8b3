"""The jobs of the long-context evaluation, and exactly what each depends on. Nothing is loaded here.

Samples are made for a tokenizer: `own`, the experiment's, or a published one. A file of samples is known by
its suite (RULER's profile `fixed` or `faithful`, or `needle`), its probe (a task, or the needle's format) and
its length. Without the sections `evaluation.ruler` and `evaluation.needle` there are no jobs.
"""

import csv
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from seqarch.config import Experiment
from seqarch.evaluation.long_context_spec import MIXERS
from seqarch.evaluation.ruler.spec import ESSAY_TASKS, QA_TASKS
from seqarch.files import sha256_file
from seqarch.training.spec import checkpoint_names

Job = dict[str, str]
OWN = "own"
NEEDLE = "needle"
SAMPLES = ("suite", "probe", "length")
PUBLISHED = Path("published")  # in the folder of configurations
RULES = (
    *(
        "pretrained_tokenizer",
        "pretrained_model",
        "ruler_data",
        "needle_data",
        "predict",
        "predict_pretrained",
    ),
    *("run_scores", "pretrained_scores", "ruler_table", "needle_table"),
    *("figure_ruler", "figure_published", "figure_needle_formats", "figure_needle_text"),
)
LOADED = {"predict_pretrained": MIXERS}  # mixers that a command loads by name


class LongContext:
    """Jobs and slices of one experiment, for the rules of RULES. Arguments are the wildcards of a job."""

    def __init__(self, experiment: Experiment, models: Mapping[str, Any], config_dir: Path) -> None:
        self.experiment, self.models = experiment, models
        self.ruler, self.needle = experiment.evaluation.ruler, experiment.evaluation.needle
        self.published = experiment.pretrained
        self.tables = sorted((config_dir / PUBLISHED).glob("huang2025_*.csv"))

    # --- jobs -----------------------------------------------------------------------------------------

    @cached_property
    def jobs(self) -> dict[str, list[Job]]:
        """The wildcards of each job, by rule."""
        jobs: dict[str, list[Job]] = {rule: [] for rule in RULES}
        experiment, models = self.experiment, self._published_models()
        readers = {name: model.tokenizer for name, model in models.items()}
        files = {name: self._samples("pretrained", model.training_length) for name, model in models.items()}
        own = self._samples(OWN, experiment.train.sequence_length)
        used = {name: vocab for name, vocab in readers.items() if files[name]}
        jobs["pretrained_tokenizer"] = [{"vocab": vocab} for vocab in dict.fromkeys(used.values())]
        jobs["pretrained_model"] = [{"published": name} for name in used]
        for name, vocab in used.items():
            jobs["predict_pretrained"] += [{"published": name, **each} for each in files[name]]
            self._add_data(jobs, vocab, files[name])
        self._add_data(jobs, OWN, own)
        for setting in experiment.train.settings:
            for architecture in experiment.architectures:
                for seed in experiment.train.seeds:
                    run = {"setting": setting, "architecture": architecture, "seed": str(seed)}
                    jobs["predict"] += [{**run, **each} for each in own]
        jobs["run_scores"], jobs["pretrained_scores"] = jobs["predict"], jobs["predict_pretrained"]
        suites = {each["suite"] for rule in ("predict", "predict_pretrained") for each in jobs[rule]}
        jobs["ruler_table"] = [{}] if suites - {NEEDLE} else []
        jobs["needle_table"] = [{}] if NEEDLE in suites else []
        jobs["figure_ruler"] = jobs["ruler_table"]
        jobs["figure_needle_formats"] = jobs["figure_needle_text"] = jobs["needle_table"]
        jobs["figure_published"] = jobs["ruler_table"] if self._is_printed() else []
        return jobs

    def _is_printed(self) -> bool:
        """Whether a paper printed a score of one of the models on one of the tasks at one of the lengths."""
        names = {model.published for model in self._published_models().values() if model.published}
        if self.ruler is None or "pretrained" not in self.ruler.models or not names:
            return False
        tasks, lengths = set(self.ruler.tasks), set(map(str, self.ruler.lengths))
        for path in (path for path in self.tables if path.stem.endswith("_ruler_tasks")):
            with open(path, encoding="utf-8", newline="") as file:
                for row in csv.DictReader(file):
                    if row["model"] in names and row["task"] in tasks and row["length"] in lengths:
                        return True
        return False

    def _published_models(self) -> Mapping[str, Any]:
        return self.published.models if self.published else {}

    def _samples(self, who: str, training_length: int) -> list[Job]:
        """The files that a model reads."""
        found: list[tuple[str, str, int]] = []
        if self.ruler and who in self.ruler.models:
            suite = self.ruler.profile
            found += [(suite, task, length) for task in self.ruler.tasks for length in self.ruler.lengths]
        if self.needle and who in self.needle.models:
            lengths = [multiple * training_length for multiple in self.needle.multiples] + [
                *self.needle.lengths
            ]
            lengths = sorted(dict.fromkeys(lengths))
            found += [(NEEDLE, form, length) for form in self.needle.formats for length in lengths]
        return [dict(zip(SAMPLES, map(str, each), strict=True)) for each in found]

    def _add_data(self, jobs: dict[str, list[Job]], vocab: str, files: list[Job]) -> None:
        for each in files:
            rule = "needle_data" if each["suite"] == NEEDLE else "ruler_data"
            job = {"vocab": vocab, **each}
            if job not in jobs[rule]:
                jobs[rule].append(job)

    @cached_property
    def values(self) -> dict[str, list[str]]:
        """The values of the wildcards that only these rules have."""
        every = [job for jobs in self.jobs.values() for job in jobs]
        return {
            name: list(dict.fromkeys(job[name] for job in every if name in job))
            for name in ("vocab", "published", *SAMPLES)
        }

    def vocab_of(self, published: str) -> str:
        return self._published_models()[published].tokenizer

    @property
    def mixers(self) -> dict[str, tuple[str, ...]]:
        """What published models are made of, where the configuration says it: for their colours."""
        return {name: model.mixers for name, model in self._published_models().items() if model.mixers}

    def printed(self, kind: str) -> list[str]:
        """The published tables: of `ruler`, or of `niah`."""
        return [str(path) for path in self.tables if f"_{kind}_" in path.name]

    def text_domains(self, probe: str) -> list[str]:
        """The domains of the corpus that a file of samples is made of."""
        section = self.ruler if probe.islower() else self.needle
        sources = [section.haystack] if section else []
        if self.ruler and probe in QA_TASKS:
            sources = [self.ruler.questions.get(probe)]  # type: ignore[call-overload]
        elif self.ruler and probe.islower() and probe not in ESSAY_TASKS:
            sources = []
        domains = [source.domains for source in sources if source is not None and source.kind == "corpus"]
        return list(dict.fromkeys(name for each in domains for name in each))

    # --- slices ---------------------------------------------------------------------------------------

    def pretrained_tokenizer(self, vocab: str) -> dict[str, Any]:
        assert self.published is not None
        chosen = self.published.tokenizers[vocab]
        return {"path": chosen.path, "revision": chosen.revision}

    def pretrained_model(self, published: str) -> dict[str, Any]:
        chosen = self._published_models()[published]
        return {"path": chosen.path, "revision": chosen.revision}

    def ruler_data(self, vocab: str, suite: str, probe: str, length: str) -> dict[str, Any]:
        assert self.ruler is not None
        options = self.ruler.model_dump(mode="json")
        found = {"task": probe, "profile": suite, "length": int(length), "n": options["samples"]}
        found |= {"seed": options["seed"], "special_tokens": self._special_tokens(vocab)}
        if probe in ESSAY_TASKS:
            found["haystack"] = options["haystack"]
        if probe in QA_TASKS:
            found["questions"] = options["questions"][probe]
        return found

    def needle_data(self, vocab: str, suite: str, probe: str, length: str) -> dict[str, Any]:
        assert self.needle is not None
        options = self.needle.model_dump(mode="json")
        found = {"format": probe, "length": int(length), "n": options["samples"], "seed": options["seed"]}
        found |= {"depths": options["depths"], "special_tokens": self._special_tokens(vocab)}
        if probe.startswith("Essay"):
            found["haystack"] = options["haystack"]
        return found

    def _special_tokens(self, vocab: str) -> str:
        """Runs of the experiment were trained with a token before every document."""
        if vocab == OWN:
            return "bos"
        assert self.published is not None
        return self.published.tokenizers[vocab].special_tokens

    def predict(
        self, setting: str, architecture: str, seed: str, suite: str, probe: str, length: str
    ) -> dict[str, Any]:
        run = self.experiment.train.for_run(architecture)
        return {
            "suite": suite,
            "probe": probe,
            "length": int(length),
            "setting": setting,
            "architecture": architecture,
            "seed": int(seed),
            "model": self.models[architecture],
            "checkpoint": checkpoint_names(run)[-1],
            "special_tokens": self._special_tokens(OWN),
            "torch_threads": run.torch_threads,
        }

    def predict_pretrained(self, published: str, suite: str, probe: str, length: str) -> dict[str, Any]:
        chosen = self._published_models()[published]
        return {
            "suite": suite,
            "probe": probe,
            "length": int(length),
            "name": published,
            "special_tokens": self._special_tokens(chosen.tokenizer),
            "context": chosen.context,
            "dtype": chosen.dtype,
            "batch_tokens": chosen.batch_tokens,
        }

    def run_scores(
        self, setting: str, architecture: str, seed: str, suite: str, probe: str, length: str
    ) -> dict[str, Any]:
        run = self.experiment.train.for_run(architecture)
        return {
            "experiment": self.experiment.experiment,
            "setting": setting,
            "arch": architecture,
            "model": architecture,
            "seed": int(seed),
            "checkpoint": checkpoint_names(run)[-1],
            "run_id": f"{setting}/{architecture}/seed{seed}",
        }

    def pretrained_scores(self, published: str, suite: str, probe: str, length: str) -> dict[str, Any]:
        path = self._published_models()[published].path
        return {"experiment": self.experiment.experiment, "arch": published, "model": path}

    def ruler_table(self) -> dict[str, Any]:
        return self._table("ruler", "ruler")

    def needle_table(self) -> dict[str, Any]:
        return self._table("needle", "niah")

    def _table(self, kind: str, printed: str) -> dict[str, Any]:
        own = self.experiment.train.sequence_length
        models: dict[str, dict[str, Any]] = {
            name: {"training_length": own, "training_length_source": "this experiment"}
            for name in self.models
        }
        for name, model in self._published_models().items():
            models[name] = {
                "training_length": model.training_length,
                "training_length_source": model.training_length_source,
                "published": model.published,
            }
        statistics = self.experiment.statistics
        return {
            "kind": kind,
            "experiment": self.experiment.experiment,
            "models": models,
            "published_sha256": {Path(path).name: sha256_file(Path(path)) for path in self.printed(printed)},
            "bootstrap": statistics.bootstrap,
            "confidence": statistics.confidence,
            "seed": statistics.seed,
        }
