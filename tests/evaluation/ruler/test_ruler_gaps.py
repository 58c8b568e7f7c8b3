"""Questions made from a corpus: one answer, in one document; nothing of it may be called RULER."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from seqarch.evaluation.ruler import metrics, records
from seqarch.evaluation.ruler.errors import ResourceError
from seqarch.evaluation.ruler.gaps import GOLD, gap_questions
from seqarch.evaluation.ruler.oracle import read_answer
from seqarch.evaluation.ruler.prompt import Setup
from seqarch.evaluation.ruler.resources import load_questions, word_lists
from seqarch.evaluation.ruler.spec import CorpusQuestions

SOURCE = "corpus:news:test: gaps in sentences, not RULER-comparable"


def texts(n: int = 12) -> list[str]:
    rng = random.Random(5)
    pool = [word for word in word_lists().pool if word.isalpha() and word.islower()]
    made = []
    for i in range(n):
        paragraphs = []
        for j in range(6):
            words = rng.choices(pool, k=45)
            words[20] = f"Name{chr(97 + i)}{chr(97 + j)}"
            words[30] = "Common"
            paragraphs.append(f"The {' '.join(words[:25])}. And {' '.join(words[25:])} Common.")
        made.append("\n\n".join([*paragraphs, "Too short for a document."]))
    return made


@pytest.mark.parametrize("task", ["qa_1", "qa_2"])
def test_each_question_has_one_answer_in_one_document(task: str) -> None:
    found = gap_questions(task, texts(), SOURCE)
    assert len(found.questions) == 72
    for question in found.questions:
        (answer,) = question.answers
        assert answer.startswith("Name")  # `Common` stands twice in its paragraph
        holding = [i for i, document in enumerate(found.documents) if answer in document]
        assert holding == [question.gold[0]]
        assert answer not in question.text
        assert "_____" in question.text
        gap = question.text.split('"')[1].replace("_____", answer)
        assert gap in found.documents[question.gold[0]]
        if task == "qa_1":
            assert len(question.gold) == 1
            assert len(question.more) == 5
        else:
            assert len(set(question.gold)) == GOLD
            assert question.more == ()


@pytest.mark.parametrize("task", ["qa_1", "qa_2"])
def test_the_samples_never_are_called_comparable(task: str, make_setup: Callable[..., Setup]) -> None:
    """Whatever the profile, the length and the number of samples."""
    questions = gap_questions(task, texts(), SOURCE)
    setup = make_setup(task, 8192, questions=questions, profile="faithful")
    lines, header = records.make(setup, 3)
    assert records.comparable(setup, 500, None) == header["comparable"] == "RULER-style"
    assert header["haystack_source"] == SOURCE
    said = [
        {"index": line["index"], "pred": read_answer(line), "n_new_tokens": 1, "hit_max_tokens": False}
        for line in lines
    ]
    assert [row["score"] for row in metrics.score_file(lines, said)] == [1.0] * 3


def test_a_text_without_names_is_an_error() -> None:
    with pytest.raises(ResourceError, match="no paragraph of 200 to 1200 characters"):
        gap_questions("qa_1", ["only small words here. " * 20], SOURCE)


def test_the_corpus_is_needed() -> None:
    with pytest.raises(ResourceError, match="--text and --manifests"):
        load_questions("qa_1", CorpusQuestions(kind="corpus", domains=("news",)), [], Path("text"))
