"""Needles by depth and length: a panel for each task and architecture, controls below the depths.

A cell is the mean over seeds with signal. Hatched: no seed has, or there is no such cell.
"""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from seqarch.figures.render import Look
from seqarch.figures.spec import FigureJob
from seqarch.figures.style import INK, QUIET, ordered, side_label

TABLES = ("recall",)
KINDS = ("needle_lines", "passkey")
CONTROLS = ("adjacent", "no_needle")
COLUMNS = [
    *("task", "kind", "arch", "length", "depth", "row", "score", "n_seeds", "n_signal", "n", "train_length"),
    *("learning_rate", "position", "state_bytes"),
]
MAP = "viridis"
GAP = 0.35  # rows between the depths and the controls
KEY = ["task", "kind", "arch", "length", "train_length"]


def plotted(tables: Mapping[str, pd.DataFrame], job: FigureJob) -> pd.DataFrame:
    """Rows `depth` (score: mean over the seeds with signal; empty without any), and one for each control."""
    rows = tables["recall"]
    rows = rows[rows["kind"].isin(KINDS)]
    if rows.empty:
        return pd.DataFrame(columns=COLUMNS)
    rows = rows.assign(with_signal=rows["score"].where(rows["signal"] == "ok"))
    common: dict[str, Any] = {
        "n_seeds": ("seed", "nunique"),
        "n": ("n", "sum"),
        "learning_rate": ("learning_rate", "first"),
        "position": ("position", "first"),
        "state_bytes": ("state_bytes", "first"),
    }
    cells = rows.groupby([*KEY, "depth"], as_index=False).agg(
        score=("with_signal", "mean"), n_signal=("with_signal", "count"), **common
    )
    parts = [cells.assign(row="depth")]
    once = rows.drop_duplicates([*KEY, "seed"])
    for control in CONTROLS:
        mean = once.groupby(KEY, as_index=False).agg(score=(control, "mean"), **common)
        parts.append(mean.assign(row=control))
    frame = pd.concat(parts, ignore_index=True).reindex(columns=COLUMNS)
    return frame.sort_values(["task", "arch", "row", "length", "depth"]).reset_index(drop=True)


def draw(frame: pd.DataFrame, look: Look) -> Figure:
    """Rows of panels: tasks; columns: architectures."""
    tasks, names = sorted(frame["task"].unique()), ordered(frame["arch"])
    depths = {task: _depths(frame, task) for task in tasks}
    lengths = {task: sorted(frame.loc[frame["task"] == task, "length"].unique()) for task in tasks}
    widest = max(map(len, lengths.values()))
    heights = [len(depths[task]) + GAP + len(CONTROLS) for task in tasks]
    size = (1.5 + len(names) * max(1.5, 0.62 * widest), 0.8 + sum(0.4 + 0.27 * rows for rows in heights))
    figure, grid = plt.subplots(
        len(tasks), len(names), figsize=size, squeeze=False, height_ratios=heights, sharey="row"
    )
    colours = plt.get_cmap(MAP)
    image: Any = None
    for i, task in enumerate(tasks):
        for j, name in enumerate(names):
            part = frame[(frame["task"] == task) & (frame["arch"] == name)]
            image = _panel(grid[i, j], part, depths[task], lengths[task], colours)
            if i == 0:
                grid[i, j].set_title(name, color=look[name].colour)
            if j == 0:
                _rows(grid[i, j], depths[task], task)
        for axes in grid[i, 1:]:
            axes.tick_params(left=False)
    bar = figure.colorbar(image, ax=grid, shrink=0.8, aspect=30, pad=0.02)
    bar.set_label("exact answers, share")
    figure.supxlabel("length (tokens)", fontsize=8)
    hatched = Patch(facecolor="#dddddd", edgecolor=QUIET, hatch="////", linewidth=0, label="no signal")
    figure.legend(handles=[hatched], loc="outside upper right")
    return figure


def _depths(frame: pd.DataFrame, task: str) -> list[float]:
    rows = frame[(frame["task"] == task) & (frame["row"] == "depth")]
    return sorted(rows["depth"].dropna().unique())


def _panel(axes: Axes, rows: pd.DataFrame, depths: list[float], lengths: list[int], colours: Colormap) -> Any:
    """Depths from the top, then the controls; one column a length, all of one width."""
    cells = rows[rows["row"] == "depth"].pivot(index="depth", columns="length", values="score")
    cells = cells.reindex(index=depths, columns=lengths)
    controls = rows[rows["row"] != "depth"].pivot(index="row", columns="length", values="score")
    controls = controls.reindex(index=list(CONTROLS), columns=lengths)
    image = axes.imshow(
        cells.to_numpy(dtype=float),
        cmap=colours,
        vmin=0,
        vmax=1,
        aspect="auto",
        extent=(-0.5, len(lengths) - 0.5, len(depths) - 0.5, -0.5),
        interpolation="nearest",
    )
    for block, top in ((cells, 0.0), (controls, len(depths) + GAP)):
        for (i, j), value in np.ndenumerate(block.to_numpy(dtype=float)):
            _cell(axes, j, top + i, float(value), colours)
    axes.set_xlim(-0.5, len(lengths) - 0.5)
    axes.set_ylim(len(depths) + GAP + len(CONTROLS) - 0.5, -0.5)
    axes.set_xticks(range(len(lengths)), [str(length) for length in lengths])
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.axhline(len(depths) - 0.5 + GAP / 2, color=QUIET, linewidth=0.6)
    trained = rows["train_length"].dropna().unique()
    for length in trained:
        inside = sum(each <= length for each in lengths)
        axes.axvline(inside - 0.5, color="#d55e00", linewidth=1.6, linestyle=(0, (4, 1.5)), clip_on=False)
    return image


def _cell(axes: Axes, x: float, y: float, value: float, colours: Colormap) -> None:
    missing = np.isnan(value)
    face = "#dddddd" if missing else colours(value)
    box = Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=face, edgecolor="white", linewidth=0.8)
    if missing:
        box.set(hatch="////", edgecolor=QUIET, linewidth=0)
    axes.add_patch(box)
    if not missing:
        red, green, blue, _ = colours(value)
        light = 0.3 * red + 0.59 * green + 0.11 * blue > 0.5
        text = f"{value:.2f}".lstrip("0") if 0 < value < 1 else f"{value:.0f}"
        axes.text(x, y, text, ha="center", va="center", fontsize=6.5, color=INK if light else "white")


def _rows(axes: Axes, depths: list[float], task: str) -> None:
    places = [*range(len(depths)), *(len(depths) + GAP + i for i in range(len(CONTROLS)))]
    names = [*(f"{depth:g}" for depth in depths), "adjacent", "no needle"]
    axes.set_yticks(places, names)
    side_label(axes, f"{task}\ndepth (%)")
