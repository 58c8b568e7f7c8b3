"""Claims as data: `config/claims.yaml`, and the options of `cli.claims`."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from seqarch.analysis.spec import StatisticsSpec
from seqarch.schema import Spec

Scalar = bool | int | float | str | None
RELATIVE = ("same", "larger", "smaller")  # of a reference: how its value stands to the compared entry's


class Selector(Spec):
    """Entries of `architectures`, by what they are instead of by name.

    Attributes:
        mixer: one name, several, `any` (not patterns), or in a reference `same` as the compared entry's.
        pattern: `any` pattern, or one of exactly these mixers.
        switches: switch -> a value, several, `set` (not as published), `any`, or in a reference `same`,
            `larger`, `smaller` than the compared entry's. Switches that are not named are as published.
    """

    mixer: str | tuple[str, ...] | None = None
    pattern: Literal["any"] | tuple[str, ...] | None = None
    switches: dict[str, Scalar | tuple[Scalar, ...]] = {}

    @model_validator(mode="after")
    def _mixer_or_pattern(self) -> "Selector":
        if (self.mixer is None) == (self.pattern is None):
            raise ValueError("give either mixer or pattern")
        if self.pattern is not None and self.switches:
            raise ValueError("switches select among entries of one mixer: give mixer, not pattern")
        return self


class Claim(Spec):
    """One statement about all pairs of entries (compare, reference) that realise it."""

    id: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    text: Annotated[str, Field(min_length=1)]
    source: Annotated[str, Field(min_length=1)]
    kind: Literal["difference", "equivalence", "interaction"]
    measure: Literal["ood_loss", "beyond_training_length", "middle"]
    compare: Selector
    reference: Selector | None = None
    setting: str | None = None  # training setting; scores: none needed where the table has one
    against: str | None = None  # interaction: where the difference is said to be smaller
    sign: Literal["+", "-", "any"] | None = None  # difference: of measure(compare) − measure(reference)
    margin: Annotated[float, Field(gt=0)] | None = None
    domains: tuple[str, ...] = ()  # out-of-domain sets; none: all of the run
    tasks: tuple[str, ...] = ()  # of a table of scores; none: all

    @model_validator(mode="after")
    def _fits(self) -> "Claim":
        if (self.sign is None) == (self.kind == "difference"):
            raise ValueError("sign belongs to a difference, and only there")
        if (self.against is None) == (self.kind == "interaction"):
            raise ValueError("against (the other setting) belongs to an interaction, and only there")
        if self.against is not None and (self.measure != "ood_loss" or self.against == self.setting):
            raise ValueError("an interaction compares the ood_loss of two different settings")
        if self.measure == "ood_loss" and (self.reference is None or self.setting is None):
            raise ValueError("ood_loss at equal in-domain loss needs a reference and a setting")
        if self.measure != "ood_loss" and self.margin is None:
            raise ValueError("a measure of scores needs its margin (0 to 1): statistics.margin is in nats")
        relative = [
            word for word in (self.compare.mixer, *self.compare.switches.values()) if word in RELATIVE
        ]
        if relative:
            raise ValueError(f"{relative[0]} is relative to the compared entry: use it in reference")
        return self


class ClaimsFile(Spec):
    """`config/claims.yaml`."""

    claims: tuple[Claim, ...]

    @model_validator(mode="after")
    def _once(self) -> "ClaimsFile":
        ids = [claim.id for claim in self.claims]
        twice = sorted({each for each in ids if ids.count(each) > 1})
        if twice:
            raise ValueError(f"claims with one id: {', '.join(twice)}; give each its own")
        return self


class Entry(Spec):
    """What an entry of `architectures` is, as selectors see it.

    Attributes:
        mixers: of its blocks, sorted.
        pattern: whether the entry is a pattern of others.
        values: its mixer's switches and sizes; empty for a pattern.
        changed: the switches that are not as published.
    """

    mixers: tuple[str, ...]
    pattern: bool = False
    values: dict[str, Any] = {}
    changed: tuple[str, ...] = ()


class ClaimsJob(ClaimsFile):
    """`cli.claims`."""

    experiment: str
    architectures: dict[str, Entry]
    learners: dict[str, Entry] = {}  # that learn recall tasks, and nothing else
    published: dict[str, Entry] = {}  # models that others trained; their scores alone are known
    domains: dict[str, Literal["in", "out"]]
    statistics: StatisticsSpec
