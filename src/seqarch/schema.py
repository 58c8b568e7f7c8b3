"""The base of every stage's options: closed models that say what was meant."""

import difflib
import functools
import typing
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from seqarch.errors import ConfigError


class Spec(BaseModel):
    """A closed, frozen pydantic model. Unknown keys are errors with a "did you mean"."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _suggest(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for key, value in data.items():
            if key not in cls.model_fields:
                hint = did_you_mean(str(key), cls.model_fields)
                raise PydanticCustomError(
                    "unknown_key", "unknown key {key}: {hint}", {"key": repr(key), "hint": hint}
                )
            wants = cls._types_of(key)
            if wants & {int, float}:
                for each in value if isinstance(value, list) else [value]:
                    _check_number(key, each, wants)
        return data

    @classmethod
    @functools.cache
    def _types_of(cls, key: str) -> frozenset[type]:
        return frozenset(_types(cls.model_fields[key].annotation))


def _check_number(key: str, given: Any, wants: frozenset[type]) -> None:
    """What YAML reads as text or as yes and no, where a number belongs."""
    if isinstance(given, str) and str not in wants and _is_number(given):
        how = "with a dot and a sign, e.g. 1.0e-3" if "e" in given.lower() else "without quotes"
        raise PydanticCustomError(
            "number_as_text",
            "{key}: expected a number, and YAML reads {given} as text: write it {how}",
            {"key": key, "given": given, "how": how},
        )
    if isinstance(given, bool) and bool not in wants:
        raise PydanticCustomError(
            "bool_as_number",
            "{key}: expected a number, not {given}",
            {"key": key, "given": str(given).lower()},
        )


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the name that was probably meant, else all there are."""
    names = list(known)
    close = difflib.get_close_matches(given, names, n=1) or [name for name in names if name.startswith(given)]
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(names)) or 'none'}"


def _types(annotation: Any) -> Iterator[type]:
    """The plain types that an annotation is made of."""
    if isinstance(annotation, type):
        yield annotation
    for each in typing.get_args(annotation):
        yield from _types(each)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


S = TypeVar("S", bound=Spec)


def parse(model: type[S], value: Any, where: str = "spec") -> S:
    """The validated options, or a ConfigError with one line a problem."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise ConfigError(explain(error, where)) from error


MEANT = {  # pydantic's kinds of error, in words of the configuration
    "tuple_type": "expected a list, e.g. [0, 1]",
    "dict_type": "expected a mapping",
    "union_tag_not_found": "expected a mapping that says its `kind`",
}


def explain(error: ValidationError, where: str) -> str:
    """A validation error as lines a user can act on: `where.key: problem (given: …)`."""
    items = error.errors(include_url=False)
    lines = []
    for item in items:
        below = [other["loc"] for other in items if len(other["loc"]) > len(item["loc"])]
        if item["type"] == "too_short":
            if any(loc[: len(item["loc"])] == item["loc"] for loc in below):
                continue  # of its entries none was valid
            least = item["ctx"]["min_length"]
            item["msg"] = f"expected at least {'one entry' if least == 1 else f'{least} entries'}"
        names = [str(part) for part in item["loc"] if not _is_type(part)]
        place = ".".join([where, *names]).strip(".")
        told = MEANT.get(item["type"], item["msg"]) + _given(item)
        lines.append(f"{place}: {told}" if place else told)
    return "\n".join(dict.fromkeys(lines))


def _is_type(part: int | str) -> bool:
    """Whether a place's part is none of the configuration, but which type of several pydantic tried."""
    if not isinstance(part, str):
        return False
    return "[" in part or part.startswith(("constrained-", "function-")) or part in _names(Spec)


def _names(base: type[Spec]) -> Iterator[str]:
    """Of all models of options."""
    for each in base.__subclasses__():
        yield each.__name__
        yield from _names(each)


def _given(item: Any) -> str:
    value = item["input"]
    told = item["type"] in ("unknown_key", "number_as_text", "bool_as_number")
    return "" if told or isinstance(value, dict | list) else f" (given: {value!r})"
