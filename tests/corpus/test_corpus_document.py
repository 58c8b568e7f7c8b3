import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from seqarch.corpus.document import BadRow, Document, document_or_bad_row, normalise, split_of, text_digest
from seqarch.corpus.spec import SplitSpec

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
words = st.lists(st.text("aé1ß漢-", min_size=1, max_size=4), min_size=1, max_size=8)
spaces = st.text(" \t\n\r\u00a0\u2003", min_size=1, max_size=4)


def split(text: str, shares: SplitSpec, key: str | None = None) -> str:
    return split_of(Document(text, "web", "a.jsonl", "1", key), text_digest(text), shares)


@given(texts)
def test_normalise_is_idempotent(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


@given(words, st.data())
def test_layout_and_unicode_form_do_not_count(words: list[str], data: st.DataObject) -> None:
    laid_out = "".join(word + data.draw(spaces) for word in words)
    shares = SplitSpec()
    for variant in (" ".join(words), data.draw(spaces) + laid_out, unicodedata.normalize("NFD", laid_out)):
        assert text_digest(variant) == text_digest(" ".join(words))
        assert split(variant, shares) == split(" ".join(words), shares)


@given(st.text("ab ", max_size=6), st.text("ab ", max_size=6))
def test_other_words_are_another_text(one: str, other: str) -> None:
    assert (text_digest(one) == text_digest(other)) == (one.split() == other.split())


def test_splits_of_known_texts() -> None:
    # The first 16 hexadecimal digits of sha256 say so; a change here moves documents of every corpus.
    shares = SplitSpec(validation=0.2, test=0.3)
    known = {
        "alpha": "train",
        "beta": "train",
        "gamma": "train",
        "delta": "validation",
        "kappa": "validation",
        "lambda": "validation",
        "mu": "test",
        "nu": "test",
        "xi": "test",
    }
    assert {text: split(text, shares) for text in known} == known


@given(texts, st.floats(0.05, 0.4), st.floats(0.05, 0.4))
def test_a_larger_test_share_keeps_the_smaller_one(text: str, one: float, other: float) -> None:
    small, large = sorted((one, other))
    if split(text, SplitSpec(validation=0.1, test=small)) == "test":
        assert split(text, SplitSpec(validation=0.1, test=large)) == "test"


def test_shares_are_met() -> None:
    shares = SplitSpec(validation=0.05, test=0.2)
    found = [split(f"document {i}", shares) for i in range(20_000)]
    assert abs(found.count("test") / 20_000 - 0.2) < 0.01  # three standard deviations are 0.0085
    assert abs(found.count("validation") / 20_000 - 0.05) < 0.005


@given(st.lists(texts, min_size=2, max_size=6), st.text(min_size=1, max_size=20))
def test_texts_of_one_page_share_a_split(texts: list[str], page: str) -> None:
    assert len({split(text, SplitSpec(), page) for text in texts}) == 1


def test_bad_values_are_told_apart() -> None:
    def kind(text: object, domain: object = "web") -> str:
        item = document_or_bad_row(text, domain, "a.jsonl", "7")
        assert item.source == "a.jsonl"
        assert item.row == "7"
        return item.kind if isinstance(item, BadRow) else "good"

    assert kind("text") == "good"
    assert kind(None) == "no_text"
    assert kind("text", None) == "no_domain"
    assert kind(3) == kind(["text"]) == kind("text", 3) == "wrong_type"
    assert kind("") == kind(" \n\u2003") == "empty"
    assert kind("a\0b") == "nul"
    assert kind("a\ud800b") == "invalid_utf8"
