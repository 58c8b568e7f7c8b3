"""How things look: one architecture has one colour, marker and dash in every figure.

Colours are told apart by eyes of every kind because hue, lightness, marker and dash change together: the
hue names the family, the marker the mixer, the dash whether it attends, recurs, selects or mixes (hybrid).
The first colours are Okabe and Ito's (2008), the others Tol's (2021).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

matplotlib.use("Agg")

RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same glyphs everywhere
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.3,
    "svg.hashsalt": "seqarch",
    "svg.fonttype": "path",
    "figure.constrained_layout.use": True,
    "path.simplify": False,
}
INK, QUIET, BAND = "#222222", "#6f6f6f", "#eef1f5"

_RECURRENT = (0, (5, 1.4))
_SELECTING = (0, (1.2, 1.1))
_HYBRID = (0, (5, 1.4, 1.2, 1.4))

# mixer -> colour, marker, dash
_MIXERS: dict[str, tuple[str, str, Any]] = {
    "attention": ("#0072b2", "o", "-"),
    "top1_element": ("#332288", "h", _SELECTING),
    "top1_chunk": ("#7b6fd0", "H", _SELECTING),
    "linear_attention": ("#999933", "v", _RECURRENT),
    "retnet": ("#117733", "s", _RECURRENT),
    "gla": ("#7fb000", "D", _RECURRENT),
    "hgrn2": ("#44aa99", "p", _RECURRENT),
    "mamba1": ("#e69f00", "<", _RECURRENT),
    "mamba2": ("#d55e00", "^", _RECURRENT),
    "rwkv5": ("#dd9fc0", "d", _RECURRENT),
    "rwkv6": ("#cc79a7", "8", _RECURRENT),
    "rwkv7": ("#882255", "P", _RECURRENT),
    "deltanet": ("#aa4499", ">", _RECURRENT),
    "gated_deltanet": ("#661100", "X", _RECURRENT),
    "rglru": ("#8c564b", "d", _RECURRENT),
    "attention+mamba2": ("#111111", "*", _HYBRID),
    "attention+rglru": ("#bbaa33", "p", _HYBRID),
}
ATTENDING = frozenset(
    {"attention", "top1_element", "top1_chunk"}
)  # they keep all keys: no state of fixed size
_OTHER = ("#6f6f6f", "o", _RECURRENT)
_PLAIN_NAMES = {"attention": "transformer"}  # the entry that bears a mixer's own colour, if not its own name
_KNOWN_NAMES = {"transformer": "attention", "window": "attention", "random-keys": "attention"}
_VARIANTS = (0.45, -0.4, 0.62, -0.65)  # towards white, towards black
_VARIANT_MARKERS = ("D", "s", "^", "v", "P", "X", "<", ">", "p", "h")


@dataclass(frozen=True)
class Style:
    """How one architecture is drawn."""

    colour: str
    marker: str
    dash: Any

    def line(self, **changes: Any) -> dict[str, Any]:
        """Keyword arguments of a line with its markers."""
        return {
            "color": self.colour,
            "marker": self.marker,
            "linestyle": self.dash,
            "markeredgewidth": 0.8,
            **changes,
        }

    def points(self, **changes: Any) -> dict[str, Any]:
        """Keyword arguments of markers alone."""
        return self.line(linestyle="none", **changes)


def styles(architectures: Mapping[str, Iterable[str]]) -> dict[str, Style]:
    """The style of every entry of an experiment: entry -> its mixers.

    The entry named like its mixer has the mixer's colour; the others are variants of it, lighter and darker
    in turn, in natural order of their names. Give all entries of the experiment, drawn or not: then a
    figure of some of them uses the same colours.
    """
    families: dict[str, list[str]] = {}
    for name, mixers in architectures.items():
        families.setdefault("+".join(sorted(set(mixers))), []).append(name)
    result = {}
    for family, names in families.items():
        colour, marker, dash = _MIXERS.get(family, _OTHER)
        if "+" in family:
            dash = _HYBRID
        plain = {_PLAIN_NAMES.get(family, family), family.replace("_", "-")}
        ordered = sorted(names, key=lambda name: (name not in plain, _natural(name)))
        bears_it = ordered[0] in plain or family not in _MIXERS or "+" in family  # no mixer is named so
        first = 0 if bears_it else 1
        for i, name in enumerate(ordered, first):
            shade = 0.0 if i == 0 else _VARIANTS[(i - 1) % len(_VARIANTS)]
            mark = marker if i == 0 else _VARIANT_MARKERS[(i - 1) % len(_VARIANT_MARKERS)]
            result[name] = Style(_shaded(colour, shade), mark, dash)
    return result


def guessed_mixers(name: str) -> tuple[str, ...]:
    """The mixer an entry's name suggests, for tables without a configuration."""
    for prefix, mixer in [
        *_KNOWN_NAMES.items(),
        *((mixer, mixer) for mixer in sorted(_MIXERS, reverse=True)),
    ]:
        if name.replace("_", "-").startswith(prefix.replace("_", "-")):
            return (mixer,)
    return (name,)


def _natural(name: str) -> list[tuple[float, str]]:
    parts = re.split(r"(\d+(?:\.\d+)?)", name)
    return [(float(part) if i % 2 else -1.0, part) for i, part in enumerate(parts)]


def ordered(architectures: Iterable[str], reference: str | None = None) -> list[str]:
    """Names in natural order, the reference first (without one: transformer)."""
    return sorted(set(architectures), key=lambda name: (name != (reference or "transformer"), _natural(name)))


def _shaded(colour: str, amount: float) -> str:
    """Mixed with white (amount > 0) or black (amount < 0)."""
    other = (1.0, 1.0, 1.0) if amount > 0 else (0.0, 0.0, 0.0)
    red, green, blue = (
        (1 - abs(amount)) * a + abs(amount) * b for a, b in zip(to_rgb(colour), other, strict=True)
    )
    return to_hex((red, green, blue))


# --- parts of figures ---------------------------------------------------------------------------------


def domain_title(domain: str) -> str:
    """A domain as people read it."""
    return {"macro_ood": "out-of-domain mean", "macro_id": "in-domain mean"}.get(
        domain, domain.replace("_", " ")
    )


def architecture_legend(
    figure: Figure, names: Iterable[str], look: Mapping[str, Style], extra: Iterable[Any] = ()
) -> None:
    """One legend above all panels, where it hides no data."""
    handles = [Line2D([], [], label=name, markersize=4.5, **look[name].line()) for name in names]
    handles += list(extra)
    longest = max(len(str(handle.get_label())) for handle in handles)
    most = max(2, int(figure.get_figwidth() / max(1.35, 0.65 + 0.075 * longest)))
    rows = -(-len(handles) // most)
    columns = -(-len(handles) // rows)
    place: dict[str, Any] = {"loc": "outside upper center", "handlelength": 2.8, "columnspacing": 1.4}
    figure.legend(handles=handles, ncols=columns, **place)


def seeds_words(n_seeds: Iterable[float]) -> str:
    """`n = 3 seeds`, from the numbers of seeds of what is drawn."""
    counts = sorted({int(n) for n in n_seeds if n == n})
    if not counts:
        return ""
    words = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"n = {words} seed" + ("s" if counts[-1] > 1 else "")


def side_label(axes: Axes, text: str) -> None:
    """The name of a row of panels, at its left."""
    axes.set_ylabel(text, fontsize=9, fontweight="bold", color=INK)


def compact(value: float) -> str:
    """A count as 950, 1.2k, 34M."""
    for size, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            scaled = value / size
            digits = 0 if scaled >= 100 or scaled == int(scaled) else 1
            return f"{scaled:.{digits}f}{suffix}"
    return f"{value:.0f}"
