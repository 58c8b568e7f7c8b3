"""Samples in, predictions out: what the model reads and says, in order, and what is refused."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from seqarch.evaluation.generation import ContextTooLong
from seqarch.evaluation.predict import predict
from seqarch.evaluation.ruler import metrics, oracle, records
from seqarch.evaluation.ruler.encoder import PromptEncoder
from seqarch.evaluation.ruler.errors import RulerError
from seqarch.evaluation.ruler.prompt import Setup
from seqarch.evaluation.ruler.resources import word_lists
from seqarch.evaluation.ruler.spec import SpecialTokens

BOS = "<|bos|>"


def tokenizer(text: Sequence[str] = ()) -> Tokenizer:
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=[BOS, "<|pad|>"], initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator([*text, *["magic numbers grass green sky blue"] * 30], trainer)
    return library


def encoder(special: SpecialTokens = "bos", end_id: int | None = 0) -> PromptEncoder:
    return PromptEncoder(tokenizer(), special, 0, end_id=end_id)


def samples(
    task: str = "niah_single_1", n: int = 7, **options: Any
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    setup = Setup(task, "fixed", 600, 42, encoder(), word_lists(), **options)
    return records.make(setup, n)


class Reader:
    """A model that answers with what a function makes of its prompt."""

    max_batch = None

    def __init__(self, says: Callable[[str], list[int]], context: int | None = None) -> None:
        self.says, self.context, self.device = says, context, torch.device("cpu")
        self.encoder = encoder()
        self.read: list[str] = []

    def greedy(self, prompts: Tensor, n: int, ended: Callable[[Tensor], Tensor]) -> Tensor:
        rows = []
        for prompt in prompts.tolist():
            assert prompt[0] == 0
            self.read.append(self.encoder.decode(prompt))
            rows.append((self.says(self.read[-1]) + [0] * n)[:n])
        new = torch.tensor(rows)
        for t in range(n):
            if bool(ended(new[:, : t + 1]).all()):
                return new[:, : t + 1]
        return new


def truth(lines: Sequence[dict[str, Any]]) -> Callable[[str], list[int]]:
    answers = {line["input"] + line["answer_prefix"]: oracle.read_answer(line) for line in lines}
    return lambda prompt: encoder().encode(" " + answers[prompt])[1:]


@pytest.mark.parametrize("shuffled", [False, True])
def test_one_prediction_a_sample_in_order_from_the_whole_prompt(shuffled: bool) -> None:
    """Faults 28, 31: whatever the lengths make of the batches."""
    lines, header = samples()
    if shuffled:
        random.Random(1).shuffle(lines)
    model = Reader(truth(lines))
    rows = predict(model, encoder(), lines, header, batch_tokens=1500)
    assert [row["index"] for row in rows] == list(range(7))
    assert sorted(model.read) == sorted(line["input"] + line["answer_prefix"] for line in lines)
    assert all(text.endswith(" mentioned in the provided text is") for text in model.read)
    assert [row["score"] for row in metrics.score_file(lines, rows)] == [1.0] * 7
    assert not any(row["hit_max_tokens"] for row in rows)


def test_a_silent_model_scores_nothing_though_its_prompt_holds_the_answer() -> None:
    """Fault 29: only new ids are decoded."""
    lines, header = samples()
    rows = predict(Reader(lambda prompt: []), encoder(), lines, header)
    assert [(row["pred"], row["n_new_tokens"]) for row in rows] == [("", 0)] * 7
    scored = metrics.score_file(lines, rows)
    assert [row["score"] for row in scored] == [0.0] * 7
    assert all(row["null"] for row in scored)


def test_endless_text_and_special_tokens() -> None:
    """Fault 46: every sample says whether its answer was cut; special tokens are no text, and no answer."""
    lines, header = samples()
    rows = predict(Reader(lambda prompt: [1] * 500), encoder(end_id=None), lines, header)
    assert all(row["hit_max_tokens"] and row["n_new_tokens"] == 128 and row["pred"] == "" for row in rows)
    beyond = predict(Reader(lambda prompt: [399 + 10_000] * 500), encoder(end_id=None), lines, header)
    assert all(row["pred"] == "" for row in beyond)  # a padded vocabulary has ids that stand for nothing


def test_a_model_s_own_end_ids_end_an_answer() -> None:
    lines, header = samples(n=2)
    rows = predict(Reader(lambda prompt: [50, 51, 1, 52]), encoder(), lines, header, frozenset({1}))
    assert [row["n_new_tokens"] for row in rows] == [2, 2]


def test_a_context_that_is_too_small_is_an_error_and_nothing_is_cut() -> None:
    """Fault 8."""
    lines, header = samples()
    longest = max(line["prompt_tokens"] for line in lines) + 128 - 1
    model = Reader(truth(lines), context=longest - 1)
    with pytest.raises(ContextTooLong, match="nothing is cut off"):
        predict(model, encoder(), lines, header)
    assert model.read == []
    assert len(predict(Reader(truth(lines), context=longest), encoder(), lines, header)) == 7


def test_samples_of_another_tokenizer_are_refused() -> None:
    lines, header = samples(n=2)
    other = PromptEncoder(tokenizer(["something else entirely"] * 40), "bos", 0)
    with pytest.raises(RulerError, match="are for tokenizer"):
        predict(Reader(truth(lines)), other, lines, header)
    with pytest.raises(RulerError, match="special tokens 'bos'"):
        predict(Reader(truth(lines)), encoder("none"), lines, header)
    lines[0]["input"] += " more"
    with pytest.raises(RulerError, match="its record says"):
        predict(Reader(truth(lines)), encoder(), lines, header)


def test_predictions_are_kept_apart_from_scores(tmp_path: Path) -> None:
    """They can be scored again without a model, and only with their own samples."""
    lines, header = samples(n=3)
    rows = predict(Reader(truth(lines)), encoder(), lines, header)
    records.write_predictions(tmp_path / "p.jsonl", rows, header, {"model": "x"})
    again, about = records.read_predictions(tmp_path / "p.jsonl", header)
    assert again == rows
    assert about["model"] == "x"
    with pytest.raises(RulerError, match="predict again"):
        records.read_predictions(tmp_path / "p.jsonl", {**header, "dataset_key": "other"})
