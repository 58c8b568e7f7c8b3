"""Claims and architectures as the workflow hands them to `cli.claims`. No torch."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from seqarch.analysis.claims_spec import Claim, ClaimsFile, Entry, Selector
from seqarch.architecture import ModelSpec, mixer_names, resolve
from seqarch.errors import ConfigError
from seqarch.mixers import registry
from seqarch.mixers.base import PLACE
from seqarch.schema import parse

MIXER_WORDS = ("any", "same")


def load_claims(path: Path) -> ClaimsFile:
    """The claims of a YAML file. Raises ConfigError, also for a mixer or a switch that does not exist: the
    claim would never find anything."""
    try:
        claims = parse(ClaimsFile, yaml.safe_load(path.read_text(encoding="utf-8")), path.name)
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path.name}: expected a YAML file with the key claims: {error}") from error
    if problems := [problem for claim in claims.claims for problem in _problems(claim)]:
        raise ConfigError("\n".join(f"{path.name}, {problem}" for problem in problems))
    return claims


def _problems(claim: Claim) -> Iterator[str]:
    for where, selector in (("compare", claim.compare), ("reference", claim.reference)):
        if selector is None:
            continue
        try:
            mixers = _mixers(selector)
            configs = [registry.config_class(name) for name in mixers]
        except ConfigError as error:
            yield f"{claim.id}.{where}: {error}"
            continue
        known = {field for config in configs for field in config.model_fields} - set(PLACE)
        for switch in sorted(set(selector.switches) - known):
            yield f"{claim.id}.{where}: no switch {switch!r} in {', '.join(mixers)}"


def _mixers(selector: Selector) -> tuple[str, ...]:
    """The mixers that a selector may mean; all of them for `any` and `same`."""
    named = selector.mixer if selector.pattern is None else selector.pattern
    if named is None or named in MIXER_WORDS:
        return registry.names()
    return (named,) if isinstance(named, str) else named


def realised(
    entries: Mapping[str, Mapping[str, Any]],
    models: Mapping[str, Mapping[str, Any]],
    sizes: ModelSpec,
    vocab_size: int,
    sequence_length: int,
) -> dict[str, Entry]:
    """What each entry of `architectures` is, for selectors.

    Args:
        models: entry -> its resolved model; the other arguments are those of `architecture.resolve`.
    """
    result = {}
    for name, entry in entries.items():
        mixers = tuple(mixer_names(models[name]))
        if "pattern" in entry:
            result[name] = Entry(mixers=mixers, pattern=True)
            continue
        plain = {"plain": {"mixer": entry["mixer"]}}
        published = resolve("plain", plain, sizes, vocab_size, sequence_length)["layers"][0]["config"]
        config = models[name]["layers"][0]["config"]
        changed = [key for key in entry if key in published and config[key] != published[key]]
        values = {key: value for key, value in config.items() if key not in PLACE}
        result[name] = Entry(mixers=mixers, values=values, changed=tuple(changed))
    return result
