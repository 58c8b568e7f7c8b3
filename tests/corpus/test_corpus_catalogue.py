import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from seqarch.corpus.catalogue import check_domains, groups, load_catalogue, source_slice
from seqarch.corpus.spec import CorpusSpec
from seqarch.errors import ConfigError
from seqarch.files import canonical_json
from seqarch.schema import parse

CONFIG = Path(__file__).parents[2] / "config"
ROLES = {"encyclopedia": "in", "news": "in", "code": "out"}
HUB = {"kind": "huggingface", "path": "cerebras/SlimPajama-627B"}


def corpus(**changes: Any) -> CorpusSpec:
    return parse(
        CorpusSpec, {"name": "c", "source": {"kind": "packages"}, "domains": ROLES} | changes, "corpus"
    )


def test_groups_of_packages_and_mapped_files_are_the_domains() -> None:
    mapped = {"kind": "files", "paths": {"a": "a/*.jsonl", "b": ["b.parquet"]}}
    assert groups(corpus()) == {name: [name] for name in ROLES}
    assert groups(corpus(source=mapped, domains={"b": "in", "a": "out"})) == {"b": ["b"], "a": ["a"]}


def test_groups_of_rows_that_name_their_domain_are_the_roles() -> None:
    roles = {"cc": "in", "arxiv": "out", "c4": "in"}
    for source in (HUB, {"kind": "files", "paths": "data/**/*.jsonl.zst"}):
        assert groups(corpus(source=source, domains=roles)) == {"in": ["cc", "c4"], "out": ["arxiv"]}


def test_an_unknown_domain_says_what_was_meant() -> None:
    with pytest.raises(ConfigError, match="unknown domain 'encyclopaedia': did you mean 'encyclopedia'"):
        check_domains(corpus(domains={"encyclopaedia": "in"}), CONFIG)
    with pytest.raises(ConfigError, match="did you mean 'cc'"):
        corpus(source={"kind": "files", "paths": {"cc": "a.jsonl"}}, domains={"ccc": "in"})
    with pytest.raises(ConfigError, match="did you mean 'arxiv'"):
        corpus(source=HUB | {"names": {"arxive": "RedPajamaArXiv"}}, domains={"cc": "in", "arxiv": "out"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"domains": {"code": "out"}}, "at least one domain with the role `in`"),
        ({"domains": {"code": "inn"}}, "'in' or 'out'"),
        ({"domains": {"../code": "in"}}, "pattern"),
        ({"split": {"validation": 0.5, "test": 0.5}}, "leaves nothing to train on"),
        ({"source": {"kind": "package"}}, "packages"),
        ({"source": {"kind": "packages", "catalog": "x"}}, "did you mean 'catalogue'"),
        ({"source": {"kind": "files", "paths": "data/*.txt"}}, ".jsonl.zst"),
        ({"filter": {"dedup": "none"}}, "global"),
        ({"n_shards": 0}, "greater than or equal to 1"),
    ],
)
def test_a_bad_option_is_explained(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        corpus(**changes)
    assert message in str(caught.value)


def test_a_catalogue_that_is_missing_or_malformed_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="catalogues there: packages"):
        load_catalogue("pakages", CONFIG)
    value = yaml.safe_load((CONFIG / "sources/packages.yaml").read_text())
    value["domains"]["code"]["texts"][0]["archive"] = "scikit-lern"
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(value))
    with pytest.raises(ConfigError, match="did you mean 'scikit-learn'"):
        load_catalogue(str(tmp_path / "own.yaml"), CONFIG)
    (tmp_path / "own.yaml").write_text("{")
    with pytest.raises(ConfigError, match="not YAML"):
        load_catalogue(str(tmp_path / "own.yaml"), CONFIG)


def test_every_text_of_the_shipped_catalogue_has_its_licence() -> None:
    catalogue = load_catalogue("packages", CONFIG)
    assert len(catalogue.domains) >= 6
    assert all(entry.about and entry.licence for entry in catalogue.domains.values())


def slices(config: Path) -> dict[str, str]:
    made = corpus(source={"kind": "packages", "catalogue": str(config)})
    return {group: canonical_json(source_slice(made, group, CONFIG)) for group in groups(made)}


def test_a_changed_pin_changes_the_slices_that_read_it_alone(tmp_path: Path) -> None:
    value = yaml.safe_load((CONFIG / "sources/packages.yaml").read_text())
    before = tmp_path / "before.yaml"
    before.write_text(yaml.safe_dump(value))

    def changed(*keys: str, to: Any) -> set[str]:
        other = copy.deepcopy(value)
        place = other
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = to
        after = tmp_path / "after.yaml"
        after.write_text(yaml.safe_dump(other))
        old, new = slices(before), slices(after)
        return {group for group in old if old[group] != new[group]}

    assert changed("archives", "gensim", "sha256", to="0" * 64) == {"encyclopedia", "news"}
    assert changed("archives", "scikit-learn", "sha256", to="0" * 64) == {"code"}
    assert changed("archives", "django", "sha256", to="0" * 64) == set()
    assert changed("domains", "news", "licence", to="other words") == set()


def test_where_the_archives_lie_changes_no_slice() -> None:
    elsewhere = corpus(source={"kind": "packages", "archives_dir": "/elsewhere"})
    assert source_slice(corpus(), "code", CONFIG) == source_slice(elsewhere, "code", CONFIG)


def test_another_out_of_domain_set_leaves_the_in_domain_slice_alone() -> None:
    names = {"cc": "RedPajamaCommonCrawl", "arxiv": "RedPajamaArXiv"}
    few = corpus(source=HUB | {"names": {"cc": names["cc"]}}, domains={"cc": "in"})
    more = corpus(source=HUB | {"names": names}, domains={"cc": "in", "arxiv": "out"})
    assert source_slice(few, "in", CONFIG) == source_slice(more, "in", CONFIG)
    assert source_slice(more, "out", CONFIG)["names"] == {"arxiv": "RedPajamaArXiv"}


def test_a_slice_of_mapped_files_has_the_globs_of_its_domain_alone() -> None:
    source = {"kind": "files", "paths": {"a": "a/*.jsonl", "b": ["b.parquet"]}}
    made = source_slice(corpus(source=source, domains={"a": "in", "b": "out"}), "a", CONFIG)
    assert (made["paths"], made["domain_field"]) == (["a/*.jsonl"], None)


def test_specs_are_read_without_anything_heavy() -> None:
    code = (
        "import sys, seqarch.corpus.catalogue;"
        "heavy = {'torch', 'datasets', 'pyarrow', 'numpy', 'requests', 'pypi_simple', 'mwparserfromhell'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_specs_are_closed() -> None:
    with pytest.raises(ValidationError):
        CorpusSpec.model_validate({"name": "c", "source": HUB, "domains": ROLES, "shards": 3})
