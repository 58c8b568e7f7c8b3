"""Downstream tasks: accuracy minus chance, for each architecture; what is at chance is greyed."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from seqarch.figures.render import Look
from seqarch.figures.spec import FigureJob
from seqarch.figures.style import INK, QUIET, Style, ordered, side_label

TABLES = ("downstream",)
COLUMNS = [
    *("kind", "setting", "task", "metric", "arch", "seed", "score", "chance", "above", "lo", "hi"),
    *("at_chance", "n", "n_seeds", "n_truncated"),
]
GREY = "#b4b4b4"
MOST = 5  # tasks beside each other


def plotted(tables: Mapping[str, pd.DataFrame], job: FigureJob) -> pd.DataFrame:
    """Rows of kind seed, and mean: over seeds, lo and hi two standard errors over documents from it.

    The seeds answer the same documents, so the error of their mean is that of one of them.
    """
    rows = tables["downstream"]
    seeds = rows.assign(kind="seed", above=rows["score"] - rows["chance"], n_seeds=1)
    key = ["setting", "task", "metric", "arch", "chance"]
    means = seeds.assign(square=seeds["stderr"] ** 2).groupby(key, as_index=False)
    mean = means.agg(
        score=("score", "mean"),
        above=("above", "mean"),
        square=("square", "mean"),
        n=("n", "min"),
        n_seeds=("seed", "nunique"),
        n_truncated=("n_truncated", "max"),
    )
    error = np.sqrt(mean["square"])
    mean = mean.assign(kind="mean", lo=mean["above"] - 2 * error, hi=mean["above"] + 2 * error)
    mean["at_chance"] = ~(mean["lo"] > 0)
    frame = pd.concat([seeds, mean], ignore_index=True).reindex(columns=COLUMNS)
    return frame.sort_values(["kind", "setting", "task", "arch", "seed"]).reset_index(drop=True)


def draw(frame: pd.DataFrame, look: Look) -> Figure:
    """A panel a task; in each row of panels one setting."""
    settings = sorted(frame["setting"].unique())
    tasks = sorted(frame["task"].unique())
    names = ordered(frame["arch"])
    columns = min(MOST, len(tasks))
    lines = -(-len(tasks) // columns)
    size = (1.7 + 1.75 * columns, 1.1 + len(settings) * lines * (0.55 + 0.17 * len(names)))
    figure, grid = plt.subplots(len(settings) * lines, columns, figsize=size, sharey=True, squeeze=False)
    for axes in grid.flat:
        axes.set_visible(False)
    for row, setting in enumerate(settings):
        for i, task in enumerate(tasks):
            axes = grid[row * lines + i // columns, i % columns]
            axes.set_visible(True)
            part = frame[(frame["setting"] == setting) & (frame["task"] == task)]
            _panel(axes, part, names, look)
            n = part["n"].min()
            axes.set_title(f"{task}\n{part['metric'].iloc[0]}, n = {n:.0f}" if len(part) else task)
        for line in range(lines):
            side_label(grid[row * lines + line, 0], f"trained on: {setting}")
    grid[0, 0].set_yticks(range(len(names)), names)
    grid[0, 0].set_ylim(len(names) - 0.4, -0.6)
    figure.supxlabel("score minus chance (percentage points)", fontsize=8)
    mark: dict[str, Any] = {"marker": "o", "markersize": 5, "linestyle": "none"}
    handles = [
        Line2D([], [], color=INK, label="mean over seeds", **mark),
        Line2D([], [], color=INK, linewidth=1.3, label="2 standard errors over documents"),
        Line2D([], [], color=INK, marker="|", linestyle="none", markersize=5, label="one seed"),
        Line2D([], [], color=GREY, label="at chance", **mark, markerfacecolor="white"),
    ]
    wide = figure.get_figwidth() > 6.5
    figure.legend(handles=handles, loc="outside upper center", ncols=4 if wide else 2)
    return figure


def _panel(axes: Axes, rows: pd.DataFrame, names: list[str], look: Look) -> None:
    axes.axvline(0, color=INK, linewidth=0.8, zorder=1)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.locator_params(axis="x", nbins=4)
    for place, name in enumerate(names):
        mine = rows[rows["arch"] == name]
        if mine.empty:
            text: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 6.5, "color": QUIET}
            axes.text(0.5, place, "no data", transform=axes.get_yaxis_transform(), **text)
            continue
        _score(axes, place, mine, look[name])


def _score(axes: Axes, place: int, rows: pd.DataFrame, style: Style) -> None:
    mean = rows[rows["kind"] == "mean"].iloc[0]
    seeds = 100 * rows.loc[rows["kind"] == "seed", "above"]
    silent = bool(mean["at_chance"])
    colour = GREY if silent else style.colour
    if np.isfinite(mean["lo"]):
        axes.plot([100 * mean["lo"], 100 * mean["hi"]], [place, place], color=colour, linewidth=1.3, zorder=2)
    axes.plot(seeds, np.full(len(seeds), place + 0.26), "|", color=colour, markersize=4)
    mark: dict[str, Any] = {"color": colour, "marker": style.marker, "markersize": 4.5, "linestyle": "none"}
    mark["markerfacecolor"] = "white" if silent else colour
    axes.plot([100 * mean["above"]], [place], zorder=3, **mark)
    if mean["n_seeds"] == 1:
        beside: dict[str, Any] = {"textcoords": "offset points", "va": "bottom", "fontsize": 5.5}
        axes.annotate("n = 1", (100 * mean["above"], place), (4, 1.5), color=QUIET, **beside)
