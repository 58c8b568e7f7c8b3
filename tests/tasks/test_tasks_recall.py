"""Recall tasks: what a sequence holds, that it can be solved from its text, that streams share nothing."""

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from seqarch.errors import ConfigError
from seqarch.evaluation.ruler import niah
from seqarch.schema import Spec, parse
from seqarch.tasks.batch import IGNORE
from seqarch.tasks.recall import copying, needle_lines, phonebook
from seqarch.tasks.recall.draws import Draws
from seqarch.tasks.recall.examples import (
    ADJACENT,
    NO_NEEDLE,
    SHUFFLED,
    Case,
    Examples,
    RecallError,
    boundary,
    check_oracle,
)
from seqarch.tasks.recall.mqar import MqarTask
from seqarch.tasks.recall.needle_lines import NeedleLinesTask
from seqarch.tasks.recall.spec import PASSKEY_NOISE, Mqar, NeedleLines, RecallTask
from seqarch.tasks.recall.streams import (
    TEST,
    VALIDATION,
    TrainingStream,
    ValidationStream,
    held_out,
    open_task,
)

MQAR = {"kind": "mqar", "vocab": 64, "length": 32, "pairs": [2, 4, 8], "test_lengths": [32, 64]}
MQAR |= {"test_pairs": [2, 4, 8, 16]}
NEEDLE = {"kind": "needle_lines", "length": 100, "test_lengths": [100, 200]}
OPTIONS: dict[str, dict[str, Any]] = {
    "mqar": MQAR,
    "mqar-power": MQAR | {"placement": "power"},
    "needle": NEEDLE,
    "needle-keys": NEEDLE | {"noise": "keys"},
    "copy": {"kind": "copying"},
    "prefix": {"kind": "copying", "variant": "prefix"},
    "suffix": {"kind": "copying", "variant": "suffix"},
    "phonebook": {"kind": "phonebook"},
    "passkey": {"kind": "passkey", "length": 256, "test_lengths": [256, 512]},
}


def spec_of(name: str, **changes: Any) -> Any:
    return TypeAdapter(RecallTask).validate_python({**OPTIONS[name], "steps": 1, "batch_size": 16, **changes})


def rows(examples: Examples) -> set[bytes]:
    return {row.tobytes() for row in examples.inputs}


def mqar_parts(inputs: np.ndarray, pairs: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return inputs[:, 0 : 2 * pairs : 2], inputs[:, 1 : 2 * pairs : 2], inputs[:, 2 * pairs :]


# --- every task -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIONS)
def test_a_reader_finds_every_answer_in_the_text(name: str) -> None:
    spec = spec_of(name)
    task = open_task(spec)
    cases = task.cases()
    assert cases
    for case in cases:
        examples = held_out(task, spec.kind, case, -(-1000 // len(cases)), TEST, 0)
        assert examples.inputs.shape == examples.targets.shape
        assert examples.inputs.shape[1] == case.length <= spec.longest
        assert 0 <= examples.inputs.min() <= examples.inputs.max() < spec.vocab_size
        check_oracle(task, examples, name)


@pytest.mark.parametrize("name", OPTIONS)
def test_the_oracle_notices_a_wrong_answer(name: str) -> None:
    spec = spec_of(name)
    task = open_task(spec)
    examples = held_out(task, spec.kind, task.cases()[0], 3, TEST, 0)
    row, place = np.argwhere(examples.targets != IGNORE)[-1]
    examples.targets[row, place] += 1
    with pytest.raises(RecallError, match="sequence 2: the oracle reads"):
        check_oracle(task, examples, name)


@pytest.mark.parametrize("name", OPTIONS)
def test_training_validation_and_test_share_no_sequence(name: str) -> None:
    spec = spec_of(name)
    task = open_task(spec)
    case = task.training(0)
    training = [TrainingStream(spec, 64, seed).batch(step) for seed in (0, 1) for step in (0, 3, 6)]
    parts = [{row.numpy().tobytes() for row in batch.inputs} for batch in training]
    parts += [rows(held_out(task, spec.kind, case, 64, split, 0)) for split in (VALIDATION, TEST)]
    parts += [{row.numpy().tobytes() for batch in ValidationStream(spec, 64, 1, 0) for row in batch.inputs}]
    if spec.kind == "passkey":  # 90,000 numbers at 3 places: whole streams cannot be told apart by a row
        assert len({frozenset(part) for part in parts}) == len(parts)
    else:
        assert len(set.union(*parts)) == sum(map(len, parts))


DIGESTS = {
    "mqar": "a6fadf179e909f6a",
    "mqar-power": "f11f9eab84438db9",
    "needle": "a9ded0ba99aed4b5",
    "needle-keys": "52ca21fcd6bc583b",
    "copy": "c7f4fcc56880153c",
    "prefix": "38d092949ca3b769",
    "suffix": "1f6c0f64a1bc2bcf",
    "phonebook": "7d8589ec057bc1af",
    "passkey": "8a8b9495fc7ea95a",
}


@pytest.mark.parametrize("name", OPTIONS)
def test_equal_seeds_give_equal_bytes_everywhere(name: str) -> None:
    """On every machine, with every numpy: the digests were written down once."""
    batch = TrainingStream(spec_of(name), 16, seed=3).batch(5)
    data = batch.inputs.numpy().astype("<i8").tobytes() + batch.targets.numpy().astype("<i8").tobytes()
    assert hashlib.sha256(data).hexdigest()[:16] == DIGESTS[name]


@pytest.mark.parametrize("name", ["mqar", "needle-keys", "prefix"])
def test_ranks_take_their_rows_of_one_batch(name: str) -> None:
    stream = TrainingStream(spec_of(name), 12, seed=0)
    whole = stream.batch(7)
    parts = [stream.batch(7, rank, 3) for rank in range(3)]
    assert np.array_equal(np.concatenate([part.inputs for part in parts]), whole.inputs)
    assert np.array_equal(np.concatenate([part.targets for part in parts]), whole.targets)
    with pytest.raises(RecallError, match="world size divides"):
        stream.batch(0, 0, 5)


# --- mqar -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mqar", "mqar-power"])
def test_mqar_follows_its_definition(name: str) -> None:
    spec = spec_of(name)
    task = MqarTask(spec)
    for case in task.cases():
        k = case.pairs
        assert k is not None
        examples = held_out(task, "mqar", case, 200, TEST, 1)
        keys, values, rest = mqar_parts(examples.inputs, k)
        for row in range(200):
            assert len(set(keys[row])) == len(set(values[row])) == k
            assert set(keys[row]) <= set(range(1, 32))
            assert set(values[row]) <= set(range(32, 64))
            asked = examples.targets[row] != IGNORE
            assert asked.sum() == k
            assert not asked[: 2 * k].any()
            queries = examples.inputs[row][asked]
            assert set(queries) == set(keys[row]), "each key is asked for once"
            assert set(rest[row]) == {0, *keys[row]}, "filler is filler: it binds no key"
            bound = dict(zip(keys[row], values[row], strict=True))
            assert [bound[key] for key in queries] == examples.targets[row][asked].tolist()


def test_uniform_queries_stand_anywhere_alike() -> None:
    task = MqarTask(spec_of("mqar"))
    examples = task.make(Case(32, 4), 6000, Draws("test"))
    counts = (examples.targets[:, 8:] != IGNORE).sum(axis=0)
    expected = 6000 * 4 / 24
    assert ((counts - expected) ** 2 / expected).sum() < 60  # chi squared, 23 degrees: p < 1e-4


def test_power_queries_are_near_as_often_as_the_density_says() -> None:
    """With one pair the first gap has p(g) ∝ a g^(a - 1); with a = 1 all gaps are alike."""
    task = MqarTask(spec_of("mqar-power", power=0.5))
    examples = task.make(Case(32, 1), 20_000, Draws("test"))
    places = (examples.targets != IGNORE).argmax(axis=1)
    assert set(places % 2) == {0}
    gaps = 1 + (places - 2) // 2
    density = 0.5 * np.arange(1, 16) ** -0.5
    expected = 20_000 * density / density.sum()
    counts = np.bincount(gaps, minlength=16)[1:]
    assert ((counts - expected) ** 2 / expected).sum() < 45  # 14 degrees
    near = MqarTask(spec_of("mqar-power")).make(Case(32, 1), 2000, Draws("test"))
    assert (near.targets[:, 2:4] != IGNORE).sum() > 500


def test_mqar_controls() -> None:
    task = MqarTask(spec_of("mqar"))
    shuffled, adjacent = task.controls(Case(64, 8))
    assert (shuffled.control, adjacent.control) == (SHUFFLED, ADJACENT)
    examples = held_out(task, "mqar", adjacent, 50, TEST, 0)
    assert (examples.targets[:, 2] == examples.inputs[:, 1]).all()
    assert (examples.inputs[:, 2] == examples.inputs[:, 0]).all()
    check_oracle(task, examples, "adjacent")
    examples = held_out(task, "mqar", shuffled, 500, TEST, 0)
    answers = np.array([task.read(row) for row in examples.inputs])
    asked = examples.targets != IGNORE
    share = (answers[asked] == examples.targets[asked]).mean()
    assert share == pytest.approx(1 / 32, abs=0.01), "what is asked for can only be guessed"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pairs": [9]}, "a sequence of 32 holds at most 8"),
        ({"test_pairs": [17]}, "the longest sequence holds 16"),
        ({"pairs": [32], "length": 128}, "vocab 64 has 31"),
        ({"placement": "power", "test_lengths": [65]}, "even lengths"),
        ({"vocab": 63}, "multiple of 2"),
        ({"test_pairs": [2, 2]}, "each value once"),
    ],
)
def test_impossible_options_are_refused(changes: dict[str, Any], message: str) -> None:
    class Section(Spec):
        task: RecallTask

    with pytest.raises(ConfigError, match=message):
        parse(Section, {"task": MQAR | {"steps": 1} | changes})


# --- needle lines and passkey -----------------------------------------------------------------------------


def texts(examples: Examples, alphabet: Any) -> list[str]:
    return [alphabet.text(row) for row in examples.inputs]


@pytest.mark.parametrize("name", ["needle", "needle-keys"])
def test_needles_stand_where_the_depth_says_with_the_same_words_everywhere(name: str) -> None:
    spec = spec_of(name, depths=[0, 30, 100])
    task = NeedleLinesTask(spec)
    noises: dict[int, list[list[str]]] = {}
    asked = set()
    for case in task.cases():
        examples = held_out(task, spec.kind, case, 40, TEST, 0)
        n = spec.lines(case.length)
        place = boundary(n - 1, case.depth)
        assert examples.depth is not None
        assert (examples.depth == 100 * place / (n - 1)).all()
        assert abs(examples.depth[0] - case.depth) <= 50 / (n - 1)
        found, noise = [], []
        for text in texts(examples, needle_lines.TEXT):
            lines = text.lstrip("~").split(";")
            assert len(lines) == n + 1
            question = lines.pop()
            assert lines[place][:12] == question[:12]
            found.append(lines.pop(place))
            noise.append(lines)
            keys = [line[4:7] for line in [*lines, question] if line.startswith("KEY=")]
            assert len(set(keys)) == len(keys) == (n if name == "needle-keys" else 1)
        asked.add(tuple(found))
        same = noises.setdefault(case.length, noise)
        assert noise == same, "the noise is the same at every depth"
    assert len(asked) == 1, "keys and values are the same at every depth and length"
    short, long = noises[100], noises[200]
    assert [lines[: len(short[0])] for lines in long] == short, "a shorter haystack is the first of a longer"


def test_keys_that_are_drawn_twice_are_drawn_again() -> None:
    spec = NeedleLines.model_validate(NEEDLE | {"noise": "keys", "key_letters": 1, "steps": 1})
    task = NeedleLinesTask(spec)
    examples = task.make(Case(spec.length), 300, Draws("test"))
    for text in texts(examples, needle_lines.TEXT):
        keys = [line[4] for line in text.lstrip("~").split(";")]
        assert len(keys) == 6
        assert len(set(keys)) == len(set(keys[:-1])) == 5


@pytest.mark.parametrize("name", ["needle", "needle-keys", "passkey"])
def test_controls_of_needles(name: str) -> None:
    spec = spec_of(name)
    task = open_task(spec)
    case = task.cases()[0]
    without, adjacent = task.controls(case)
    assert (without.control, adjacent.control) == (NO_NEEDLE, ADJACENT)
    assert without.length == case.length
    examples = held_out(task, spec.kind, without, 50, TEST, 0)
    found = [task.read(row)[-1] for row in examples.inputs]
    assert found == [0] * 50, "there is nothing to read"
    examples = held_out(task, spec.kind, adjacent, 50, TEST, 0)
    check_oracle(task, examples, "adjacent")
    assert 0 not in examples.inputs, "no filler, no haystack"


def test_training_needles_stand_at_all_depths() -> None:
    spec = spec_of("needle")
    examples = open_task(spec).make(Case(spec.length), 400, Draws("test"))
    assert examples.depth is not None
    found, counts = np.unique(examples.depth, return_counts=True)
    assert found.tolist() == [0, 25, 50, 75, 100]
    assert counts.min() > 50


def test_the_boundary_nearest_to_a_depth() -> None:
    assert [boundary(4, depth) for depth in (0, 12.5, 13, 50, 100)] == [0, 0, 1, 2, 4]
    assert [boundary(1, depth) for depth in (0, 50, 51, 100)] == [0, 0, 1, 1]


def test_passkey_noise_is_ruler_s() -> None:
    assert f"{niah.NOISE}\n" == PASSKEY_NOISE
    with pytest.raises(ValidationError, match="length 100: one line of noise and the question need 168"):
        spec_of("passkey", length=100)
    assert open_task(spec_of("passkey", length=168)).training(0).length == 168


# --- copying and phonebook --------------------------------------------------------------------------------


def given_and_wanted(name: str, **changes: Any) -> Iterable[tuple[str, str]]:
    spec = spec_of(name, **changes)
    examples = open_task(spec).make(open_task(spec).training(0), 500, Draws("test"))
    for inputs, targets in zip(examples.inputs, examples.targets, strict=True):
        asked = np.flatnonzero(targets != IGNORE)
        assert (np.diff(asked) == 1).all()
        yield copying.TEXT.text(inputs[: asked[0] + 1]), copying.TEXT.text(targets[asked])


def test_copies_of_all_lengths() -> None:
    lengths = set()
    for given, wanted in given_and_wanted("copy"):
        assert given == f"${wanted[:-1]}|"
        assert wanted[-1] == "."
        lengths.add(len(wanted) - 1)
    assert lengths == set(range(5, 17))


@pytest.mark.parametrize("ngram", [1, 3])
def test_a_part_that_is_looked_up_occurs_once(ngram: int) -> None:
    starts = set()
    for given, wanted in given_and_wanted("prefix", ngram=ngram):
        part, s = given[1:-1].split("|")
        assert len(part) == ngram
        assert sum(s.startswith(part, i) for i in range(len(s))) == 1
        assert s.endswith(part + wanted[:-1])
        assert len(wanted) > 1
        starts.add(len(wanted) - 1)
    assert starts == set(range(1, 17 - ngram)), "the first part, the last, and all between"
    for given, wanted in given_and_wanted("suffix", ngram=ngram):
        s, part = given[1:].split("|")
        assert s.endswith(part + wanted[:-1])
        assert sum(s.startswith(part, i) for i in range(len(s))) == 1


def test_strings_of_the_test_have_one_length() -> None:
    spec = spec_of("copy")
    task = open_task(spec)
    for case, letters in zip(task.cases(), (16, 24, 32), strict=True):
        examples = held_out(task, "copying", case, 20, TEST, 0)
        assert (case.length, case.pairs) == (2 * letters + 2, letters)
        assert ((examples.targets != IGNORE).sum(axis=1) == letters + 1).all()


def test_a_phonebook_has_every_name_once_and_shows_two_others() -> None:
    spec = spec_of("phonebook")
    task = open_task(spec)
    for case in task.cases():
        examples = held_out(task, "phonebook", case, 100, TEST, 0)
        for text, targets in zip(texts(examples, phonebook.TEXT), examples.targets, strict=True):
            book, shown, question = text.split("\n\n")
            lines = book.splitlines()
            names = [line.split(":")[0] for line in lines]
            assert len(set(names)) == len(names) == case.pairs
            assert all(line.split(": ")[1][0] in "6789" and len(line) == 18 for line in lines)
            assert set(shown.splitlines()) < set(lines)
            assert len(set(shown.splitlines())) == 2
            number = phonebook.TEXT.text(targets[targets != IGNORE])
            assert f"{question.split(':')[0]}: {number}" in lines
            assert question.split(":")[0] not in shown


def test_draws_of_one_name_never_meet_those_of_another() -> None:
    a, b = Draws("x", 1), Draws("x", 2)
    assert not set(a.uniform(1000)) & set(b.uniform(1000))
    assert not set(Draws("x", 1).named("y").uniform(1000)) & set(Draws("x", 1).uniform(1000))
    drawn = Draws("z").below(7, 70_000)
    assert np.bincount(drawn, minlength=7).min() > 9600
    assert (np.sort(Draws("z").distinct(9, 9, 50), axis=1) == np.arange(9)).all()


def test_options_know_the_chance_of_a_guess() -> None:
    assert Mqar.model_validate(MQAR | {"steps": 1}).chance == 1 / 32
    assert NeedleLines.model_validate(NEEDLE | {"steps": 1, "value_digits": 2}).chance == 0.01
