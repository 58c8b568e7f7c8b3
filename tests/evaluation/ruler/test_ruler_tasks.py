"""The prompts: wording, randomness, and the faults of other generators as named tests."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from scipy.stats import chisquare

from seqarch.evaluation.ruler import oracle, records
from seqarch.evaluation.ruler.cwe import TEMPLATE as CWE
from seqarch.evaluation.ruler.encoder import PromptEncoder
from seqarch.evaluation.ruler.errors import InfeasibleLength, ResourceError
from seqarch.evaluation.ruler.fwe import Fwe, counts
from seqarch.evaluation.ruler.metrics import score_sample
from seqarch.evaluation.ruler.niah import DEPTHS, NIAH, NOISE
from seqarch.evaluation.ruler.prompt import Setup, fill
from seqarch.evaluation.ruler.qa import Qa, QaSample
from seqarch.evaluation.ruler.records import describe, make
from seqarch.evaluation.ruler.resources import Haystack, WordLists, word_lists
from seqarch.evaluation.ruler.spec import TASKS, Wrapper
from seqarch.evaluation.ruler.streams import Permutation, stream
from seqarch.evaluation.ruler.tasks import set_up
from seqarch.evaluation.ruler.vt import Vt, VtSample
from seqarch.files import sha256_text

MakeSetup = Callable[..., Setup]
LENGTH = 1400  # every task fits
# sha256 of each family's constants; published figures are made with exactly this wording
TEMPLATES = {
    "niah_single_1": "0026efe50bd3",
    "niah_single_2": "0026efe50bd3",
    "niah_single_3": "0026efe50bd3",
    "niah_multikey_1": "0026efe50bd3",
    "niah_multikey_2": "0026efe50bd3",
    "niah_multikey_3": "0026efe50bd3",
    "niah_multivalue": "7d66921e3ee7",
    "niah_multiquery": "7d66921e3ee7",
    "vt": "c5c26643da53",
    "cwe": "a5199b048bce",
    "fwe": "002a5c2a6b8f",
    "qa_1": "158eec25726d",
    "qa_2": "158eec25726d",
}


def samples(setup: Setup, n: int = 3) -> list[dict[str, Any]]:
    return make(setup, n)[0]


@pytest.mark.parametrize("task", TASKS)
def test_the_wording_is_pinned(make_setup: MakeSetup, task: str) -> None:
    """Fault 17: the port says "assgined" and is comparable with nobody."""
    setup = make_setup(task, LENGTH, profile="faithful")
    assert sha256_text(set_up(setup).template)[:12] == TEMPLATES[task]


@pytest.mark.parametrize("profile", ["fixed", "faithful"])
@pytest.mark.parametrize("task", TASKS)
def test_a_reader_of_the_prompt_scores_full_marks(make_setup: MakeSetup, task: str, profile: str) -> None:
    """3.11; fault 6 and 28: the instruction is there and the input ends with the answer prefix."""
    for record in samples(make_setup(task, LENGTH, profile=profile), 5):
        assert score_sample(task, record["outputs"], oracle.read_answer(record))["score"] == 1.0
        text = record["input"] + record["answer_prefix"]
        assert text.endswith(record["answer_prefix"])
        assert record["answer_prefix"].startswith(" ")
        first_words = set_up(make_setup(task, LENGTH)).template.split("{")[0]
        assert text.startswith(first_words)


@pytest.mark.parametrize("task", TASKS)
def test_same_seed_same_samples_another_seed_others(make_setup: MakeSetup, task: str) -> None:
    """Faults 10, 11, 26: the seed is honoured, each sample is its own, indices are 0 … n - 1."""
    setup = make_setup(task, LENGTH)
    first = samples(setup, 4)
    assert first == samples(setup, 4)
    assert [record["index"] for record in first] == [0, 1, 2, 3]
    assert len({record["input"] for record in first}) == 4
    assert len({record["sample_seed"] for record in first}) == 4
    other = samples(replace(setup, seed=43), 4)
    assert all(a["input"] != b["input"] for a, b in zip(first, other, strict=True))


def test_draws_are_pinned(make_setup: MakeSetup) -> None:
    """The same bytes on every Python: a change here needs a new generator version."""
    text = "".join(record["input"] for task in TASKS for record in samples(make_setup(task, LENGTH), 2))
    assert sha256_text(text)[:16] == "f72b0ec26c6c98d7"


@pytest.mark.parametrize("task", [*NIAH, "vt", "cwe"])
def test_answers_do_not_depend_on_the_length(make_setup: MakeSetup, task: str) -> None:
    short, long = (samples(make_setup(task, length)) for length in (LENGTH, 2 * LENGTH))
    assert [record["outputs"] for record in short] == [record["outputs"] for record in long]


@pytest.mark.parametrize("task", [*NIAH, "vt"])
def test_needle_spans_are_the_true_ones(
    make_setup: MakeSetup, encoders: dict[str, PromptEncoder], libraries: dict[str, str], task: str
) -> None:
    """Fault 12: the answer's offset lies in its needle, counted in the ids the model gets."""
    for kind in ("byte", "bpe-1k", "metaspace"):
        encoder = encoders[kind]
        length = 6000 if kind == "byte" else LENGTH
        for record in samples(make_setup(task, length, encoder=encoder), 2):
            ids = encoder.encode(record["input"] + record["answer_prefix"])
            assert len(ids) == record["prompt_tokens"]
            spans = record["needle_spans"]
            texts = [encoder._library.decode(ids[start:end]).strip() for start, end in spans]
            shape = r"VAR \w+ = .*" if task == "vt" else r"One of the special magic \w+ for .* is: .*\."
            assert all(re.fullmatch(shape, text) for text in texts), texts
            place = record["token_position_answer"]
            (inside,) = (end for start, end in spans if start <= place < end)
            assert encoder._library.decode(ids[place:inside]).strip().startswith(record["outputs"][0][:3])


def test_no_leading_or_doubled_spaces_in_fixed(make_setup: MakeSetup) -> None:
    """Fault 49; upstream has them, and `faithful` keeps them (D12)."""
    found = {}
    for profile in ("fixed", "faithful"):
        texts = []
        for record in samples(make_setup("niah_multivalue", LENGTH, profile=profile), 12):
            texts.append(record["input"].split("afterwards.\n")[1])
        found[profile] = any(text.startswith(" ") or "  " in text for text in texts)
    assert found == {"fixed": False, "faithful": True}


def test_depths_are_ruler_s_forty() -> None:
    assert DEPTHS[:6] == (0, 3, 5, 8, 10, 13)
    assert DEPTHS[-2:] == (97, 100)
    assert len(set(DEPTHS)) == 40


def test_needles_stand_before_the_first_and_after_the_last_line_only_in_fixed(make_setup: MakeSetup) -> None:
    """D6."""
    for profile, last in (("fixed", True), ("faithful", False)):
        records = samples(make_setup("niah_single_1", 400, profile=profile), 40)
        context = [record["input"].split("afterwards.\n")[1].split("\nWhat is")[0] for record in records]
        assert any(not text.startswith(NOISE) for text in context)
        assert any(not text.endswith(NOISE) for text in context) == last


def test_query_keys_are_unique_or_there_is_an_error(make_setup: MakeSetup) -> None:
    """Fault 14, with three keys in the world."""
    three = WordLists(("red",), ("fox", "hen", "owl"), ("run",))
    for record in samples(make_setup("niah_multikey_2", 5000, words=three), 8):
        keys = re.findall(r"numbers for (\S+) is:", record["input"])
        assert sorted(keys) == ["red-fox", "red-hen", "red-owl"]
        assert record["capped"]
    with pytest.raises(ResourceError, match="4 keys"):
        samples(make_setup("niah_multikey_1", LENGTH, words=three))
    with pytest.raises(ResourceError, match="2 different keys"):
        samples(make_setup("niah_multikey_2", LENGTH, words=WordLists(("red",), ("fox",), ("run",))))
    faithful = samples(make_setup("niah_multikey_2", LENGTH, words=three, profile="faithful"), 8)
    assert any(record["ambiguous"] for record in faithful)


def test_all_keys_differ_with_real_words(make_setup: MakeSetup) -> None:
    for task in ("niah_multikey_1", "niah_multikey_2", "niah_multikey_3", "niah_multiquery"):
        for record in samples(make_setup(task, 2 * LENGTH), 5):
            keys = re.findall(r"special magic \w+ for (\S.*?) is: ", record["input"])
            assert len(keys) == len(set(keys)) == record["n_units"] + 1 or len(keys) == 4


def test_words_with_spaces_and_hyphens_are_read(make_setup: MakeSetup) -> None:
    """Fault 23."""
    lists = word_lists()
    odd = [word for word in lists.pool if " " in word or "-" in word]
    assert len(odd) > 100
    words = WordLists(("up-to-date", "far away"), tuple(odd), ("run",))
    for task in ("niah_multikey_2", "niah_multiquery", "cwe"):
        for record in samples(make_setup(task, 2 * LENGTH, words=words), 5):
            assert score_sample(task, record["outputs"], oracle.read_answer(record))["score"] == 1.0


def test_word_lists_are_those_of_wonderwords_3() -> None:
    lists = word_lists()
    assert (len(lists.adjectives), len(lists.nouns), lists.n_keys) == (912, 6782, 6_185_184)
    assert len(lists.pool) == 8166  # of the release on the package index


def test_needle_order_differs_between_samples_only_in_fixed(make_setup: MakeSetup) -> None:
    """Fault 10: upstream always has c, b, d, a."""
    orders = {}
    for profile in ("fixed", "faithful"):
        setup = make_setup("niah_multivalue", LENGTH, profile=profile)
        orders[profile] = set()
        for record in samples(setup, 10):
            said = re.findall(r" is: (\d+)\.", record["input"])
            orders[profile].add("".join("abcd"[record["outputs"].index(value)] for value in said))
    assert orders["faithful"] == {"cbda"}
    assert len(orders["fixed"]) > 3


def test_essays_may_start_elsewhere(make_setup: MakeSetup) -> None:
    """Fault 43: off by default, recorded where it is on."""
    setup = make_setup("niah_single_2", LENGTH, random_offset=True)
    records = samples(setup, 5)
    assert len({record["haystack_offset"] for record in records}) > 1
    assert len({record["input"][200:260] for record in records}) > 1
    assert "haystack_offset" not in samples(replace(setup, random_offset=False), 1)[0]


def test_names_never_collide(make_setup: MakeSetup) -> None:
    """Faults 15 and 16: two letters make 8 names of three letters; `VAR` is a keyword."""
    vt = Vt(make_setup("vt", LENGTH), alphabet="AB")
    for index in range(30):
        sample = next(iter(vt.variants(index)))
        assert isinstance(sample, VtSample)
        assert len(set(sample.names)) == 5
        assert len(set(re.findall(r"VAR (\w+) =", "".join(sample.example)))) == 5
    keyword = Vt(make_setup("vt", LENGTH), alphabet="VAR")
    names = [name for i in range(60) for name in keyword.names(stream("x", str(i)), 3, set())]
    assert "VAR" not in names
    with pytest.raises(ResourceError, match="too few names"):
        Vt(make_setup("vt", LENGTH), alphabet="A")


def test_vt_is_solved_once_and_its_example_stays_small(make_setup: MakeSetup) -> None:
    """Fault 47: at most min(500, L/4) tokens in `fixed`, recorded; fault 7: counted as it is written."""
    for length, profile in ((760, "fixed"), (LENGTH, "fixed"), (4096, "fixed"), (LENGTH, "faithful")):
        setup = make_setup("vt", length, profile=profile)
        (record,) = samples(setup, 1)
        example, real = record["input"].split("\n\nMemorize and track", 1)
        assert example.startswith("Memorize and track")
        assert "Memorize and track" not in real
        lines = example.count(NOISE)
        assert lines == record["example_lines"]
        limit = min(500, length // 4) if profile == "fixed" else 500
        question = example.rsplit("they are:", 1)[0] + "they are:"
        assert setup.encoder.count([question]) <= limit or lines == 0
        assert real.count(NOISE) == record["n_units"] >= 5
        answer = example.rsplit("they are:", 1)[1]
        assert len(answer.split()) == 5
        assert answer.startswith("  ") == (profile == "faithful")  # D8
        assert record["answer_prefix"].endswith(" ") == (profile == "faithful")


def test_cwe_has_one_solved_example(make_setup: MakeSetup, encoders: dict[str, PromptEncoder]) -> None:
    """Fault 5: the port counts the example and leaves it out."""
    opening = CWE.split("{context}")[0]
    for length, common, other in ((LENGTH, 6, 1), (4096, 30, 3)):
        (record,) = samples(make_setup("cwe", length, encoder=encoders["bpe-20k"]), 1)
        assert record["input"].count(opening) == 2
        assert record["fill"] >= 0.9
        example, real = record["input"].split(opening)[1:]
        amounts = Counter(re.split(r"(?:^| )\d+\. ", real.split("\nQuestion")[0])[1:])
        assert set(amounts.values()) == {common, other}
        assert {word for word, amount in amounts.items() if amount == common} == set(record["outputs"])
        assert record["n_units"] == len(amounts) >= 11
        said = re.split(r" \d+\. ", example.split("in the list are:")[1].strip("\n"))[1:]
        assert len(said) == 10


def test_cwe_ends_with_the_pool(make_setup: MakeSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 21: never more words than there are."""
    words = WordLists(tuple("ab"), tuple(f"noun{i}" for i in range(30)), ("c",))
    (record,) = samples(make_setup("cwe", 3000, words=words), 1)
    assert record["capped"]
    assert record["n_units"] == 33
    monkeypatch.setattr(records, "OFFICIAL_N", 1)
    more = WordLists(tuple("ab"), tuple(f"noun{i}" for i in range(60)), ("c",))
    faithful = make_setup("cwe", 8192, words=more, profile="faithful")
    assert records.comparable(faithful, 1, None) == "RULER-comparable"
    _, header = records.make(faithful, 1)
    assert header["comparable"] == "RULER-style"  # upstream would go on with another list of words
    with pytest.raises(ResourceError, match="needs 20 words"):
        samples(make_setup("cwe", 3000, words=WordLists(("a",), ("b",), ("c",))))


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (60, [36, 9, 4, 2, 1, 1]),
        (100, [60, 15, 6, 3, 2, 1]),
        (300, [182, 45, 20, 11, 7, 5]),
        (1200, [729, 182, 81, 45, 29, 20]),
    ],
)
def test_fwe_counts(n: int, expected: list[int]) -> None:
    assert counts(n, 1000)[:6] == expected


def test_fwe_sizes_have_no_ties(make_setup: MakeSetup) -> None:
    """Fault 18: the fourth word is there and more frequent than the fifth, except at 42 … 52."""
    tied = [n for n in range(27, 3000) if counts(n, 5)[3] <= (*counts(n, 5), 0)[4]]
    assert tied == list(range(42, 53))
    assert len(counts(26, 5)) == 3
    fwe = Fwe(make_setup("fwe", LENGTH))
    assert [fwe.n_of(step) for step in (0, 14, 15)] == [27, 41, 53]
    record = samples(make_setup("fwe", 340), 1)[0]
    assert not record["ambiguous"]


def test_fwe_has_three_answers_or_an_error(make_setup: MakeSetup) -> None:
    """Fault 19: below 250 upstream's vocabulary is too small."""
    with pytest.raises(InfeasibleLength):
        samples(make_setup("fwe", 249, profile="faithful"))
    for setup in (make_setup("fwe", 340), make_setup("fwe", 340, profile="faithful")):
        for record in samples(setup, 5):
            assert len(set(record["outputs"])) == 3
            assert all(word in record["input"].split() for word in record["outputs"])


def test_gold_documents_stand_anywhere(make_setup: MakeSetup) -> None:
    """Fault 9: upstream has 10 documents' gold one always at index 8."""
    n = 10
    setup = make_setup("qa_1", LENGTH)
    places = []
    qa = Qa(setup)
    for i in range(500):
        sample = QaSample(qa, qa.set.questions[i % len(qa.set.questions)], f"seed {i}")
        (place,) = sample.build(n - 1).gold_positions
        places.append(place)
    assert chisquare([places.count(i) for i in range(n)]).pvalue > 0.001
    faithful = Qa(replace(setup, profile="faithful"))
    fixed = {
        QaSample(faithful, question, "x").build(n - 1).gold_positions
        for question in faithful.set.questions[:20]
    }
    assert fixed == {(8,)}


def test_gold_documents_are_never_dropped(make_setup: MakeSetup) -> None:
    """Fault 3, and 39: the set of documents is not changed by use."""
    for task, gold in (("qa_1", 1), ("qa_2", 10)):
        setup = make_setup(task, LENGTH)
        assert setup.questions is not None
        before = setup.questions.sha256
        for record in samples(setup, 5) + samples(replace(setup, length=100_000), 1):
            assert len(re.findall(r"\n\nDocument \d+:\n", record["input"])) == record["n_units"]
            assert len(record["gold_doc_positions"]) == gold
        assert record["capped"]
        assert record["n_units"] == len(setup.questions.documents)
        assert setup.questions.sha256 == before


def test_more_questions_than_there_are(make_setup: MakeSetup) -> None:
    """Fault 2: never fewer samples than asked for."""
    with pytest.raises(ResourceError, match="lower n"):
        samples(make_setup("qa_2", LENGTH), 41)


def test_articles_supply_the_distractors(make_setup: MakeSetup) -> None:
    qa = Qa(make_setup("qa_1", LENGTH))
    question = qa.set.questions[0]
    sample = QaSample(qa, question, "seed")
    assert set(sample.documents(4)) == {*question.gold, *question.more}
    assert sample.documents(30)[:12] == sample.documents(12)
    assert len(set(sample.documents(120))) == 120


def test_texts_with_template_characters_pass_unchanged(make_setup: MakeSetup) -> None:
    """Fault 44: no shell, no format string; fault 13: a wrapper is not edited."""
    odd = "It costs $5 `today` {context} {query} \\n 'so' \"yes\"."
    hay = Haystack([f"{odd} Then more text came."] * 3, "odd")
    wrapper = Wrapper(
        before="You are {not} a helpful assistant. Some $PATH `ls`.\n", after="\nAnswer, {query}:"
    )
    for task in TASKS:
        (record,) = samples(make_setup(task, 2500, haystack=hay, wrapper=wrapper), 1)
        assert record["input"].startswith(wrapper.before)
        assert record["input"].endswith(wrapper.after)
        assert (odd in record["input"]) == (task in NIAH and NIAH[task].haystack == "essay")
        assert record["length_w_model_temp"] > record["length"]
    assert fill("{a} {b} {c}", a="{b}", b="$x") == "{b} $x {c}"


def test_special_tokens_in_a_text_are_refused(make_setup: MakeSetup) -> None:
    """Fault 33."""
    hay = Haystack(["Read this <|bos|> now. It ends."], "bad")
    with pytest.raises(ResourceError, match="special token"):
        samples(make_setup("niah_single_2", LENGTH, haystack=hay))
    for task in TASKS:
        assert "<|bos|>" not in samples(make_setup(task, LENGTH), 1)[0]["input"]


def test_special_tokens_count_only_in_fixed(make_setup: MakeSetup) -> None:
    """D9: a faithful prompt may be one BOS over the length, a fixed one never."""
    for task in TASKS:
        for profile, over in (("fixed", 0), ("faithful", 1)):
            for record in samples(make_setup(task, LENGTH, profile=profile), 2):
                assert record["used_tokens"] <= LENGTH + over
                assert record["fill"] == record["used_tokens"] / LENGTH


def test_any_option_changes_the_key(make_setup: MakeSetup, encoders: dict[str, PromptEncoder]) -> None:
    """Faults 27 and 37: the key has the tokenizer, the template and all that changes a prompt."""
    setup = make_setup("niah_single_2", LENGTH)
    changes = [
        {},
        {"seed": 1},
        {"length": 1401},
        {"profile": "faithful"},
        {"task": "niah_single_3"},
        {"encoder": encoders["byte"]},
        {"haystack": Haystack(["Another text."], "other")},
        {"words": WordLists(("a",), ("b",), ("c",))},
        {"wrapper": Wrapper(before="x ")},
        {"random_offset": True},
    ]
    keys = []
    for change in changes:
        changed = replace(setup, **change)
        keys.append(describe(changed, set_up(changed), 3, 0)["dataset_key"])
    keys.append(describe(setup, set_up(setup), 4, 0)["dataset_key"])
    assert len(set(keys)) == len(keys)


def test_essays_do_not_depend_on_the_order_of_a_folder() -> None:
    """Fault 25 is `load_haystack`'s sort (test_ruler_resources); here: the hash is of the text alone."""
    assert Haystack(["A b.", "C  d."], "x").sha256 == Haystack(["A  b.\n", "C d."], "y").sha256


def test_nothing_is_fetched_or_read_on_import() -> None:
    """Faults 24 and 41; and making data needs no torch."""
    code = (
        "import socket, sys\n"
        "socket.socket.connect = None\n"
        "import seqarch.cli.ruler_data, seqarch.cli.needle_data\n"
        "print(sorted({'torch', 'nltk', 'datasets', 'transformers'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (out.stdout.strip(), out.stderr) == ("[]", "")  # nor is anything logged (fault 42)


def test_permutations_are_whole_and_their_prefixes_stay() -> None:
    for n in (1, 2, 7, 100):
        whole = list(Permutation(stream("a", "b"), n)[:])
        assert sorted(whole) == list(range(n))
        part = Permutation(stream("a", "b"), n)
        assert [part[i] for i in range(n)] == whole
        assert part[: n // 2] == whole[: n // 2]
    firsts = Counter(Permutation(stream(str(i), "x"), 5)[0] for i in range(2000))
    assert chisquare([firsts[i] for i in range(5)]).pvalue > 0.001
