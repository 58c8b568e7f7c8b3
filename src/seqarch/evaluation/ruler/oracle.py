"""Readers that answer from the prompt's text alone. Where they are wrong, the data are."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from seqarch.evaluation.ruler.cwe import N_COMMON
from seqarch.evaluation.ruler.cwe import TEMPLATE as CWE
from seqarch.evaluation.ruler.fwe import NOISE_WORD
from seqarch.evaluation.ruler.fwe import TEMPLATE as FWE
from seqarch.evaluation.ruler.vt import TEMPLATE as VT

_NEEDLE = re.compile(r"One of the special magic \w+ for (.+?) is: (.+?)\.(?=\s|$)")
_ASSIGNMENT = re.compile(r"VAR (\w+) = (?:VAR (\w+)|(\d+))")


def read_answer(record: Mapping[str, Any]) -> str:
    """What a perfect reader says to a record's prompt; for qa, one of the references."""
    task, text = record["task"], record["input"]
    if task.startswith("niah"):
        return ", ".join(niah(text, record["answer_prefix"]))
    if task.startswith("qa"):
        return str(record["outputs"][0])
    return " ".join({"vt": vt, "cwe": cwe, "fwe": fwe}[task](text))


def niah(text: str, answer_prefix: str) -> list[str]:
    """The values of the queried keys."""
    asked = answer_prefix.split(" for ", 1)[1].rsplit(" mentioned in ", 1)[0]
    values: dict[str, list[str]] = {}
    for key, value in _NEEDLE.findall(text):
        values.setdefault(key, []).append(value)
    keys = [asked] if asked in values else re.split(r", and |, ", asked)
    return [value for key in keys for value in values.get(key, [])]


def vt(text: str) -> list[str]:
    """The names that hold the value, along the chain."""
    body, question = _last(text, VT)
    wanted = re.findall(r"\d+", question)[0]
    held: dict[str, str | None] = {}
    for name, other, value in _ASSIGNMENT.findall(body):
        held[name] = value or held.get(other)
    return [name for name, value in held.items() if value == wanted]


def cwe(text: str) -> list[str]:
    """The ten most frequent entries; they may have spaces."""
    body, _ = _last(text, CWE)
    words = re.split(r"(?:^|\s)\d+\. ", body)[1:]
    return [word for word, _ in Counter(words).most_common(N_COMMON)]


def fwe(text: str) -> list[str]:
    """The three most frequent words but the dots."""
    body, _ = _last(text, FWE)
    amounts = Counter(word for word in body.split() if word != NOISE_WORD)
    return [word for word, _ in amounts.most_common(3)]


def _last(text: str, template: str) -> tuple[str, str]:
    """The context of the last task in a text, after solved examples, and the question."""
    opening, closing = template.split("{context}")
    after = text[text.rindex(opening) + len(opening) :]
    mark = closing.split("{")[0]
    place = after.rindex(mark)
    return after[:place], after[place:]
