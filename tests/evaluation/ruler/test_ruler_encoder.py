"""Token counts of parts are those of the whole, and places of characters are found among the ids."""

import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Encoding, Tokenizer, models, pre_tokenizers, processors

from seqarch.evaluation.ruler.encoder import CACHE_ENTRIES, PromptEncoder
from seqarch.evaluation.ruler.errors import ResourceError, RulerError

KINDS = ("byte", "bpe-1k", "bpe-20k", "metaspace")
# What moves word boundaries: runs of spaces, line ends, apostrophes, digits, accents, other spaces, emoji.
SPACES = [
    "",
    " ",
    "  ",
    "\n",
    "\n\n",
    " \n",
    "\u00a0",
    "\u2003x",
    "\t",
    "\r\n",
    "\x85",
    "\x1f",
    "VAR A = VAR B ",
    "\nThe.",
]
PIECE = st.one_of(
    st.sampled_from(
        [
            *SPACES,
            "a",
            " a",
            "'s",
            " 's",
            "don't",
            " 12.",
            ".",
            " é",
            "e\u0301",
            "\u0301",
            "👩\u200d👩\u200d👧",
            " 長い",
        ]
    ),
    st.text(st.sampled_from("ab Z9.,'\n\té\u3000"), max_size=12),
    st.text(max_size=8),
)


@settings(max_examples=150, deadline=None)
@given(pieces=st.lists(PIECE, max_size=12))
def test_parts_count_as_much_as_the_whole(encoders: dict[str, PromptEncoder], pieces: list[str]) -> None:
    text = "".join(pieces)
    for kind in KINDS:
        encoder = encoders[kind]
        assert encoder.count(pieces) + encoder.n_special == len(encoder.encode(text)), kind


@settings(max_examples=60, deadline=None)
@given(pieces=st.lists(PIECE, max_size=8), data=st.data())
def test_a_span_s_tokens_are_those_of_the_whole_text(
    encoders: dict[str, PromptEncoder], libraries: dict[str, str], pieces: list[str], data: st.DataObject
) -> None:
    text = "".join(pieces)
    if not text:
        return
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    for kind in ("byte", "bpe-1k"):
        encoding = Tokenizer.from_str(libraries[kind]).encode(text, add_special_tokens=False)
        first, last = encoding.char_to_token(start), encoding.char_to_token(end - 1)
        assert first is not None
        assert last is not None
        assert encoders[kind].locate(pieces, [(start, end)]) == [(first + 1, last + 2)]  # BOS is first


def test_only_tokenizers_with_words_that_end_at_spaces_are_counted_in_parts(
    libraries: dict[str, str],
) -> None:
    kinds = {
        kind: PromptEncoder(Tokenizer.from_str(text), "none").additive for kind, text in libraries.items()
    }
    assert kinds == {"byte": True, "bpe-1k": True, "bpe-20k": True, "metaspace": False}
    for change in ('"use_regex": false', '"add_prefix_space": true'):
        key = change.split(":")[0]
        library = Tokenizer.from_str(libraries["bpe-1k"])
        options = {"add_prefix_space": False, "use_regex": True, key.strip('"'): "true" in change}
        library.pre_tokenizer = pre_tokenizers.ByteLevel(**options)
        assert not PromptEncoder(library, "none").additive, change
    assert not PromptEncoder(Tokenizer(models.BPE()), "none").additive


def test_special_tokens_go_first_or_not_at_all(libraries: dict[str, str]) -> None:
    plain = PromptEncoder(Tokenizer.from_str(libraries["byte"]), "none").encode("ab")
    assert PromptEncoder(Tokenizer.from_str(libraries["byte"]), "bos", 0).encode("ab") == [0, *plain]
    llama = Tokenizer.from_str(libraries["metaspace"])
    assert PromptEncoder(llama, "template").encode("a")[0] == 0
    with pytest.raises(RulerError, match="has none"):
        PromptEncoder(Tokenizer.from_str(libraries["byte"]), "bos")  # a tokenizer without BOS
    llama.post_processor = processors.TemplateProcessing(single="$A <|bos|>", special_tokens=[("<|bos|>", 0)])
    with pytest.raises(RulerError, match="after the text"):
        PromptEncoder(llama, "template")


def test_text_of_a_special_token_is_characters_and_refused(encoders: dict[str, PromptEncoder]) -> None:
    """Fault 33: no special-token text or id inside a prompt."""
    encoder = encoders["bpe-1k"]
    ids = encoder.encode("a <|bos|> b")
    assert ids.count(0) == 1
    with pytest.raises(ResourceError, match=r"<\|bos\|>"):
        encoder.check_text("a <|bos|> b", "haystack")


def test_the_cache_is_bounded(libraries: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert CACHE_ENTRIES > 1000
    monkeypatch.setattr("seqarch.evaluation.ruler.encoder.CACHE_ENTRIES", 50)
    encoder = PromptEncoder(Tokenizer.from_str(libraries["byte"]), "none")
    for number in range(40):
        pieces = [f" w{number}x{i}" for i in range(20)]
        assert encoder.count(pieces) == len("".join(pieces))
    assert len(encoder._counts) <= 70


class Recording:
    """A tokenizer that remembers what it was asked to encode."""

    def __init__(self, library: Tokenizer) -> None:
        self.library, self.asked = library, list[str]()

    def encode_batch_fast(self, texts: list[str], add_special_tokens: bool) -> list[Encoding]:
        self.asked += texts
        return self.library.encode_batch_fast(texts, add_special_tokens=add_special_tokens)


def test_what_was_counted_is_not_encoded_again(libraries: dict[str, str]) -> None:
    """Fault 36: of a longer prompt only the words that are new, of a UUID hardly any."""
    encoder = PromptEncoder(Tokenizer.from_str(libraries["bpe-1k"]), "none")
    encoder._library = recording = Recording(encoder._library)  # type: ignore[assignment]
    pieces = ["The sky", " is blue.", "\nThe grass", " is green."]
    before = encoder.count(pieces)
    assert sorted(recording.asked) == sorted(
        {*["The", "\n", " sky", " is", " blue", "."], *[" grass", " green"]}
    )
    recording.asked.clear()
    assert encoder.count([*pieces, "\nThe sky", " is red."]) > before
    assert recording.asked == [" red"]
    for number in range(300):
        encoder.count([f"x {uuid.UUID(int=number * 7**40, version=4)}"])
    recording.asked.clear()
    encoder.count([f"x {uuid.UUID(int=11**35, version=4)}"])
    assert len(recording.asked) < 6
