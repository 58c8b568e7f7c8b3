"""Which entries of a run realise a claim."""

from collections.abc import Mapping
from typing import Any

from seqarch.analysis.claims_spec import RELATIVE, Claim, Entry, Selector

Pair = tuple[str, str | None]  # compared entry, reference


def bind(claim: Claim, entries: Mapping[str, Entry]) -> tuple[list[Pair], str]:
    """All pairs of entries that the claim is about, in the order of `entries`; if there are none, why."""
    compared = [name for name, entry in entries.items() if selects(claim.compare, entry)]
    if not compared:
        return [], f"no architecture of this run is {words(claim.compare)}"
    if claim.reference is None:
        return [(name, None) for name in compared], ""
    pairs: list[Pair] = [
        (name, other)
        for name in compared
        for other, entry in entries.items()
        if other != name and selects(claim.reference, entry, entries[name])
    ]
    return pairs, "" if pairs else f"no architecture of this run is the reference: {words(claim.reference)}"


def selects(selector: Selector, entry: Entry, compared: Entry | None = None) -> bool:
    """Whether the selector means this entry; `compared` is what a reference's relative words refer to."""
    if selector.pattern is not None:
        return entry.pattern and (selector.pattern == "any" or set(selector.pattern) == set(entry.mixers))
    if entry.pattern or not _mixer(selector, entry, compared):
        return False
    if not set(entry.changed) <= set(selector.switches):
        return False
    return all(_switch(name, wanted, entry, compared) for name, wanted in selector.switches.items())


def _mixer(selector: Selector, entry: Entry, compared: Entry | None) -> bool:
    if selector.mixer == "any":
        return True
    if selector.mixer == "same":
        return compared is not None and entry.mixers == compared.mixers
    names = (selector.mixer,) if isinstance(selector.mixer, str) else selector.mixer or ()
    return entry.mixers[0] in names


def _switch(name: str, wanted: Any, entry: Entry, compared: Entry | None) -> bool:
    if name not in entry.values:
        return False
    value = entry.values[name]
    if wanted == "any":
        return True
    if wanted == "set":
        return name in entry.changed
    if wanted in RELATIVE:
        if compared is None or name not in compared.values:
            return False
        other = compared.values[name]
        if wanted == "same":
            return value == other
        if value is None or other is None:  # no window at all is not the largest of windows
            return False
        return value > other if wanted == "larger" else value < other
    return value in wanted if isinstance(wanted, tuple) else value == wanted


def words(selector: Selector) -> str:
    """The selector as a reader says it."""
    if selector.pattern is not None:
        return "a pattern" + ("" if selector.pattern == "any" else f" of {', '.join(selector.pattern)}")
    names = selector.mixer if isinstance(selector.mixer, str) else " or ".join(selector.mixer or ())
    switches = ", ".join(f"{name}: {_text(value)}" for name, value in selector.switches.items())
    mixer = {"any": "any mixer", "same": "the same mixer"}.get(names, names)
    return f"{mixer} with {switches}" if switches else f"{mixer} as published"


def _text(value: Any) -> str:
    return " or ".join(map(str, value)) if isinstance(value, tuple) else str(value)
