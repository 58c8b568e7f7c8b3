"""One architecture, one look, whatever else is drawn."""

import itertools

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from seqarch.figures.style import compact, guessed_mixers, ordered, styles
from seqarch.mixers import registry

DEMO = {
    "transformer": ("attention",),
    "window-32": ("attention",),
    "window-128": ("attention",),
    "retnet": ("retnet",),
    "gla": ("gla",),
    "mamba2": ("mamba2",),
    "mamba2-no-conv": ("mamba2",),
    "mamba2-attn": ("mamba2", "attention"),
}


def test_every_architecture_has_its_own_look():
    look = styles(DEMO)
    assert set(look) == set(DEMO)
    assert len({style.colour for style in look.values()}) == len(DEMO)
    for mixers in set(DEMO.values()):
        names = [name for name in DEMO if DEMO[name] == mixers]
        assert len({look[name].marker for name in names}) == len(names)


def test_order_of_the_configuration_does_not_matter():
    assert styles(dict(reversed(DEMO.items()))) == styles(DEMO)


def test_another_family_changes_no_colour():
    smaller = {name: mixers for name, mixers in DEMO.items() if mixers != ("gla",)}
    look = styles(DEMO)
    assert styles(smaller) == {name: look[name] for name in smaller}


def test_registered_mixers_are_told_apart_by_every_eye():
    """Colours of different mixers differ in normal vision and, with the marker, in simulated deuteranopia."""
    look = styles({name: (name,) for name in registry.names()})
    # Viénot, Brettel and Mollon (1999), linear RGB of a dichromat without green cones
    deuteranopia = np.array([[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]])
    for a, b in itertools.combinations(look.values(), 2):
        first, second = (np.array(to_rgb(style.colour)) ** 2.2 for style in (a, b))
        assert np.abs(first - second).max() > 0.02
        seen = np.abs(deuteranopia @ (first - second)).max()
        assert seen > 0.02 or a.marker != b.marker


@pytest.mark.parametrize(
    ("name", "mixer"),
    [
        ("transformer", "attention"),
        ("window-256", "attention"),
        ("mamba2-no-conv", "mamba2"),
        ("gated-deltanet", "gated_deltanet"),
        ("gla", "gla"),
        ("something", "something"),
    ],
)
def test_mixers_from_names(name, mixer):
    assert guessed_mixers(name) == (mixer,)


def test_the_reference_comes_first_and_numbers_are_numbers():
    assert ordered(["window-128", "gla", "transformer", "window-32"]) == [
        "transformer",
        "gla",
        "window-32",
        "window-128",
    ]
    assert ordered(["a", "b"], "b") == ["b", "a"]


def test_counts_for_people():
    assert [compact(v) for v in (0, 950, 1200, 34_000_000, 250_000, 1e11)] == [
        "0",
        "950",
        "1.2k",
        "34M",
        "250k",
        "100G",
    ]
