"""Paper A: differences from the reference in each training setting, side by side: does mixing hide them?"""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from seqarch.figures.errors import FigureError
from seqarch.figures.render import Look
from seqarch.figures.selection import verdict_interval
from seqarch.figures.spec import FigureJob
from seqarch.figures.style import BAND, INK, domain_title, ordered
from seqarch.figures.verdicts import MISSING

TABLES = ("equal_loss",)
COLUMNS = [
    *("setting", "domain", "arch", "ref", "kind", "seed", "delta", "mean", "lo", "hi", "verdict", "margin"),
    *("n_seeds", "n_docs", "interval", "confidence", "x0"),
]
SPREAD = 0.42  # between the first and the last setting of a row
FILLS: tuple[dict[str, Any], ...] = (  # of settings, in alphabetical order
    {"fillstyle": "full"},
    {"markerfacecolor": "white"},
    {"fillstyle": "left", "markerfacecoloralt": "white"},
    {"fillstyle": "bottom", "markerfacecoloralt": "white"},
)


def plotted(tables: Mapping[str, pd.DataFrame], job: FigureJob) -> pd.DataFrame:
    """The rows of the job's studies at the primary x0 of each setting, shortest window."""
    rows = tables["equal_loss"]
    rows = rows[rows["study"].isin(job.studies)] if job.studies else rows
    rows = rows[rows["length"] == rows["length"].min()]
    rows = verdict_interval(rows[rows["is_primary"].astype(bool)])
    if rows.duplicated(["setting", "domain", "arch", "kind", "seed"]).any():
        raise FigureError("an architecture is in several of the studies that this figure draws: name one")
    key = ["domain", "arch", "setting", "kind", "seed"]
    return rows.sort_values(key).reindex(columns=COLUMNS).reset_index(drop=True)


def draw(frame: pd.DataFrame, look: Look) -> Figure:
    """Columns: out-of-domain sets, then their mean; a row an architecture, in it a mark a setting."""
    settings = sorted(frame["setting"].unique())
    if len(settings) > len(FILLS):
        raise FigureError(f"{len(settings)} settings: this figure tells {len(FILLS)} apart")
    domains = sorted(frame["domain"].unique(), key=lambda name: (name == "macro_ood", name))
    names = ordered(frame["arch"])
    size = (1.7 + 1.5 * len(domains), 1.3 + 0.2 * len(names) * (0.6 + len(settings)))
    figure, grid = plt.subplots(1, len(domains), figsize=size, sharex=True, sharey=True, squeeze=False)
    for axes, domain in zip(grid[0], domains, strict=True):
        rows = frame[frame["domain"] == domain]
        _frame(axes, float(frame["margin"].max()))
        for place, name in enumerate(names):
            _row(axes, place, rows[rows["arch"] == name], settings, look[name].colour)
        axes.set_title(domain_title(domain), fontweight="bold" if domain == "macro_ood" else None)
    grid[0, 0].set_yticks(range(len(names)), names)
    grid[0, 0].set_ylim(len(names) - 0.4, -0.6)
    references = " or ".join(sorted(frame["ref"].unique()))
    label = f"out-of-domain loss minus that of {references} at equal in-domain loss (nats per token)"
    figure.supxlabel(label, fontsize=8)
    _legend(figure, frame, settings)
    return figure


def _frame(axes: Axes, margin: float) -> None:
    axes.axvspan(-margin, margin, color=BAND, linewidth=0, zorder=0)
    axes.axvline(0, color=INK, linewidth=0.8, zorder=1)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.locator_params(axis="x", nbins=4)


def _row(axes: Axes, place: float, rows: pd.DataFrame, settings: list[str], colour: str) -> None:
    """The settings' marks below each other, joined by a thin line."""
    step = SPREAD / max(1, len(settings) - 1)
    path = []
    for i, setting in enumerate(settings):
        at = place - SPREAD / 2 + i * step if len(settings) > 1 else place
        mine = rows[rows["setting"] == setting]
        summary = mine[mine["kind"] == "summary"]
        if summary.empty or np.isnan(summary["mean"].iloc[0]):
            words = f"{setting}: " + ("no data" if summary.empty else "no overlap")
            axes.text(0.5, at, words, transform=axes.get_yaxis_transform(), **MISSING)
            continue
        row = summary.iloc[0]
        seeds = mine.loc[mine["kind"] == "seed", "delta"]
        axes.plot(seeds, np.full(len(seeds), at + 0.09), "|", color=colour, markersize=3.5, alpha=0.7)
        if np.isfinite(row["lo"]):
            axes.plot([row["lo"], row["hi"]], [at, at], color=colour, linewidth=1.3, zorder=2)
        else:
            beside: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 6}
            axes.annotate(f"n = {row['n_seeds']:.0f}", (row["mean"], at), (5, 0), **beside)
        mark: dict[str, Any] = {"color": colour, "marker": "o", "markersize": 5, "markeredgewidth": 1.1}
        axes.plot([row["mean"]], [at], linestyle="none", zorder=3, **mark, **FILLS[i])
        path.append((row["mean"], at))
    if path:
        axes.plot(*zip(*path, strict=True), color=colour, linewidth=0.6, linestyle=":", zorder=1)


def _legend(figure: Figure, frame: pd.DataFrame, settings: list[str]) -> None:
    mark: dict[str, Any] = {"color": INK, "marker": "o", "markersize": 5, "linestyle": "none"}
    handles: list[Any] = [
        Line2D([], [], label=f"trained on: {setting}", **mark, **fill)
        for setting, fill in zip(settings, FILLS, strict=False)
    ]
    level = f"{frame['confidence'].max():.0%} interval".replace("%", " %")
    handles.append(Line2D([], [], color=INK, linewidth=1.3, label=level))
    handles.append(Line2D([], [], color=INK, marker="|", linestyle="none", markersize=5, label="one seed"))
    margin = f"margin ±{frame['margin'].max():g}"
    handles.append(Patch(facecolor=BAND, edgecolor="#c9d0da", linewidth=0.5, label=margin))
    columns = min(len(handles), max(2, int(figure.get_figwidth() / 1.6)))
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, columnspacing=1.4)
