"""Questions about documents, in the shapes that SQuAD v2.0 and HotpotQA publish and the hub stores.

Documents are the sorted set of all paragraphs; questions keep the file's order.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqarch.evaluation.ruler.errors import ResourceError
from seqarch.files import canonical_json, read_json, sha256_text


@dataclass(frozen=True)
class Question:
    """One question; documents by their number in the set."""

    text: str
    answers: tuple[str, ...]
    gold: tuple[int, ...]
    more: tuple[int, ...]  # of the same article, preferred as distractors


@dataclass(frozen=True)
class QuestionSet:
    """Questions and all documents."""

    questions: tuple[Question, ...]
    documents: tuple[str, ...]
    source: str

    @property
    def sha256(self) -> str:
        questions = [[q.text, q.answers, q.gold, q.more] for q in self.questions]
        return sha256_text(canonical_json([questions, self.documents]))


def squad(rows: Iterable[Mapping[str, Any]], source: str) -> QuestionSet:
    """From flat rows (title, context, question, answers.text), the hub's shape, without the unanswerable.

    Raises ResourceError if a column is missing or no question has an answer.
    """
    articles: dict[str, list[str]] = {}  # title -> its paragraphs in order
    asked: list[tuple[str, str, str, tuple[str, ...]]] = []
    try:
        for row in rows:
            paragraphs = articles.setdefault(row["title"], [])
            if row["context"] not in paragraphs:
                paragraphs.append(row["context"])
            answers = tuple(row["answers"]["text"])
            if answers:
                asked.append((row["title"], row["context"], row["question"], answers))
    except (KeyError, TypeError) as error:
        raise _shape(source, "SQuAD v2.0 (title, context, question, answers.text)", error) from error
    documents = tuple(sorted({context for each in articles.values() for context in each}))
    number = {context: index for index, context in enumerate(documents)}
    questions = []
    for title, context, question, answers in asked:
        more = tuple(number[other] for other in articles[title] if other != context)
        questions.append(Question(question, answers, (number[context],), more))
    return _checked(questions, documents, source)


def hotpot(rows: Iterable[Mapping[str, Any]], source: str) -> QuestionSet:
    """From rows with `context` as pairs [title, sentences] (the file) or {title, sentences} (the hub).

    Raises ResourceError if a column is missing.
    """
    asked = []
    try:
        for row in rows:
            context = row["context"]
            pairs: Sequence[Any] = context
            if isinstance(context, Mapping):
                pairs = list(zip(context["title"], context["sentences"], strict=True))
            paragraphs = [f"{title}\n{''.join(sentences)}" for title, sentences in pairs]
            asked.append((row["question"], row["answer"], paragraphs))
    except (KeyError, TypeError, ValueError) as error:
        raise _shape(source, "HotpotQA (question, answer, context)", error) from error
    documents = tuple(sorted({paragraph for _, _, paragraphs in asked for paragraph in paragraphs}))
    number = {paragraph: index for index, paragraph in enumerate(documents)}
    questions = []
    for question, answer, paragraphs in asked:
        gold = tuple(dict.fromkeys(number[paragraph] for paragraph in paragraphs))
        questions.append(Question(question, (answer,), gold, ()))
    return _checked(questions, documents, source)


def read_questions(task: str, path: Path) -> QuestionSet:
    """The published JSON file: SQuAD v2.0 for qa_1, HotpotQA for qa_2.

    Raises ResourceError if it is missing or has another shape.
    """
    source = f"file:{Path(path).name}"
    try:
        data = read_json(path)
        if task == "qa_2":
            return hotpot(data, source)
        rows = [row for number, article in enumerate(data["data"]) for row in _rows(article, number)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _shape(str(path), "the JSON file of SQuAD v2.0 (qa_1) or HotpotQA (qa_2)", error) from error
    return squad(rows, source)


def _rows(article: Mapping[str, Any], number: int) -> list[dict[str, Any]]:
    """An article of the nested file as flat rows. An unanswerable question is one without answers."""
    rows = []
    for paragraph in article["paragraphs"]:
        row = {"title": number, "context": paragraph["context"]}
        for qa in paragraph["qas"]:
            texts = [] if qa.get("is_impossible") else [answer["text"] for answer in qa["answers"]]
            rows.append({**row, "question": qa["question"], "answers": {"text": texts}})
        if not paragraph["qas"]:
            rows.append({**row, "question": "", "answers": {"text": []}})
    return rows


def _checked(questions: Sequence[Question], documents: tuple[str, ...], source: str) -> QuestionSet:
    if not questions:
        raise ResourceError(f"{source}: no question has an answer")
    return QuestionSet(tuple(questions), documents, source)


def _shape(source: str, expected: str, error: Exception) -> ResourceError:
    return ResourceError(f"{source}: {type(error).__name__}: {error}; expected the shape of {expected}")
