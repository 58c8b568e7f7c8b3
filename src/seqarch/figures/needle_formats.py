"""The format ablation: one needle in three formats at each depth and length (Huang 2025, table 4)."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from seqarch.figures.render import Look
from seqarch.figures.spec import FigureJob
from seqarch.figures.style import QUIET, architecture_legend, ordered, side_label

TABLES = ("needle",)
WHO = ("arch", "setting", "seed")
COLUMNS = [
    *WHO,
    "format",
    "length",
    "depth",
    "percent",
    "lo",
    "hi",
    "n",
    "signal",
    "published",
    "train_length",
]


def plotted(tables: Mapping[str, pd.DataFrame], job: FigureJob) -> pd.DataFrame:
    """A row a model (or run), format, length and depth; means over formats are left out."""
    rows = tables["needle"]
    rows = rows[rows["format"] != "mean"].copy()
    rows["setting"] = rows["setting"].fillna("published")
    rows["seed"] = rows["seed"].fillna(0)
    for name, column in (("percent", "score"), ("lo", "ci_lo"), ("hi", "ci_hi"), ("published", "published")):
        rows[name] = 100 * rows[column]
    order = ["length", "format", "arch", "setting", "seed", "depth"]
    return rows.reindex(columns=COLUMNS).sort_values(order).reset_index(drop=True)


def draw(frame: pd.DataFrame, look: Look) -> Figure:
    """Rows of panels: lengths; columns: formats. Hollow: no signal; a cross: the published figure."""
    lengths, formats = sorted(frame["length"].unique()), sorted(frame["format"].unique())
    depths, names = sorted(frame["depth"].unique()), ordered(frame["arch"])
    size = (1.2 + 2.4 * len(formats), 1.1 + 1.35 * len(lengths))
    figure, grid = plt.subplots(
        len(lengths), len(formats), figsize=size, sharex=True, sharey=True, squeeze=False
    )
    for i, length in enumerate(lengths):
        for j, form in enumerate(formats):
            axes = grid[i, j]
            part = frame[(frame["length"] == length) & (frame["format"] == form)]
            _panel(axes, part, depths, names, look)
            if i == 0:
                axes.set_title(form)
        side_label(grid[i, 0], f"{length:,} tokens")
    grid[0, 0].set_ylim(-4, 104)
    grid[0, 0].set_xticks(range(len(depths)), [f"{depth:g}" for depth in depths])
    figure.supxlabel(f"depth of the needle (%); bars: Wilson 95 %, n = {frame['n'].min():.0f}", fontsize=8)
    figure.supylabel("exact answers (%)", fontsize=8)
    marks: dict[str, Any] = {"color": QUIET, "linestyle": "none"}
    extra = [Line2D([], [], marker="o", markerfacecolor="none", markersize=4.5, label="no signal", **marks)]
    if frame["published"].notna().any():
        extra.append(Line2D([], [], marker="x", markersize=4.5, label="published", **marks))
    architecture_legend(figure, names, look, extra)
    return figure


def _panel(axes: Axes, rows: pd.DataFrame, depths: list[float], names: list[str], look: Look) -> None:
    """Models side by side at each depth; runs of one model at one place."""
    if rows.empty:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=QUIET)
        return
    step = min(0.16, 0.8 / max(1, len(names)))
    for number, name in enumerate(names):
        offset = (number - (len(names) - 1) / 2) * step
        mine = rows[rows["arch"] == name]
        for signal, part in mine.groupby(mine["signal"] == "ok"):
            x = [depths.index(depth) + offset for depth in part["depth"]]
            face = look[name].colour if signal else "none"
            points = look[name].points(markersize=3.6, markerfacecolor=face)
            bars = [part["percent"] - part["lo"], part["hi"] - part["percent"]]
            axes.errorbar(x, part["percent"], yerr=bars, elinewidth=0.7, capsize=0, **points)
        printed = mine.dropna(subset=["published"])
        x = [depths.index(depth) + offset for depth in printed["depth"]]
        axes.plot(
            x, printed["published"], linestyle="none", marker="x", markersize=3.6, color=look[name].colour
        )
    axes.set_xlim(-0.6, len(depths) - 0.4)
