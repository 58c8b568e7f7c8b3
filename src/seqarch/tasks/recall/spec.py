"""Options of the recall tasks: what a sequence holds, in training and in the test. No torch, no numpy."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt, field_validator, model_validator

from seqarch.schema import Spec

Depth = Annotated[float, Field(ge=0, le=100)]
Lengths = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]

LETTERS, DIGITS = "abcdefghijklmnopqrstuvwxyz", "0123456789"
# Every text task has its own characters; the first one fills what is left of a sequence.
NEEDLE_ALPHABET = "~" + LETTERS + DIGITS + "KEYVAL =;"
COPY_ALPHABET = "*" + LETTERS + "$|."
PHONEBOOK_ALPHABET = "~" + LETTERS + LETTERS.upper() + DIGITS + ": \n"
PASSKEY_NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
PASSKEY_LINE = "The pass key is {}. Remember it.\n"
PASSKEY_QUESTION = "What is the pass key? The pass key is "
DIGITS_OF_PASSKEY = 5
PASSKEY_ALPHABET = "~" + LETTERS + DIGITS + "AHITWR .?\n"


def _distinct(values: tuple) -> tuple:
    if len(set(values)) != len(values):
        raise ValueError(f"each value once, please: {list(values)}")
    return values


class _Task(Spec):
    """What all tasks share.

    Attributes:
        steps, batch_size: of training; sequences of one batch.
    """

    metric: ClassVar[Literal["accuracy", "exact"]] = "exact"
    steps: PositiveInt
    batch_size: PositiveInt = 64

    @property
    def vocab_size(self) -> int:
        raise NotImplementedError

    @property
    def train_length(self) -> int:
        """T, tokens of a training sequence."""
        raise NotImplementedError

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence of the test."""
        raise NotImplementedError

    @property
    def chance(self) -> float:
        """The score of a guess."""
        return 0.0


class Mqar(_Task):
    """Multi-query associative recall (Zoology, arXiv 2312.04927): pairs, then each key once more."""

    metric = "accuracy"
    kind: Literal["mqar"]
    vocab: Annotated[int, Field(ge=4, multiple_of=2)]  # filler 0, keys 1 … V/2 - 1, values V/2 … V - 1
    length: PositiveInt
    pairs: Lengths  # of a training batch, in turn
    placement: Literal["uniform", "power"] = "uniform"
    power: Annotated[float, Field(gt=0)] = 0.01  # exponent a of the gaps' density, placement power
    test_lengths: Lengths
    test_pairs: Lengths

    @model_validator(mode="after")
    def _fits(self) -> "Mqar":
        _distinct(self.test_lengths), _distinct(self.test_pairs)
        n_keys = self.vocab // 2 - 1
        for pairs in (*self.pairs, *self.test_pairs):
            if pairs > n_keys:
                raise ValueError(f"{pairs} pairs need as many keys: vocab {self.vocab} has {n_keys}")
        if 4 * max(self.pairs) > self.length:
            raise ValueError(
                f"pairs {max(self.pairs)}: a sequence of {self.length} holds at most {self.length // 4}"
            )
        for pairs in self.test_pairs:
            if 4 * pairs > self.longest:
                raise ValueError(f"test_pairs {pairs}: the longest sequence holds {self.longest // 4}")
        odd = [length for length in (self.length, *self.test_lengths) if length % 2]
        if self.placement == "power" and odd:
            raise ValueError(f"length {odd[0]}: placement power needs even lengths")
        return self

    @property
    def vocab_size(self) -> int:
        return self.vocab

    @property
    def train_length(self) -> int:
        return self.length

    @property
    def longest(self) -> int:
        return max(self.test_lengths)

    @property
    def chance(self) -> float:
        return 1 / (self.vocab // 2)


class _Deep(_Task):
    """A line hidden at a depth of a haystack of lines."""

    length: PositiveInt
    test_lengths: Lengths
    depths: Annotated[tuple[Depth, ...], Field(min_length=1)] = (0, 20, 40, 50, 60, 80, 100)

    @field_validator("test_lengths", "depths")
    @classmethod
    def _once(cls, values: tuple) -> tuple:
        return _distinct(values)

    @property
    def train_length(self) -> int:
        return self.length

    @property
    def longest(self) -> int:
        return max(self.test_lengths)


class NeedleLines(_Deep):
    """`KEY=abc VAL=1234;` among noise lines; the end asks `KEY=abc VAL=` for the digits."""

    kind: Literal["needle_lines"]
    noise: Literal["letters", "keys"] = "letters"  # lines of letters, or of other keys and their values
    key_letters: Annotated[int, Field(ge=1, le=8)] = 3
    value_digits: Annotated[int, Field(ge=1, le=8)] = 4

    @property
    def line(self) -> int:
        """Characters of a line."""
        return len("KEY= VAL=;") + self.key_letters + self.value_digits

    @property
    def question(self) -> int:
        """Input tokens from the question on: the last digit is predicted, never read."""
        return self.line - 2

    def lines(self, length: int) -> int:
        """Lines of a sequence of `length` tokens, the needle among them."""
        return (length - self.question) // self.line

    @model_validator(mode="after")
    def _fits(self) -> "NeedleLines":
        for length in (self.length, *self.test_lengths):
            if self.lines(length) < 2:
                least = 2 * self.line + self.question
                raise ValueError(f"length {length}: two lines and the question need {least}")
            if self.noise == "keys" and self.lines(length) > len(LETTERS) ** self.key_letters // 2:
                raise ValueError(
                    f"length {length}: more lines than half of the {self.key_letters}-letter keys"
                )
        return self

    @property
    def vocab_size(self) -> int:
        return len(NEEDLE_ALPHABET)

    @property
    def chance(self) -> float:
        return 10.0**-self.value_digits


class Passkey(_Deep):
    """A number of five digits in a sentence among RULER's noise lines."""

    kind: Literal["passkey"]

    @model_validator(mode="after")
    def _fits(self) -> "Passkey":
        for length in (self.length, *self.test_lengths):
            if self.n_noise(length) < 1:
                least = self.alone + len(PASSKEY_NOISE)
                raise ValueError(f"length {length}: one line of noise and the question need {least}")
        return self

    @property
    def alone(self) -> int:
        """Input tokens without noise: the last digit is predicted, never read."""
        return len(PASSKEY_LINE) - len("{}") + len(PASSKEY_QUESTION) + 2 * DIGITS_OF_PASSKEY - 1

    def n_noise(self, length: int) -> int:
        """Lines of noise in a sequence of `length` tokens."""
        return (length - self.alone) // len(PASSKEY_NOISE)

    @property
    def vocab_size(self) -> int:
        return len(PASSKEY_ALPHABET)

    @property
    def chance(self) -> float:
        return 1 / 90_000


class Copying(_Task):
    """`$s|s.` with s of random letters, or the rest of s after a part of it (arXiv 2402.01032)."""

    kind: Literal["copying"]
    variant: Literal["copy", "prefix", "suffix"] = "copy"  # prefix: `$part|s|rest.`; suffix: `$s|part rest.`
    ngram: Annotated[int, Field(ge=1)] = 3  # letters of the part
    letters: tuple[PositiveInt, PositiveInt] = (5, 16)  # least and most of s, in training
    test_letters: Lengths = (16, 24, 32)

    @model_validator(mode="after")
    def _fits(self) -> "Copying":
        _distinct(self.test_letters)
        low, high = self.letters
        if low > high:
            raise ValueError(f"letters {list(self.letters)}: expected the least, then the most")
        shortest = min(low, *self.test_letters)
        if self.variant != "copy" and shortest <= self.ngram:
            raise ValueError(f"{shortest} letters hold no part of {self.ngram} with a letter after it")
        return self

    def length_of(self, letters: int) -> int:
        """Input tokens of a sequence: the final point is predicted, never read."""
        if self.variant == "copy":
            return 2 * letters + 2
        # The rest is longest after the first part.
        marks = 3 if self.variant == "prefix" else 2
        return marks + letters + self.ngram + (letters - self.ngram)

    @property
    def vocab_size(self) -> int:
        return len(COPY_ALPHABET)

    @property
    def train_length(self) -> int:
        return self.length_of(self.letters[1])

    @property
    def longest(self) -> int:
        return self.length_of(max(self.test_letters))


class Phonebook(_Task):
    """Lines `Name: dddddddddd`, two of them again as examples, and a third name to complete."""

    kind: Literal["phonebook"]
    entries: Annotated[int, Field(ge=3)] = 20
    test_entries: Annotated[tuple[Annotated[int, Field(ge=3)], ...], Field(min_length=1)] = (20, 40)

    @field_validator("test_entries")
    @classmethod
    def _once(cls, values: tuple) -> tuple:
        return _distinct(values)

    def length_of(self, entries: int) -> int:
        """Input tokens: lines, a blank line, two lines, a blank line, name, colon, space, nine digits."""
        line = len("Abcdef: 0123456789\n")
        return (entries + 2) * line + 2 + line - 2

    @property
    def vocab_size(self) -> int:
        return len(PHONEBOOK_ALPHABET)

    @property
    def train_length(self) -> int:
        return self.length_of(self.entries)

    @property
    def longest(self) -> int:
        return self.length_of(max(self.test_entries))


RecallTask = Annotated[Mqar | NeedleLines | Copying | Phonebook | Passkey, Field(discriminator="kind")]
