"""Time and peak memory of one layer's operation against sequence length, from a benchmark's table.

`make bench` and `make bench-gpu` draw it from what they measured: results/bench/speed.svg, results/bench/gpu/
speed.svg. By hand:

    python -m seqarch.cli.figure --spec '{"figure": "speed"}' --table results/bench/top1.parquet --out …
"""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from seqarch.figures.render import Look
from seqarch.figures.spec import FigureJob
from seqarch.figures.style import QUIET, architecture_legend, compact, ordered, side_label

TABLES = ("top1",)
COLUMNS = ["device", "work", "arch", "length", "milliseconds", "megabytes"]
QUANTITIES = {"milliseconds": "time (ms)", "megabytes": "peak memory (MB)"}


def plotted(tables: Mapping[str, pd.DataFrame], job: FigureJob) -> pd.DataFrame:
    """The benchmark's rows that were measured, in milliseconds and megabytes."""
    rows = tables["top1"].dropna(subset=["seconds"])
    frame = rows.assign(milliseconds=rows["seconds"] * 1e3, megabytes=rows["peak_bytes"] / 1e6)
    return frame[COLUMNS].sort_values(COLUMNS[:4]).reset_index(drop=True)


def draw(frame: pd.DataFrame, look: Look) -> Figure:
    """Time above, memory below, a column for each device and kind of work; both axes logarithmic."""
    pairs = frame[["device", "work"]].drop_duplicates()
    columns = list(zip(pairs["device"], pairs["work"], strict=True))
    size = (1.4 + 3.2 * len(columns), 5.2)
    figure, grid = plt.subplots(2, len(columns), figsize=size, sharex="col", sharey="row", squeeze=False)
    names = ordered(frame["arch"])
    for j, (device, work) in enumerate(columns):
        rows = frame[(frame["device"] == device) & (frame["work"] == work)]
        for axes, quantity in zip(grid[:, j], QUANTITIES, strict=True):
            _panel(axes, rows, names, quantity, look)
        grid[0, j].set_title(f"{work} ({device})")
        grid[1, j].set_xlabel("sequence length (tokens)")
    for axes, label in zip(grid[:, 0], QUANTITIES.values(), strict=True):
        side_label(axes, label)
    architecture_legend(figure, names, look)
    return figure


def _panel(axes: Axes, rows: pd.DataFrame, names: list[str], quantity: str, look: Look) -> None:
    """Curves, and guides of slope 1 and 2 through the lowest first point."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for name in names:
        line = rows[rows["arch"] == name]
        axes.plot(line["length"], line[quantity], markersize=4, **look[name].line())
    first = rows.sort_values(["length", quantity]).iloc[0]
    lengths = np.array([first["length"], rows["length"].max()], dtype=float)
    low, high = axes.get_ylim()
    for power, text, side in ((1, "∝ T", "top"), (2, "∝ T²", "bottom")):  # outside of both guides
        guide = first[quantity] * (lengths / lengths[0]) ** power
        axes.plot(lengths, guide, color=QUIET, linewidth=0.7, linestyle=":", zorder=0)
        end = min(guide[1], high)
        place = lengths[0] * (end / first[quantity]) ** (1 / power)
        offset = (0, -5 if side == "top" else 0)
        axes.annotate(
            text,
            (place, end),
            xytext=offset,
            textcoords="offset points",
            color=QUIET,
            fontsize=7,
            ha="right",
            va=side,
        )
    axes.set_ylim(low, high * 1.3)
    axes.xaxis.set_major_locator(LogLocator(base=2))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
