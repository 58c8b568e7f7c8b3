"""The mixers there are: one folder each, found by its two files, loaded when asked for.

Adding a folder adds the mixer and changes no other module, hence no other run's fingerprint.
"""

import difflib
import functools
import importlib
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from seqarch.errors import ConfigError
from seqarch.mixers.base import MixerConfig

if TYPE_CHECKING:
    from seqarch.mixers.layer import Mixer, SharedParameters

FOLDER = Path(__file__).parent


class UnknownMixer(ConfigError):
    """A mixer was named that has no folder."""


@functools.cache
def names() -> tuple[str, ...]:
    """Names of all mixers, sorted."""
    files = FOLDER.glob("*/config.py")
    return tuple(sorted(file.parent.name for file in files if (file.parent / "module.py").is_file()))


def config_class(name: str) -> type[MixerConfig]:
    """The mixer's configuration (no torch)."""
    return _load(name, "config").Config


def module_class(name: str) -> "type[Mixer]":
    """The mixer's layer: built from a configuration, called as `seqarch.mixers.layer.Mixer` says."""
    return _load(name, "module").Mixer


def channel_class(name: str) -> "type[Mixer]":
    """The mixer's own channel mixer (`channel_mixer` = "own")."""
    return _load(name, "module").ChannelMixer


def shared_class(name: str) -> "type[SharedParameters]":
    """The mixer's model-level parameters (`has_shared`): built from the configurations of all its blocks."""
    return _load(name, "module").Shared


def _load(name: str, file: str) -> ModuleType:
    if name not in names():
        close = difflib.get_close_matches(str(name), names(), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known mixers: {', '.join(names())}"
        raise UnknownMixer(f"no mixer {name!r}: {hint}")
    return importlib.import_module(f"seqarch.mixers.{name}.{file}")
