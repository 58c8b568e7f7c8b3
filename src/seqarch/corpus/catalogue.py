"""The catalogue of texts in packages, the groups of domains, and the slice of the source that a group needs.

Nothing here is heavier than YAML: the workflow calls it while it parses the Snakefile.
"""

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import StringConstraints, ValidationError, model_validator

from seqarch.corpus.spec import CorpusSpec, FilesSource, Name, PackagesSource, unknown_names
from seqarch.errors import ConfigError
from seqarch.schema import Spec, explain

FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*\.(tar\.gz|zip|whl)$")]


class ArchiveSpec(Spec):
    """One pinned archive of a package index."""

    project: str
    version: str
    file: FileName
    size: int
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class TextsSpec(Spec):
    """Members of an archive, and how they become documents."""

    archive: str
    format: Literal["mediawiki", "lines", "verses", "rst", "python", "file"]
    members: list[str]  # globs below the archive's top folder
    exclude: list[str] = []
    encoding: Literal["utf-8", "latin-1"] = "utf-8"


class DomainTexts(Spec):
    about: str
    licence: str
    texts: list[TextsSpec]


class Catalogue(Spec):
    archives: dict[Name, ArchiveSpec]
    domains: dict[Name, DomainTexts]

    @model_validator(mode="after")
    def _archives_exist(self) -> "Catalogue":
        for domain, entry in self.domains.items():
            unknown_names(
                (texts.archive for texts in entry.texts), self.archives, f"domains.{domain}.texts.archive"
            )
        return self


def load_catalogue(name: str, config_dir: Path) -> Catalogue:
    """`config_dir`/sources/<name>.yaml, or the file itself if `name` ends in .yaml.

    Raises ConfigError if there is none or if it is malformed.
    """
    path = (
        Path(name).expanduser() if name.endswith(".yaml") else Path(config_dir) / "sources" / f"{name}.yaml"
    )
    try:
        modified = path.stat().st_mtime_ns
    except OSError as error:
        have = ", ".join(sorted(file.stem for file in path.parent.glob("*.yaml"))) or "none"
        raise ConfigError(f"corpus.source.catalogue: no file {path}; catalogues there: {have}") from error
    return _read_catalogue(path, modified)


@functools.lru_cache(maxsize=8)
def _read_catalogue(path: Path, modified: int) -> Catalogue:
    try:
        return Catalogue.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from error
    except ValidationError as error:
        raise ConfigError(explain(error, str(path))) from error


def groups(corpus: CorpusSpec) -> dict[str, list[str]]:
    """What is filtered and tokenized together: group -> its domains, in the configuration's order.

    Where each domain has files of its own (packages, `files` with a mapping) it is a group, named like it.
    Where rows name their domain, reading the data once per domain would be a waste: the groups are the roles
    `in` and `out`, so that a change among the out-of-domain sets leaves the training text alone.
    """
    if _domain_by_field(corpus):
        by_role: dict[str, list[str]] = {}
        for domain, role in corpus.domains.items():
            by_role.setdefault(role, []).append(domain)
        return by_role
    return {domain: [domain] for domain in corpus.domains}


def _domain_by_field(corpus: CorpusSpec) -> bool:
    source = corpus.source
    if isinstance(source, FilesSource):
        return not isinstance(source.paths, dict)
    return not isinstance(source, PackagesSource)


def check_domains(corpus: CorpusSpec, config_dir: Path) -> None:
    """Raise ConfigError if the catalogue lacks a domain. (For other sources the spec or the data says it.)"""
    if isinstance(corpus.source, PackagesSource):
        catalogue = load_catalogue(corpus.source.catalogue, config_dir)
        try:
            unknown_names(corpus.domains, catalogue.domains, "corpus.domains")
        except ValueError as error:
            raise ConfigError(f"{error} (catalogue {corpus.source.catalogue})") from error


def source_slice(corpus: CorpusSpec, group: str, config_dir: Path) -> dict[str, Any]:
    """What the steps of one group depend on, as plain JSON: the part of the source and of the catalogue that
    the group's documents come from. A changed pin or glob of another group, a licence note, the place of the
    archives or of the catalogue change nothing here.

    Raises ConfigError for a domain that the catalogue does not have.
    """
    domains = groups(corpus)[group]
    source = corpus.source
    if isinstance(source, PackagesSource):
        check_domains(corpus, config_dir)
        catalogue = load_catalogue(source.catalogue, config_dir)
        texts = {domain: catalogue.domains[domain].texts for domain in domains}
        archives = sorted({each.archive for entries in texts.values() for each in entries})
        return {
            "kind": "packages",
            "archives": {name: catalogue.archives[name].model_dump() for name in archives},
            "texts": {domain: [each.model_dump() for each in entries] for domain, entries in texts.items()},
        }
    value = source.model_dump(exclude={"paths"})
    value["names"] = {domain: source.names.get(domain, domain) for domain in domains}
    if isinstance(source, FilesSource):
        mapped = isinstance(source.paths, dict)
        value["paths"] = _as_list(source.paths[group] if isinstance(source.paths, dict) else source.paths)
        if mapped:  # the group is the domain; no field is read
            value.update(domain_field=None, names={})
    return value


def _as_list(globs: str | Iterable[str]) -> list[str]:
    return [globs] if isinstance(globs, str) else list(globs)
