"""Scores and averages (3.11)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.proportion import proportion_confint

from seqarch.evaluation.proportions import wilson
from seqarch.evaluation.ruler.errors import RulerError
from seqarch.evaluation.ruler.metrics import (
    averages,
    effective_length,
    length_mean,
    percent,
    post_process,
    score_file,
    score_sample,
    summarise,
)
from seqarch.evaluation.ruler.spec import TASKS

LLAMA_3_1_8B = dict(zip([4096 << i for i in range(6)], [95.5, 93.8, 91.6, 87.4, 84.7, 77.0], strict=True))


def test_golden_averages_and_effective_length() -> None:
    """The row that RULER publishes for Llama-3.1-8B."""
    found = averages(LLAMA_3_1_8B)
    assert {name: round(value, 1) for name, value in found.items()} == {
        "avg": 88.3,
        "wavg_inc": 85.4,
        "wavg_dec": 91.3,
    }
    assert effective_length(LLAMA_3_1_8B) == 32_768
    assert effective_length({4096: 85.5}) is None  # no sentinel


def test_any_reference_is_enough_for_qa() -> None:
    """Fault 4."""
    references = ["Denver", "Denver Broncos"]
    assert score_sample("qa_1", references, "Denver")["score"] == 1.0
    assert score_sample("niah_multivalue", references, "Denver")["score"] == 0.5
    assert score_sample("qa_1", references, "")["score"] == 0.0
    assert score_sample("qa_1", references, " \n\x00")["null"]


def test_substrings_and_words_are_both_scored() -> None:
    """Fault 22: act is in action; fault 30: no is in not."""
    row = score_sample("cwe", ["act", "dog"], "action, DOG.")
    assert (row["score"], row["score_word"]) == (1.0, 0.5)
    row = score_sample("qa_2", ["no"], "That is not so")
    assert (row["score"], row["score_word"], row["yesno"]) == (1.0, 0.0, True)
    row = score_sample("qa_2", ["3,677 seated"], "It has 3,677 seated places")
    assert (row["score"], row["score_word"], row["yesno"]) == (1.0, 1.0, False)
    assert score_sample("cwe", ["x (y"], "x (y")["score_word"] == 1.0  # no regular expression


def test_only_the_value_is_scored() -> None:
    """Fault 34: neither wording nor case matters."""
    for text in ("1234567", "It's 1234567, I think.", "THE NUMBER IS\t1234567\x00"):
        assert score_sample("niah_single_1", ["1234567"], text)["score"] == 1.0
    assert score_sample("niah_single_3", ["ab-cd"], "AB-CD")["score"] == 1.0


def test_post_processing() -> None:
    assert post_process(" \x00a\x01b\tc\x1f ") == "a\nb\nc"
    assert post_process("é\x7f") == "é\x7f"


def records_and_predictions(n: int = 4) -> tuple[list[dict], list[dict]]:
    records = [
        {
            "index": i,
            "task": "niah_single_1",
            "outputs": [str(i)],
            "fill": 0.99,
            "used_tokens": 100,
            "ambiguous": False,
        }
        for i in range(n)
    ]
    said = [
        {"index": i, "pred": str(i), "n_new_tokens": 3, "hit_max_tokens": i == 2} for i in reversed(range(n))
    ]
    return records, said


def test_predictions_are_matched_by_index() -> None:
    """Fault 31: one a sample, whatever the order of the batches; fault 46: cut answers are counted."""
    records, said = records_and_predictions()
    rows = score_file(records, said)
    assert [row["index"] for row in rows] == [0, 1, 2, 3]
    summary = summarise("niah_single_1", records, rows)
    assert (summary["score"], summary["n"], summary["k_correct"], summary["n_hit_max_tokens"]) == (
        1.0,
        4,
        4,
        1,
    )
    for wrong in (said[:-1], [*said, said[0]], [*said[:-1], {**said[0], "index": 9}]):
        with pytest.raises(RulerError, match="expected one each"):
            score_file(records, wrong)


def test_a_silent_model_scores_nothing() -> None:
    """Fault 29: a prompt's echo is no answer, and nothing is nothing."""
    records, said = records_and_predictions()
    rows = score_file(records, [{**each, "pred": "", "n_new_tokens": 0} for each in said])
    summary = summarise("niah_single_1", records, rows)
    assert (summary["score"], summary["n_null"]) == (0.0, 4)
    assert summary["ci_lo"] == 0.0


def test_graded_tasks_have_no_binomial_interval() -> None:
    records, said = records_and_predictions()
    records = [{**each, "task": "vt", "outputs": ["1", "2"]} for each in records]
    summary = summarise("vt", records, score_file(records, said))
    assert summary["ci_lo"] is None
    assert summary["score"] == 0.25


@given(n=st.integers(1, 600), data=st.data(), confidence=st.sampled_from([0.9, 0.95, 0.99]))
def test_wilson_is_that_of_statsmodels(n: int, data: st.DataObject, confidence: float) -> None:
    k = data.draw(st.integers(0, n))
    expected = proportion_confint(k, n, alpha=1 - confidence, method="wilson")
    assert wilson(k, n, confidence) == pytest.approx(expected, abs=1e-12)


def test_a_mean_without_all_tasks_is_partial() -> None:
    """Fault 38: nothing missing is averaged, and the name says it."""
    scores = dict.fromkeys(TASKS, 0.5)
    assert length_mean(scores) == ("mean", 0.5, TASKS)
    del scores["qa_2"]
    assert length_mean(scores) == ("partial_mean", 0.5, TASKS[:-1])
    for wrong in ({}, {"niah": 1.0}):
        with pytest.raises(RulerError, match="expected some of"):
            length_mean(wrong)
    assert percent(2 / 3) == 66.67
