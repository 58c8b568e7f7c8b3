"""One needle at fixed depths: placement, pairing, controls, cells (section 4)."""

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from seqarch.evaluation import needle
from seqarch.evaluation.needle import (
    ADJACENT,
    FORMATS,
    NO_NEEDLE,
    NeedleGrid,
    cells,
    make,
    mean_score,
    paired_difference,
)
from seqarch.evaluation.ruler import metrics
from seqarch.evaluation.ruler.encoder import PromptEncoder
from seqarch.evaluation.ruler.errors import InfeasibleLength, RulerError
from seqarch.evaluation.ruler.oracle import read_answer
from seqarch.evaluation.ruler.prompt import Setup

MakeSetup = Callable[..., Setup]
DEPTHS = (0, 20, 40, 50, 60, 80, 100)
LENGTH = 1200


@pytest.fixture(scope="module")
def grids(make_setup: MakeSetup) -> dict[tuple[str, int], list[dict[str, Any]]]:
    setup = make_setup("niah_single_1", LENGTH)
    return {
        (name, length): make(replace(setup, length=length), name, DEPTHS, 3)[0]
        for name in FORMATS
        for length in (LENGTH, 2 * LENGTH)
    }


def predict(lines: list[dict[str, Any]], kinds: dict[str, bool]) -> list[dict[str, Any]]:
    """Scores of a reader that is right where `kinds` says so."""
    said = []
    for line in lines:
        text = line["outputs"][0] if kinds.get(line["control"], False) else "?"
        said.append({"index": line["index"], "pred": text, "n_new_tokens": 1, "hit_max_tokens": False})
    return metrics.score_file(lines, said)


@pytest.mark.parametrize("name", FORMATS)
def test_depths_are_where_they_should_be(grids: dict, make_setup: MakeSetup, name: str) -> None:
    """Fault 35. 0 and 100 are exact; else within half of the largest unit."""
    for length in (LENGTH, 2 * LENGTH):
        lines = [line for line in grids[name, length] if line["control"] == needle.NEEDLE]
        grid = NeedleGrid(make_setup(FORMATS[name], length), DEPTHS)
        for line in lines:
            offsets = grid.offsets(line["n_units"])
            largest = max(b - a for a, b in itertools.pairwise(offsets))
            error = abs(line["actual_depth"] - line["requested_depth"]) / 100 * offsets[-1]
            assert error <= largest / 2
            context = line["input"].split("afterwards.\n")[1].split("\nWhat is")[0]
            if line["requested_depth"] == 0:
                assert line["actual_depth"] == 0.0
                assert context.startswith("One of the special magic")
            if line["requested_depth"] == 100:
                assert line["actual_depth"] == 100.0
                assert context.endswith(f" is: {line['outputs'][0]}.")
            assert context.count("One of the special magic") == 1


@pytest.mark.parametrize("name", FORMATS)
def test_places_are_those_of_the_ids(grids: dict, encoders: dict[str, PromptEncoder], name: str) -> None:
    encoder = encoders["bpe-1k"]
    for line in grids[name, LENGTH]:
        ids = encoder.encode(line["input"] + line["answer_prefix"])
        assert len(ids) == line["prompt_tokens"]
        assert line["used_tokens"] <= LENGTH
        question = encoder._library.decode(ids[line["question_token_start"] :])
        assert question.strip().startswith("What is the special magic")
        if line["control"] == NO_NEEDLE:
            assert line["needle_token_start"] is None
            assert line["outputs"][0] not in line["input"]
            continue
        text = encoder._library.decode(ids[line["needle_token_start"] : line["needle_token_end"]]).strip()
        assert text.startswith("One of the special magic")
        assert text.endswith(f"{line['outputs'][0]}.")
        assert line["distance_to_question"] == line["question_token_start"] - line["needle_token_end"] >= 0
        if line["control"] == ADJACENT:
            assert line["distance_to_question"] <= 1
        else:
            assert line["fill"] >= 0.95


def test_samples_are_paired(grids: dict) -> None:
    """The same key and value at every depth and length; the shorter haystack is a prefix of the longer."""
    for name in FORMATS:
        pairs, haystacks = {}, {}
        for length in (LENGTH, 2 * LENGTH):
            for line in grids[name, length]:
                pairs.setdefault(line["sample"], set()).add((line["answer_prefix"], line["outputs"][0]))
                if line["control"] == NO_NEEDLE:
                    text = line["input"].split("afterwards.\n")[1].split("\nWhat is")[0]
                    haystacks[length, line["sample"]] = text
        assert all(len(values) == 1 for values in pairs.values())
        assert all(haystacks[2 * LENGTH, j].startswith(haystacks[LENGTH, j]) for j in range(3))


def test_the_haystack_is_the_same_at_every_depth(grids: dict) -> None:
    for lines in grids.values():
        for j in range(3):
            mine = [line for line in lines if line["sample"] == j and line["control"] != ADJACENT]
            bare = {
                " ".join(
                    re.sub(
                        r"One of the special magic \w+ for \S.* is: \S+\.(?=\s)", "", line["input"]
                    ).split()
                )
                for line in mine
            }
            assert len(mine) == len(DEPTHS) + 1
            assert len(bare) == 1


def test_a_regular_expression_reads_every_value(grids: dict) -> None:
    for lines in grids.values():
        for line in lines:
            read = read_answer(line)
            assert (read == line["outputs"][0]) == (line["control"] != NO_NEEDLE)


def test_wrong_data_fail_the_build(make_setup: MakeSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needle.oracle, "read_answer", lambda record: "7")
    with pytest.raises(RulerError, match="is read, not"):
        make(make_setup("niah_single_1", LENGTH), "Repeat-Word-Num", (0,), 1)


def test_too_short_a_length_names_the_least(make_setup: MakeSetup) -> None:
    setup = make_setup("niah_single_1", 100)
    for name in FORMATS:
        with pytest.raises(InfeasibleLength) as caught:
            make(setup, name, DEPTHS, 2)
        minimum = caught.value.minimum
        assert len(make(replace(setup, length=minimum), name, DEPTHS, 2)[0]) == 2 * (len(DEPTHS) + 2)
        with pytest.raises(InfeasibleLength):
            make(replace(setup, length=minimum - 1), name, DEPTHS, 2)


def test_cells_carry_their_controls(grids: dict) -> None:
    lines = grids["Repeat-Word-Num", LENGTH]
    good = cells(lines, predict(lines, {needle.NEEDLE: True, ADJACENT: True}))
    assert [cell["depth"] for cell in good] == list(DEPTHS)
    assert {(cell["signal"], cell["score"], cell["n"]) for cell in good} == {("ok", 1.0, 3)}
    blind = cells(lines, predict(lines, {}))
    assert {(cell["signal"], cell["score"]) for cell in blind} == {("no signal", 0.0)}
    leaking = cells(lines, predict(lines, {needle.NEEDLE: True, ADJACENT: True, NO_NEEDLE: True}))
    assert {cell["signal"] for cell in leaking} == {"leak"}
    assert mean_score(good) == 1.0
    assert mean_score([*blind, *leaking]) is None  # no conclusion, in no mean


def test_depths_are_compared_on_the_same_samples() -> None:
    a = {i: float(i % 3 == 0) for i in range(60)}
    b = dict.fromkeys(range(60), 0.0)
    mean, low, high = paired_difference(a, b, seed=0)
    assert mean == pytest.approx(1 / 3)
    assert 0.15 < low < mean < high < 0.5
    assert paired_difference(a, a, seed=0) == (0.0, 0.0, 0.0)
    assert paired_difference(a, b, seed=0) == (mean, low, high)
    with pytest.raises(RulerError, match="the same ones"):
        paired_difference(a, {0: 1.0}, seed=0)
