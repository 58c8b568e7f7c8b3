"""How a comparison at equal in-domain loss is drawn: estimate, interval, seeds, and the verdict as a fill."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from seqarch.figures.style import BAND, INK, QUIET

VERDICTS = {  # verdict -> fill of the mark, words of the legend
    "different": ("full", "different (Holm p < {alpha:g})"),
    "different_within_margin": ("left", "different, but within the margin"),
    "equivalent": ("bottom", "equivalent (within the margin)"),
    "inconclusive": ("none", "inconclusive"),
}
MISSING: dict[str, Any] = {
    "ha": "center",
    "va": "center",
    "fontsize": 6.5,
    "color": QUIET,
    "bbox": {"facecolor": "white", "edgecolor": "#bbbbbb", "hatch": "////", "linewidth": 0.4, "pad": 1.5},
}


def fill_of(verdict: Any) -> dict[str, Any]:
    """Keyword arguments of a mark."""
    fill = VERDICTS.get(verdict, ("none", ""))[0]
    if fill == "none":
        return {"fillstyle": "full", "markerfacecolor": "white"}
    return {"fillstyle": fill, "markerfacecoloralt": "white"}


def estimate(
    axes: Axes, place: float, row: pd.Series, seeds: pd.Series, colour: str, below: float = 0.26
) -> None:
    """A mean with its interval, filled by its verdict, its seeds as ticks `below` it."""
    if np.isfinite(row["lo"]):
        axes.plot([row["lo"], row["hi"]], [place, place], color=colour, linewidth=1.4, zorder=2)
    axes.plot(seeds, np.full(len(seeds), place + below), "|", color=colour, markersize=4, alpha=0.8)
    mark: dict[str, Any] = {"color": colour, "marker": "o", "markeredgewidth": 1.1, "linestyle": "none"}
    axes.plot([row["mean"]], [place], markersize=5.5, zorder=3, **mark, **fill_of(row["verdict"]))


def verdict_legend(figure: Figure, frame: pd.DataFrame) -> None:
    """What fills mean, for the verdicts that occur; the interval, the seeds and the margin."""
    handles: list[Artist] = []
    mark: dict[str, Any] = {"color": INK, "marker": "o", "markersize": 5.5, "linestyle": "none"}
    alpha = round(1 - frame["confidence"].max(), 6)
    for verdict, (_, words) in VERDICTS.items():
        if (frame["verdict"] == verdict).any():
            handles.append(Line2D([], [], label=words.format(alpha=alpha), **mark, **fill_of(verdict)))
    level = f"{frame['confidence'].max():.0%} interval".replace("%", " %")
    handles.append(Line2D([], [], color=INK, linewidth=1.4, label=level))
    handles.append(Line2D([], [], color=INK, marker="|", linestyle="none", markersize=5, label="one seed"))
    margin = frame["margin"].max()
    handles.append(Patch(facecolor=BAND, edgecolor="#c9d0da", linewidth=0.5, label=f"margin ±{margin:g}"))
    columns = min(len(handles), max(2, int(figure.get_figwidth() / 2.2)), 4)
    outside = figure.get_layout_engine() is not None
    place: dict[str, Any] = {"loc": "outside upper center" if outside else "upper center"}
    figure.legend(handles=handles, ncols=columns, columnspacing=1.4, **place)
