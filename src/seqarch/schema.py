"""The base of every stage's options: closed models that say what was meant."""

import difflib
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
        if isinstance(data, dict):
            known = list(cls.model_fields)
            for key in data:
                if key not in known:
                    close = difflib.get_close_matches(str(key), known, n=1)
                    hint = (
                        f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(sorted(known))}"
                    )
                    raise PydanticCustomError(
                        "unknown_key", "unknown key {key}: {hint}", {"key": repr(key), "hint": hint}
                    )
        return data


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
    if item["type"] == "unknown_key" or isinstance(value, dict | list):
        return ""
    hint = ""
    if isinstance(value, str) and item["type"] != "missing":
        try:
            float(value)
        except ValueError:
            pass
        else:
            hint = "; YAML reads this as text: write it with a dot and a sign, e.g. 1.0e-3"
    return f" (given: {value!r}{hint})"
