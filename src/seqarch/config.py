"""One configuration, one closed schema: composed of the stages' own models, which each stage alone imports.

Only the workflow imports this module. No torch, no network; the catalogue of packages is the only file read.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, field_validator

from seqarch.analysis.spec import StatisticsSpec, StudySpec
from seqarch.architecture import ModelSpec, layer_configs, resolve
from seqarch.corpus.catalogue import check_domains
from seqarch.corpus.spec import CorpusSpec, Name
from seqarch.errors import ConfigError
from seqarch.evaluation.long_context_spec import PretrainedSection
from seqarch.evaluation.spec import EvaluationSpec
from seqarch.figures.spec import FiguresSpec
from seqarch.schema import Spec, did_you_mean, parse
from seqarch.tokens.spec import TokenizerSpec
from seqarch.training.spec import TrainSection, checkpoint_names

RESERVED = ("corpora", "bench")  # folders of results/ that belong to no experiment
PHASE_OF_KIND = {"annealed": "annealed", "stable": "stable", "mid": "mid_cosine"}


class PartSpec(Spec):
    """Some of an experiment's architectures, to be run alone and first: `--config part=<name>`."""

    architectures: Annotated[tuple[Name, ...], Field(min_length=1)]
    recall: bool = False  # with recall from scratch


class Experiment(Spec):
    """A whole configuration file."""

    experiment: Name
    corpus: CorpusSpec
    tokenizer: TokenizerSpec
    model: ModelSpec
    architectures: Annotated[dict[Name, dict[str, Any]], Field(min_length=1)]
    train: TrainSection
    evaluation: EvaluationSpec
    pretrained: PretrainedSection | None = None
    studies: dict[Name, StudySpec] = {}
    statistics: StatisticsSpec = StatisticsSpec()
    figures: FiguresSpec = FiguresSpec()
    parts: dict[Name, PartSpec] = {}
    part: str | None = None  # of `parts`: run this one alone

    @field_validator("experiment")
    @classmethod
    def _is_free(cls, name: str) -> str:
        if name in RESERVED:
            raise ValueError(f"results/{name} is taken: choose another name")
        return name

    @property
    def in_domains(self) -> tuple[str, ...]:
        return tuple(domain for domain, role in self.corpus.domains.items() if role == "in")

    def studies_in(self, figure: str) -> dict[str, StudySpec]:
        """The studies that a figure shows."""
        return {name: study for name, study in self.studies.items() if figure in study.figures}

    def restricted(self) -> "Experiment":
        """The experiment without what its part leaves out; all of it without a part.

        Studies keep what the part has of them, and vanish without their reference. No run depends on the
        part: the whole experiment, started later, goes on from what the part has made.
        """
        if self.part is None:
            return self
        part = self.parts[self.part]
        kept = dict.fromkeys(part.architectures)
        studies = {
            name: study.model_copy(update={"compare": compare})
            for name, study in self.studies.items()
            if study.reference in kept and (compare := tuple(each for each in study.compare if each in kept))
        }
        recall = self.evaluation.recall if part.recall else None
        if recall is not None:
            names = tuple(name for name in self.learners if name in kept)
            recall = recall.model_copy(update={"architectures": names, "entries": {}}) if names else None
        update = {
            "architectures": {name: entry for name, entry in self.architectures.items() if name in kept},
            "studies": studies,
            "evaluation": self.evaluation.model_copy(update={"recall": recall}),
        }
        return self.model_copy(update=update)

    def weights(self, setting: str) -> dict[str, float | None]:
        """Training domains of a setting and their weights; None: in proportion to their tokens."""
        chosen = self.train.settings[setting]
        if isinstance(chosen, str):
            return dict.fromkeys(self.in_domains if chosen == "in" else self.corpus.domains)
        return dict(chosen)

    def model_of(self, architecture: str) -> dict[str, Any]:
        """The resolved model, plain JSON."""
        return resolve(
            architecture,
            self.architectures,
            self.model,
            self.tokenizer.vocab_size,
            self.train.sequence_length,
        )

    @property
    def learners(self) -> dict[str, dict[str, Any]]:
        """The architectures that learn recall tasks: name -> entry."""
        recall = self.evaluation.recall
        if recall is None:
            return {}
        entries = self.architectures | recall.entries
        names = entries if recall.architectures is None else recall.architectures
        return {name: entries[name] for name in names}

    def learner_model(self, learner: str, task: str) -> dict[str, Any]:
        """The resolved model that learns a recall task, plain JSON."""
        recall = self.evaluation.recall
        assert recall is not None
        chosen = recall.tasks[task]
        model = ModelSpec(
            d_model=recall.d_model, n_layers=recall.n_layers, tie_embeddings=recall.tie_embeddings
        )
        entries = self.architectures | recall.entries
        return resolve(learner, entries, model, chosen.vocab_size, chosen.train_length)


def load(config: Mapping[str, Any], config_dir: Path) -> Experiment:
    """The validated experiment, or the part of it that is asked for.

    Args:
        config: the YAML file's content.
        config_dir: where the catalogues are (`sources/`).

    Raises ConfigError, which names every problem found, with a "did you mean" for names.
    """
    experiment = parse(Experiment, dict(config), "")
    problems = [*_name_problems(experiment), *_checkpoint_problems(experiment)]
    problems += _recall_problems(experiment)
    checks: list[Callable[[], object]] = [partial(check_domains, experiment.corpus, config_dir)]
    checks += [partial(experiment.model_of, name) for name in experiment.architectures]
    for check in checks:
        try:
            check()
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    return experiment.restricted()


def _name_problems(experiment: Experiment) -> Iterable[str]:
    """Names that stand for nothing, and names that would share a folder."""
    architectures, domains = experiment.architectures, experiment.corpus.domains
    for setting, weights in experiment.train.settings.items():
        if isinstance(weights, dict):
            yield from _unknown(weights, domains, f"train.settings.{setting}", "domain")
    yield from _unknown(experiment.train.overrides, architectures, "train.overrides", "architecture")
    for name, study in experiment.studies.items():
        yield from _unknown(study.architectures, architectures, f"studies.{name}", "architecture")
    chosen = [] if experiment.part is None else [experiment.part]
    yield from _unknown(chosen, experiment.parts, "part", "part")
    for name, part in experiment.parts.items():
        where = f"parts.{name}.architectures"
        yield from _unknown(part.architectures, architectures, where, "architecture")
        for each in part.architectures:
            pattern = architectures.get(each, {}).get("pattern")
            for block in pattern if isinstance(pattern, list) else ():
                if block not in part.architectures:
                    yield f"{where}: {each} is made of {block}, which the part leaves out: name it, too"
    for section, options in (
        ("ruler", experiment.evaluation.ruler),
        ("needle", experiment.evaluation.needle),
    ):
        if options and options.models == ("pretrained",) and experiment.pretrained is None:
            yield f"evaluation.{section}.models: pretrained alone, but there is no section `pretrained`"
    for name in experiment.pretrained.models if experiment.pretrained else ():
        if name in architectures:
            yield f"pretrained.models.{name}: an architecture has this name, too: choose another"
    yield from _unknown(_long_context_domains(experiment), domains, "evaluation.ruler, needle", "domain")
    folders: dict[str, Iterable[str]] = {
        "architectures": architectures,
        "corpus.domains": domains,
        "train.settings": experiment.train.settings,
    }
    for where, names in folders.items():
        folded: dict[str, str] = {}
        for name in names:
            other = folded.setdefault(name.casefold(), name)
            if other != name:
                yield f"{where}: {other!r} and {name!r} are one folder where case does not count: rename one"


def _long_context_domains(experiment: Experiment) -> Iterable[str]:
    """The domains whose text long-context samples are made of."""
    ruler, needle = experiment.evaluation.ruler, experiment.evaluation.needle
    sources = [section.haystack for section in (ruler, needle) if section]
    for source in [*sources, *(ruler.questions.values() if ruler else ())]:
        if source is not None and source.kind == "corpus":
            yield from source.domains


def _unknown(given: Iterable[str], known: Collection[str], where: str, what: str) -> Iterable[str]:
    for name in given:
        if name not in known:
            yield f"{where}: unknown {what} {name!r}: {did_you_mean(name, known)}"


def _checkpoint_problems(experiment: Experiment) -> Iterable[str]:
    """Kinds of checkpoints that are to be scored or analysed, but which no run makes or no job scores."""
    kinds = experiment.evaluation.loss.checkpoints
    for architecture in experiment.architectures:
        made = {name.rsplit("-", 1)[0] for name in checkpoint_names(experiment.train.for_run(architecture))}
        for kind in kinds:
            if kind not in made:
                yield (
                    f"evaluation.loss.checkpoints: {architecture} has no {kind!r} checkpoints; with "
                    f"{experiment.train.schedule.kind!r} it has {', '.join(sorted(made))}"
                )
    scored = {PHASE_OF_KIND[kind] for kind in kinds}
    for phase in experiment.statistics.phases:
        if phase not in scored:
            yield (
                f"statistics.phases: {phase!r} checkpoints are not scored; evaluation.loss.checkpoints gives "
                f"{', '.join(sorted(scored))}"
            )


def _recall_problems(experiment: Experiment) -> Iterable[str]:
    """Learners that there are not, or that cannot take a test's sequences."""
    recall = experiment.evaluation.recall
    if recall is None:
        return
    where = "evaluation.recall"
    for name in recall.entries:
        if name in experiment.architectures:
            yield f"{where}.entries.{name}: the experiment has an architecture of this name: choose another"
    known = {**experiment.architectures, **recall.entries}
    unknown = [*_unknown(recall.architectures or (), known, f"{where}.architectures", "architecture")]
    yield from unknown
    learners = {} if unknown else experiment.learners
    for learner in dict.fromkeys([*learners, *recall.entries]):
        for task, options in recall.tasks.items():
            try:
                configs = layer_configs(experiment.learner_model(learner, task))[1]
            except ConfigError as error:
                yield f"{where}: {error}"
                break
            learned = learner in learners and any(each.learned_positions for each in configs)
            if learned and options.longest > options.train_length:
                yield (
                    f"{where}: {learner} has {options.train_length} learned positions, and the test of "
                    f"{task} {options.longest} tokens: leave {learner} out of {where}.architectures, or the "
                    "longer tests out of the task"
                )


class _UniqueKeys(yaml.SafeLoader):
    """YAML in which a key that is there twice is an error, not silently the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                mark = key.start_mark
                raise ConfigError(f"{mark.name}, line {mark.line + 1}: the key {key.value!r} is there twice")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def check_unique_keys(path: Path) -> None:
    """Raise ConfigError if a mapping of the YAML file has a key twice."""
    with open(path, encoding="utf-8") as file:
        yaml.load(file, _UniqueKeys)  # a SafeLoader
