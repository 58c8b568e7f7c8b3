"""Ours against published: every task and length that a paper printed for the same model (Huang 2025)."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from seqarch.figures.render import Look
from seqarch.figures.spec import FigureJob
from seqarch.figures.style import QUIET, ordered

TABLES = ("ruler",)
COLUMNS = [
    *(
        "arch",
        "task",
        "length",
        "ours",
        "ours_lo",
        "ours_hi",
        "published",
        "difference",
        "lo",
        "hi",
        "differs",
    ),
    *("n", "published_n", "comparable"),
]
PER_ROW = 4
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def plotted(tables: Mapping[str, pd.DataFrame], job: FigureJob) -> pd.DataFrame:
    """A row a model, task and length, per cent; `differs`: the difference's interval leaves out zero."""
    rows = tables["ruler"].dropna(subset=["published", "length"]).copy()
    columns = {"score": "ours", "ci_lo": "ours_lo", "ci_hi": "ours_hi"}
    columns |= {"difference_lo": "lo", "difference_hi": "hi"}
    rows = rows.rename(columns=columns)
    for name in ("ours", "ours_lo", "ours_hi", "published", "difference", "lo", "hi"):
        rows[name] = 100 * rows[name]
    rows["differs"] = (rows["lo"] > 0) | (rows["hi"] < 0)
    return rows.reindex(columns=COLUMNS).sort_values(["arch", "task", "length"]).reset_index(drop=True)


def draw(frame: pd.DataFrame, look: Look) -> Figure:
    """A panel a model; markers are lengths; filled where the two differ."""
    names, lengths = ordered(frame["arch"]), sorted(map(int, frame["length"].unique()))
    markers = {length: MARKERS[i % len(MARKERS)] for i, length in enumerate(lengths)}
    columns = min(PER_ROW, len(names))
    lines = -(-len(names) // columns)
    size = (1.0 + 2.0 * columns, 1.3 + 2.0 * lines)
    figure, grid = plt.subplots(lines, columns, figsize=size, sharex=True, sharey=True, squeeze=False)
    for axes, name in zip(grid.flat, names, strict=False):
        _panel(axes, frame[frame["arch"] == name], markers, look[name].colour)
        axes.set_title(name, color=look[name].colour)
    for axes in list(grid.flat)[len(names) :]:
        axes.set_visible(False)
    grid[0, 0].set_xlim(-3, 103)
    grid[0, 0].set_ylim(-3, 103)
    figure.supxlabel("published score (%)", fontsize=8)
    figure.supylabel("our score (%)", fontsize=8)
    plain: dict[str, Any] = {"linestyle": "none", "color": QUIET, "markersize": 4.5}
    handles = [
        Line2D([], [], marker=marker, markerfacecolor="none", label=f"{length:,} tokens", **plain)
        for length, marker in markers.items()
    ]
    handles.append(Line2D([], [], marker="o", label="95 % interval of the difference without 0", **plain))
    figure.legend(handles=handles, ncols=min(4, len(handles)), loc="outside upper center")
    return figure


def _panel(axes: Axes, rows: pd.DataFrame, markers: Mapping[int, str], colour: str) -> None:
    axes.plot([0, 100], [0, 100], color=QUIET, linewidth=0.8)
    for (length, differs), part in rows.groupby(["length", "differs"]):
        marker = markers[int(float(str(length)))]
        bars = [part["ours"] - part["ours_lo"], part["ours_hi"] - part["ours"]]
        axes.errorbar(
            part["published"],
            part["ours"],
            yerr=bars,
            linestyle="none",
            marker=marker,
            markersize=3.4,
            markerfacecolor=colour if differs else "none",
            color=colour,
            elinewidth=0.5,
            markeredgewidth=0.7,
        )
    axes.set_aspect("equal")
