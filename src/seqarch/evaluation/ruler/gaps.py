"""Questions for a corpus that has none: which word is missing in a sentence of it. Our definition.

They let the question-answering tasks run without a download. They are not SQuAD or HotpotQA, and no figure of
theirs is comparable with a published one; the source of the questions says so in every record.
"""

import re
from collections.abc import Iterable

from seqarch.evaluation.ruler.errors import ResourceError
from seqarch.evaluation.ruler.questions import Question, QuestionSet

SHORTEST, LONGEST = 200, 1200  # characters of a paragraph
GOLD = 10  # paragraphs that belong to a question of qa_2, as in HotpotQA
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_NAME = re.compile(r"(?<=[a-z,;] )(?:[A-Z][a-z]{3,}|\d{3,})\b")  # inside a sentence: a name or a number


def gap_questions(task: str, texts: Iterable[str], source: str) -> QuestionSet:
    """One question a paragraph, for a name or number that stands in it once.

    qa_1: the paragraph holds the answer, the others of its text are preferred as distractors. qa_2: it and
    the nine paragraphs after it belong to the question.

    Raises ResourceError if there is no such paragraph.
    """
    groups = [list(dict.fromkeys(_paragraphs(text))) for text in texts]
    documents = tuple(sorted({each for group in groups for each in group}))
    number = {each: index for index, each in enumerate(documents)}
    order = [number[each] for group in groups for each in group]
    place, questions = 0, []
    asked: set[int] = set()
    for group in groups:
        for each in group:
            gold, found = number[each], _gap(each)
            if found is not None and gold not in asked:
                asked.add(gold)
                sentence, answer = found
                text = f'Which word is missing in this sentence of one of the documents: "{sentence}"'
                if task == "qa_1":
                    more = tuple(number[other] for other in group if other != each)
                    questions.append(Question(text, (answer,), (gold,), more))
                else:
                    around = (order[place:] + order[:place])[: 3 * GOLD]
                    questions.append(Question(text, (answer,), tuple(dict.fromkeys(around))[:GOLD], ()))
            place += 1
    if not questions:
        raise ResourceError(
            f"{source}: no paragraph of {SHORTEST} to {LONGEST} characters with a name or number that stands "
            "in it once: give more text, or questions of another kind"
        )
    return QuestionSet(tuple(questions), documents, source)


def _paragraphs(text: str) -> list[str]:
    joined = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
    return [part for part in joined if SHORTEST <= len(part) <= LONGEST]


def _gap(paragraph: str) -> tuple[str, str] | None:
    """A sentence with `_____` in place of a word that the paragraph has once, and the word."""
    for sentence in _SENTENCE.split(paragraph):
        for match in _NAME.finditer(sentence):
            word = match.group()
            if len(re.findall(rf"(?<!\w){re.escape(word)}(?!\w)", paragraph)) == 1:
                return f"{sentence[: match.start()]}_____{sentence[match.end() :]}", word
    return None
