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
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, str) and wants & {int, float} and str not in wants and _is_number(each):
                    raise PydanticCustomError(
                        "number_as_text",
                        "{key}: expected a number, and YAML reads {given} as text: write it with a dot and a "
                        "sign, e.g. 1.0e-3",
                        {"key": key, "given": each},
                    )
        return data

    @classmethod
    @functools.cache
    def _types_of(cls, key: str) -> frozenset[type]:
        return frozenset(_types(cls.model_fields[key].annotation))


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


def explain(error: ValidationError, where: str) -> str:
    """A validation error as lines a user can act on: `where.key: problem (given: …)`."""
    lines = []
    for item in error.errors(include_url=False):
        place = ".".join([where, *(str(part) for part in item["loc"])]).strip(".")
        lines.append(f"{place}: {item['msg']}{_given(item)}")
    return "\n".join(lines)


def _given(item: Any) -> str:
    value = item["input"]
    told = item["type"] in ("unknown_key", "number_as_text")
    return "" if told or isinstance(value, dict | list) else f" (given: {value!r})"
