"""Every mixer of the registry, with each of its switches turned once: what the property tests run over."""

import typing
from typing import Any, Literal, NamedTuple

import pytest
import torch
from pydantic import ValidationError

from seqarch.architecture import resolve
from seqarch.errors import ConfigError
from seqarch.mixers import registry
from seqarch.model import Decoder

VOCAB, D_MODEL, LAYERS, MAX_LENGTH = 40, 64, 2, 256
NUMERIC_SWITCHES = {"window": 9, "temperature": 0.5, "rope_fraction": 0.5}


class Variant(NamedTuple):
    """A mixer with at most one switch away from its default."""

    mixer: str
    switches: dict[str, Any]

    def __str__(self) -> str:
        return "-".join([self.mixer, *(f"{key}={value}" for key, value in self.switches.items())])

    def resolved(self) -> dict[str, Any]:
        entry = {"mixer": self.mixer, "hidden": 16, "layers": LAYERS, **self.switches}
        return resolve("x", {"x": entry}, {"d_model": D_MODEL, "n_layers": LAYERS}, VOCAB, MAX_LENGTH)

    def model(self, dtype: torch.dtype = torch.float64, noise: float = 0.05) -> Decoder:
        """A model away from its initial values, where zeros would hide errors."""
        model = Decoder(self.resolved()).to(dtype)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(noise * torch.randn(parameter.shape, generator=generator).to(dtype))
        return model


def variants() -> list[Variant]:
    found = []
    for mixer in registry.names():
        found.append(Variant(mixer, {}))
        for key, field in registry.config_class(mixer).model_fields.items():
            values: list[Any] = []
            if isinstance(field.default, bool):
                values = [not field.default]
            elif (
                typing.get_origin(field.annotation) is Literal and len(typing.get_args(field.annotation)) > 1
            ):
                values = [value for value in typing.get_args(field.annotation) if value != field.default]
            elif key in NUMERIC_SWITCHES:
                values = [NUMERIC_SWITCHES[key]]
            found += [Variant(mixer, {key: value}) for value in values]
    return [variant for variant in found if _valid(variant)]


def _valid(variant: Variant) -> bool:
    try:
        variant.resolved()
    except (ConfigError, ValidationError):
        return False  # a switch that needs another one beside it
    return True


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "variant" in metafunc.fixturenames:
        metafunc.parametrize("variant", variants(), ids=str)
    if "mixer" in metafunc.fixturenames:
        metafunc.parametrize("mixer", registry.names())
