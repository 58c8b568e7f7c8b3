"""lm_eval itself on tasks over local files, asked of a model whose probabilities are known."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
import yaml

from seqarch.errors import ConfigError
from seqarch.evaluation.downstream import evaluate, table
from seqarch.evaluation.downstream_score import Answerer, DownstreamError
from seqarch.evaluation.downstream_spec import DownstreamJob, DownstreamSpec
from seqarch.evaluation.score import document_nll
from seqarch.schema import parse

BOS = 0
LETTERS = "abcdefgh .\n"  # ids 1 …
V = 1 + len(LETTERS)
GENERATOR = np.random.default_rng(0)
LOGITS = torch.from_numpy(GENERATOR.normal(0, 2, (V, V)))
LOGITS[:, BOS] -= 2  # a text seldom ends
LOG_P = torch.log_softmax(LOGITS, dim=-1)


class Bigram:
    """log p of the next id depends on the present one alone."""

    context, max_batch, device = None, None, torch.device("cpu")

    def hidden(self, ids):
        return torch.nn.functional.one_hot(ids, V).double(), None

    def logits(self, hidden):
        return hidden @ LOG_P

    def greedy(self, prompts, n, ended):
        new, last = [], prompts[:, -1]
        for _ in range(n):
            last = LOG_P[last].argmax(-1)
            new.append(last)
            if bool(ended(torch.stack(new, 1)).all()):
                break
        return torch.stack(new, 1)


def encode(text):
    return [1 + LETTERS.index(letter) for letter in text]


def decode(ids):
    return "".join(LETTERS[i - 1] for i in ids if i)


def answerer(max_length=32, batch_tokens=64):
    model = Bigram()
    return Answerer(model, model, encode, decode, BOS, max_length, batch_tokens)


def log_p(ids):
    return sum(float(LOG_P[a, b]) for a, b in itertools.pairwise(ids))


def best(last, n):
    ids = []
    for _ in range(n):
        last = int(LOG_P[last].argmax())
        ids.append(last)
    return ids


# --- alignment ----------------------------------------------------------------------------------------


def test_continuations_are_aligned_in_order_and_batched():
    """Each id of a continuation is predicted from the one before it, to 1e-6; batches change nothing."""
    generator = np.random.default_rng(1)
    requests = [
        ([BOS, *generator.integers(1, V, generator.integers(0, 9))], list(generator.integers(1, V, n)))
        for n in (1, 5, 2, 1, 7, 3, 4, 1, 2)
    ]
    found = answerer().continuations(requests)
    for (context, continuation), (value, greedy) in zip(requests, found, strict=True):
        assert value == pytest.approx(log_p([context[-1], *continuation]), abs=1e-6)
        assert greedy == (list(continuation) == best(context[-1], len(continuation)))
    one_by_one = [answerer(batch_tokens=1).continuations([request])[0] for request in requests]
    assert one_by_one == [(pytest.approx(value), greedy) for value, greedy in found]
    said = best(BOS, 4)
    assert answerer().continuations([([BOS], said)])[0][1]
    assert not answerer().continuations([([BOS], [*said[:-1], said[-1] % (V - 1) + 1])])[0][1]


def test_what_is_too_long_loses_its_beginning_and_is_counted():
    long = answerer(max_length=6)
    context, continuation = [BOS, 1, 2, 3, 4, 5, 6], [7, 8]
    assert long.continuations([(context, continuation), ([BOS], [1])])[0][0] == pytest.approx(
        log_p([6, 7, 8])
    )
    assert long.truncated == 1
    with pytest.raises(DownstreamError, match="a continuation of 7 tokens"):
        long.continuations([([BOS], [1] * 7)])
    with pytest.raises(DownstreamError, match="empty context"):
        long.continuations([([], [1])])


def test_one_window_equals_the_loss_evaluation():
    ids = np.array(encode("a bad cafe."))
    (value, _) = answerer().continuations([([BOS], ids.tolist())])[0]
    assert -value == pytest.approx(document_nll(Bigram(), [ids], 32, prefix=BOS)[0], abs=1e-9)


# --- specification ------------------------------------------------------------------------------------


def test_metric_and_chance_are_known_or_given():
    spec = parse(DownstreamSpec, {"tasks": {"hellaswag": {}, "boolq": {"chance": 0.5}}})
    assert spec.measure("hellaswag") == ("acc_norm", 0.25)
    assert spec.measure("boolq") == ("acc", 0.5)
    with pytest.raises(ConfigError, match="mine: give its metric and its chance"):
        parse(DownstreamSpec, {"tasks": {"mine": {"metric": "acc"}}})


# --- the harness itself -------------------------------------------------------------------------------

WORDS = ["bad", "cab", "face", "beef", "deaf", "ace", "add", "bed"]


@pytest.fixture
def tasks(tmp_path):
    """Tasks in lm_eval's YAML over a local JSON file."""
    pytest.importorskip("lm_eval", reason="lm_eval is an extra")
    generator = np.random.default_rng(2)
    rows = []
    for i in range(40):
        context = " ".join(generator.choice(WORDS, 3 if i % 4 else 1))
        choices = [str(word) for word in generator.choice(WORDS, 4, replace=False)]
        rows.append({"context": context, "choices": choices, "label": int(generator.integers(4))})
    data = tmp_path / "rows.json"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    common = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "metadata": {"version": 3},
    }
    choice = {"output_type": "multiple_choice", "doc_to_text": "{{context}}", "doc_to_target": "label"}
    choice |= {"doc_to_choice": "choices", "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}]}
    rolling = {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{context}}"}
    rolling |= {"metric_list": [{"metric": "byte_perplexity"}]}
    answer = {"output_type": "generate_until", "doc_to_text": "{{context}}", "doc_to_target": "{{context}}"}
    answer |= {"generation_kwargs": {"until": ["."], "max_gen_toks": 5}}
    answer |= {"metric_list": [{"metric": "exact_match"}]}
    empty = choice | {"doc_to_text": ""}
    folder = tmp_path / "tasks"
    folder.mkdir()
    for name, task in (("choices", choice), ("rolling", rolling), ("said", answer), ("empty", empty)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"task": name, **common, **task}))
    return folder, rows


def spec(folder, **tasks):
    return parse(DownstreamSpec, {"tasks": tasks, "include_path": str(folder)})


GIVEN = {"metric": "acc", "chance": 0.25}


def test_the_harness_scores_choices_as_the_closed_form_does(tasks, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    folder, rows = tasks
    asked = answerer()
    found, empty = evaluate(asked, spec(folder, choices=GIVEN, empty=GIVEN))

    def expected(start):
        right = 0
        for row in rows:
            last = encode(row["context"])[-1] if start is None else start
            # the harness puts a space between context and choice
            values = [log_p([last, *encode(" " + choice)]) for choice in row["choices"]]
            right += int(np.argmax(values)) == row["label"]
        return right / len(rows)

    assert found["score"] == pytest.approx(expected(None))
    assert (found["n"], found["n_truncated"], found["task_version"]) == (40, 0, "3")
    # an empty context is BOS, and nothing else
    assert empty["score"] == pytest.approx(expected(BOS))
    error = math.sqrt(found["score"] * (1 - found["score"]) / 39)
    assert found["stderr"] == pytest.approx(error)
    assert found["above_chance"] == pytest.approx(found["score"] - 0.25)
    assert found["normalised"] == pytest.approx((found["score"] - 0.25) / 0.75)
    assert found["at_chance"] == (found["score"] - 0.25 < 2 * error)
    short = answerer(max_length=5)
    (cut,) = evaluate(short, spec(folder, choices=GIVEN))
    assert cut["n_truncated"] == short.truncated > 40


def test_rolling_scores_each_token_once_and_answers_stop(tasks, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    folder, rows = tasks
    from seqarch.evaluation.downstream import _harness

    class Request:
        def __init__(self, *args):
            self.args = args

    texts = [row["context"] for row in rows] + ["a", "", "bad cab face beef deaf ace add bed" * 3]
    found = _harness(answerer(max_length=4)).loglikelihood_rolling([Request(text) for text in texts])
    for text, value in zip(texts, found, strict=True):
        # disjoint windows of 4; the last id of one window is the context of the next
        ids = [BOS, *encode(text)]
        assert value == pytest.approx(log_p(ids), abs=1e-6)

    contexts = ["bad", "a b", "cafe", "h"]
    whole = [best(encode(text)[-1], 6) for text in contexts]
    harness = _harness(answerer())
    plain = harness.generate_until([Request(text, {"max_gen_toks": 6}) for text in contexts])
    expected = [decode(ids[: ids.index(BOS)] if BOS in ids else ids) for ids in whole]
    assert plain == expected
    stop = max(expected, key=len)[2]
    cut = harness.generate_until([Request(text, {"until": stop, "max_gen_toks": 6}) for text in contexts])
    assert cut == [text.split(stop)[0] for text in expected]
    with pytest.raises(DownstreamError, match="only greedy"):
        harness.generate_until([Request("a", {"do_sample": True})])
    with pytest.raises(DownstreamError, match="answers of 40 tokens"):
        harness.generate_until([Request("a", {"max_gen_toks": 40})])
    (row,) = evaluate(answerer(), spec(folder, said={"metric": "exact_match", "chance": 0.0}))
    assert row["score"] == np.mean(
        [text == answerer().answers([text], [["."]], [5])[0] for text in (row["context"] for row in rows)]
    )


def test_errors_say_what_to_do(tasks, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    folder, _ = tasks
    with pytest.raises(DownstreamError, match="choices: has no metric 'bleu'; it has acc"):
        evaluate(answerer(), spec(folder, choices={"metric": "bleu", "chance": 0.0}))
    with pytest.raises(DownstreamError, match="nowhere: lm_eval could not run it"):
        evaluate(answerer(), spec(folder, nowhere=GIVEN))


def test_the_table_has_the_common_columns(tasks, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    folder, _ = tasks
    options = spec(folder, choices=GIVEN)
    job = DownstreamJob(
        experiment="x",
        setting="limited",
        architecture="gla",
        seed=1,
        model={},
        checkpoint="annealed-00000010",
        sequence_length=32,
        downstream=options,
    )
    result = table(evaluate(answerer(), options), job, "t", "s").to_pandas()
    assert result.loc[0, ["arch", "seed", "task", "run_id"]].tolist() == [
        "gla",
        1,
        "choices",
        "limited/gla/seed1",
    ]
    assert result["ci_lo"].item() < result["score"].item() < result["ci_hi"].item()
    assert result["harness"].item() == "lm_eval 0.4.13"
