"""Questions about one document among many: qa_1 (SQuAD v2.0) and qa_2 (HotpotQA).

The wording is RULER's, verbatim (Apache-2.0, NVIDIA/RULER at c3f5e3b).
"""

import random
from collections.abc import Iterator

from seqarch.evaluation.ruler.errors import ResourceError
from seqarch.evaluation.ruler.prompt import Prompt, Sample, Setup, around, fill
from seqarch.evaluation.ruler.questions import Question
from seqarch.evaluation.ruler.streams import Permutation, sample_seed, stream

TEMPLATE = (
    "Answer the question based on the given documents. Only give me the answer and do not output any other "
    "words.\n\nThe following are given documents.\n\n{context}\n\nAnswer the question based on the given "
    "documents. Only give me the answer and do not output any other words.\n\nQuestion: {query}"
)
PREFIX = " Answer:"
DOCUMENT = "Document {i}:\n"


class Qa:
    """One of the two tasks, set up (`seqarch.evaluation.ruler.prompt.Task`).

    Raises ResourceError if there are no questions.
    """

    tokens_to_generate = 32
    least_length = 0
    template = f"{TEMPLATE}\0{PREFIX}\0{DOCUMENT}"

    def __init__(self, setup: Setup) -> None:
        if setup.questions is None:
            raise ResourceError(f"{setup.task} asks questions about documents: give `questions`")
        self.setup, self.set = setup, setup.questions
        some = self.set.documents[:50]
        self.unit_tokens = setup.encoder.count(["\n\nDocument 10:\n".join(some)]) / len(some)
        self.order = list(range(len(self.set.questions)))
        if setup.fixed:  # D10: neighbours in the file ask about the same article
            stream(sample_seed(setup.seed, setup.task, 0), "questions").shuffle(self.order)

    def variants(self, index: int) -> Iterator[Sample]:
        if index >= len(self.order):
            raise ResourceError(
                f"{self.setup.task}: sample {index} is asked for, {self.set.source} has {len(self.order)} "
                "answerable questions: lower n"
            )
        seed = sample_seed(self.setup.seed, self.setup.task, index)
        yield QaSample(self, self.set.questions[self.order[index]], seed)


class QaSample:
    """A question; its documents are gold, then others of the article, then any others."""

    def __init__(self, qa: Qa, question: Question, seed: str) -> None:
        self.qa, self.question, self.seed = qa, question, seed
        self.n_min = len(question.gold)
        self.n_max = len(qa.set.documents) - self.n_min
        self.more = list(question.more)
        stream(seed, "more").shuffle(self.more)
        self.near = {*question.gold, *question.more}
        self.far = Permutation(stream(seed, "documents"), len(qa.set.documents))
        self.chosen = [*question.gold, *self.more]  # prefixes of one order: a longer list extends a shorter
        self.seen = 0

    def documents(self, n: int) -> list[int]:
        """The first n, gold ones first."""
        while len(self.chosen) < n:
            candidate = self.far[self.seen]
            self.seen += 1
            if candidate not in self.near:
                self.chosen.append(candidate)
        return self.chosen[:n]

    def build(self, step: int) -> Prompt:
        setup = self.qa.setup
        n = self.n_min + step
        documents = self.documents(n)
        rng = stream(self.seed, "order", n) if setup.fixed else random.Random(setup.seed)  # D1
        rng.shuffle(documents)
        context = []
        for number, document in enumerate(documents, 1):
            gap = "\n\n" if number > 1 else ""
            context += [gap + fill(DOCUMENT, i=str(number)), self.qa.set.documents[document]]
        pieces, _ = around(setup, TEMPLATE, context, query=self.question.text)
        gold = set(self.question.gold)
        places = tuple(place for place, document in enumerate(documents) if document in gold)
        return Prompt(pieces, PREFIX, list(self.question.answers), n, gold_positions=places)
