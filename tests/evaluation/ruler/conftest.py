"""Tokenizers of four kinds, essays and questions, all made here."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from seqarch.evaluation.ruler.encoder import PromptEncoder
from seqarch.evaluation.ruler.prompt import Setup
from seqarch.evaluation.ruler.questions import QuestionSet, hotpot, squad
from seqarch.evaluation.ruler.resources import Haystack, word_lists

DATA = Path(__file__).parent / "data"
BOS = "<|bos|>"
KINDS = ("byte", "bpe-1k", "bpe-20k", "metaspace")


def essay_texts(n: int = 60) -> list[str]:
    """Prose of random words: sentences of 4 to 15 words, with quotes, numbers and accents."""
    rng = random.Random(7)
    pool = [word for word in word_lists().pool if word.islower()]
    texts = []
    for _ in range(n):
        sentences = []
        for _ in range(rng.randint(10, 40)):
            words = rng.choices(pool, k=rng.randint(4, 15))
            words[0] = words[0].capitalize()
            if rng.random() < 0.2:
                words[-1] = rng.choice(["3.14", "naïve", "(so)", '"yes"', "don't"])
            sentences.append(" ".join(words) + rng.choice([".", ".", "?", '."', "!"]))
        texts.append("\n\n".join([" ".join(sentences[:5]), " ".join(sentences[5:])]))
    return texts


def byte_level(vocab_size: int, texts: list[str]) -> Tokenizer:
    """A byte-level BPE; with 257 entries it has no merges."""
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    library.train_from_iterator(texts, trainer)
    return library


def metaspace(texts: list[str]) -> Tokenizer:
    """A BPE with `▁` for spaces and a template that adds BOS, as Llama's: words can't be counted apart."""
    library = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    library.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=[BOS, "<unk>"],
        initial_alphabet=[chr(code) for code in range(0x21, 0x7F)] + ["\n", "▁"],
        show_progress=False,
        max_token_length=12,
    )
    library.train_from_iterator([word for text in texts for word in text.split()], trainer)
    library.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
    return library


@pytest.fixture(scope="session")
def libraries() -> dict[str, str]:
    """Kind -> the tokenizer's JSON: each user gets one of its own."""
    texts = essay_texts()
    pool = [" ".join(word_lists().pool)] * 2
    made = {
        "byte": byte_level(257, texts),
        "bpe-1k": byte_level(1000, texts),
        "bpe-20k": byte_level(20_000, [*pool, *texts]),
        "metaspace": metaspace(texts),
    }
    return {kind: library.to_str() for kind, library in made.items()}


@pytest.fixture(scope="session")
def encoders(libraries: dict[str, str]) -> dict[str, PromptEncoder]:
    return {
        kind: PromptEncoder(Tokenizer.from_str(text), "template" if kind == "metaspace" else "bos", 0)
        for kind, text in libraries.items()
    }


@pytest.fixture(scope="session")
def essays() -> Haystack:
    return Haystack(essay_texts(), "test")


@pytest.fixture(scope="session")
def question_sets() -> dict[str, QuestionSet]:
    """Larger than the files in data/: enough for the fitting."""
    rng = random.Random(3)
    pool = word_lists().pool
    rows = []
    for i in range(120):
        context = f"Town {i} has {rng.randrange(10**6)} people. " + " ".join(rng.choices(pool, k=12))
        rows.append(
            {
                "title": i // 4,
                "context": context,
                "question": f"How many people has town {i}?",
                "answers": {"text": [context.split()[3]]},
            }
        )
    paragraphs = [[f"T{i}", [f"Fact {i} is {rng.choice(pool)}.", " So."]] for i in range(400)]
    several = [
        {"question": f"What is {i}?", "answer": "yes", "context": paragraphs[10 * i : 10 * i + 10]}
        for i in range(40)
    ]
    return {"qa_1": squad(rows, "test"), "qa_2": hotpot(several, "test")}


@pytest.fixture(scope="session")
def make_setup(
    encoders: dict[str, PromptEncoder], essays: Haystack, question_sets: dict[str, QuestionSet]
) -> Callable[..., Setup]:
    """setup(task, length, …): everything else has a default."""

    def setup(task: str, length: int, **options: Any) -> Setup:
        options = {
            "profile": "fixed",
            "seed": 42,
            "encoder": encoders["bpe-1k"],
            "words": word_lists(),
            "haystack": essays,
            "questions": question_sets.get(task),
            **options,
        }
        return Setup(task=task, length=length, **options)

    return setup
