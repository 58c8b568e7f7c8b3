"""Word lists and essays. Nothing is read, and nothing fetched, before it is asked for."""

import functools
import importlib.resources
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqarch.evaluation.ruler.errors import ResourceError
from seqarch.evaluation.ruler.gaps import gap_questions
from seqarch.evaluation.ruler.questions import QuestionSet, hotpot, read_questions, squad
from seqarch.evaluation.ruler.spec import (
    CorpusQuestions,
    CorpusText,
    FileQuestions,
    FileText,
    HubQuestions,
    HubText,
)
from seqarch.files import canonical_json, sha256_text
from seqarch.tokens.text import read_batches, text_files

SPLITTER = "regex-1"  # the sentence rule below; part of a file's key
_SENTENCE_END = re.compile(r"""[.!?]["')]*$""")


@dataclass(frozen=True)
class WordLists:
    """Adjectives, nouns and verbs, as wonderwords 3.0.1 ships them."""

    adjectives: tuple[str, ...]
    nouns: tuple[str, ...]
    verbs: tuple[str, ...]

    @property
    def n_keys(self) -> int:
        """Of the form adjective-noun."""
        return len(self.adjectives) * len(self.nouns)

    @functools.cached_property
    def pool(self) -> tuple[str, ...]:
        """The distinct words, sorted."""
        return tuple(sorted({*self.nouns, *self.adjectives, *self.verbs}))

    @functools.cached_property
    def sha256(self) -> str:
        return sha256_text(canonical_json([self.adjectives, self.nouns, self.verbs]))


@functools.cache
def word_lists() -> WordLists:
    """The lists of the installed wonderwords (MIT License)."""
    folder = importlib.resources.files("wonderwords") / "assets"
    lists = []
    for name in ("adjectivelist.txt", "nounlist.txt", "verblist.txt"):
        lines = (folder / name).read_text(encoding="utf-8").splitlines()
        lists.append(tuple(line.strip() for line in lines if line.strip()))
    return WordLists(*lists)


class Haystack:
    """Essays as one running text: white space collapsed, split at spaces and at sentence ends.

    A sentence ends with `.`, `!` or `?` and closing quotes or brackets, before a word that begins with an
    upper-case letter; and where the text ends. Longer haystacks repeat the text from its start.

    Args:
        texts: the essays in order.
        source: what they are, for the records.

    Raises:
        ResourceError: they hold no word.
    """

    def __init__(self, texts: Iterable[str], source: str) -> None:
        words = [word for text in texts for word in text.split()]
        if not words:
            raise ResourceError(f"haystack {source}: no text; give essays with at least one sentence")
        self.source = source
        self.text = " ".join(words)
        self.sha256 = sha256_text(self.text)
        self.words = words
        self.ends = list(_sentence_ends(words))  # words up to each sentence's end
        starts = [0, *self.ends[:-1]]
        self.sentences = [" ".join(words[a:b]) for a, b in zip(starts, self.ends, strict=True)]

    def first_sentences(self, n: int, offset: int = 0) -> list[str]:
        """n sentences from the one numbered `offset` on."""
        total = len(self.sentences)
        if offset + n <= total:
            return self.sentences[offset : offset + n]
        return [self.sentences[(offset + i) % total] for i in range(n)]

    def sentences_of_words(self, n: int) -> list[str]:
        """The first n words, in sentences; the last may be cut."""
        rounds, rest = divmod(n, len(self.words))
        found = self.sentences * rounds
        start = 0
        for number, end in enumerate(self.ends):
            if end > rest:
                break
            found.append(self.sentences[number])
            start = end
        if start < rest:
            found.append(" ".join(self.words[start:rest]))
        return found


def _sentence_ends(words: Sequence[str]) -> Iterator[int]:
    for number in range(1, len(words)):
        if words[number][0].isupper() and _SENTENCE_END.search(words[number - 1]):
            yield number
    yield len(words)


def load_haystack(
    spec: CorpusText | HubText | FileText, manifests: Sequence[Path] = (), text: Path | None = None
) -> Haystack:
    """The essays of a configuration.

    Args:
        manifests: of the corpus' text (`cli.deduplicate`), for `corpus`.
        text: the folder with the corpus' text.

    Raises:
        ResourceError: they are missing, or cannot be had without a network.
    """
    if isinstance(spec, CorpusText):
        if text is None or not manifests:
            raise ResourceError("haystack: corpus needs --text and --manifests of the corpus stage")
        return Haystack(_corpus(spec, manifests, text), f"corpus:{'+'.join(spec.domains)}:{spec.split}")
    if isinstance(spec, FileText):
        return Haystack(_files(Path(spec.path)), f"file:{Path(spec.path).name}")
    rows = load_rows(spec.path, None, spec.revision, spec.split)
    missing = [row for row in rows[:1] if spec.column not in row]
    if missing:
        raise ResourceError(f"{spec.path} has no column {spec.column!r}; it has {', '.join(missing[0])}")
    return Haystack((row[spec.column] for row in rows), f"huggingface:{spec.path}@{spec.revision or 'main'}")


def _corpus(spec: CorpusText | CorpusQuestions, manifests: Sequence[Path], text: Path) -> Iterator[str]:
    left = spec.bytes
    for file in text_files(manifests, text, spec.domains, [spec.split]):
        for batch in read_batches(file):
            for document, n_bytes in zip(batch.texts, batch.n_bytes, strict=True):
                if left <= 0:
                    return
                left -= n_bytes
                yield document


def _files(path: Path) -> Iterator[str]:
    files = sorted(path.glob("*.txt")) if path.is_dir() else [path]
    try:
        if not files:
            raise FileNotFoundError(f"no *.txt files in {path}")
        for file in files:
            yield file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ResourceError(f"haystack {path}: {error}; expected UTF-8 text files") from error


def load_rows(path: str, name: str | None, revision: str | None, split: str) -> list[dict[str, Any]]:
    """The rows of a data set of the hub, or of a folder laid out like one.

    Raises ResourceError if there is none, or no network and no warm cache.
    """
    import datasets

    try:
        return list(datasets.load_dataset(path, name, revision=revision, split=split))
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise ResourceError(
            f"data set {path}{f' ({name})' if name else ''}, split {split}: {error}; it is needed once with "
            f"a network (hf download --repo-type dataset {path}), then the cache serves; or give its files "
            "with `kind: file`"
        ) from error


def load_questions(
    task: str,
    spec: HubQuestions | FileQuestions | CorpusQuestions,
    manifests: Sequence[Path] = (),
    text: Path | None = None,
) -> QuestionSet:
    """The questions of a configuration: SQuAD v2.0 for qa_1, HotpotQA for qa_2; or gaps in the corpus' text.

    Args:
        manifests, text: of the corpus' text, as for `load_haystack`.

    Raises ResourceError if they are missing, have another shape, or cannot be had without a network.
    """
    if isinstance(spec, CorpusQuestions):
        if text is None or not manifests:
            raise ResourceError("questions: corpus needs --text and --manifests of the corpus stage")
        source = f"corpus:{'+'.join(spec.domains)}:{spec.split}: gaps in sentences, not RULER-comparable"
        return gap_questions(task, _corpus(spec, manifests, text), source)
    if isinstance(spec, FileQuestions):
        return read_questions(task, Path(spec.path))
    rows = load_rows(spec.path, spec.name, spec.revision, spec.split)
    shape = squad if task == "qa_1" else hotpot
    return shape(rows, f"huggingface:{spec.path}@{spec.revision or 'main'}")
