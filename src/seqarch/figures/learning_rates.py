"""In-domain validation loss against the learning rates that were tried, with the choice, for each setting."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from seqarch.figures.render import Look
from seqarch.figures.spec import FigureJob
from seqarch.figures.style import QUIET, architecture_legend, ordered

TABLES = ("learning_rates",)
EDGE: dict[str, Any] = {
    "marker": "o",
    "markersize": 11,
    "color": QUIET,
    "markerfacecolor": "none",
    "linestyle": "none",
}
LOST: dict[str, Any] = {"marker": "x", "color": QUIET, "linestyle": "none"}
COLUMNS = [
    *("setting", "arch", "seed", "learning_rate", "tokens"),
    *("validation_loss", "diverged", "chosen", "at_edge"),
]


def plotted(tables: Mapping[str, pd.DataFrame], job: FigureJob) -> pd.DataFrame:
    """The table: a row a trial."""
    frame = tables["learning_rates"][COLUMNS]
    return frame.sort_values(["setting", "arch", "learning_rate"]).reset_index(drop=True)


def draw(frame: pd.DataFrame, look: Look) -> Figure:
    """A panel a setting, a line an architecture, over a logarithmic axis of rates."""
    settings = sorted(frame["setting"].unique())
    size = (1.4 + 3.0 * len(settings), 3.2)
    figure, grid = plt.subplots(1, len(settings), figsize=size, sharey=True, squeeze=False)
    names = ordered(frame["arch"])
    for axes, setting in zip(grid[0], settings, strict=True):
        rows = frame[frame["setting"] == setting]
        for name in names:
            _line(axes, rows[rows["arch"] == name], name, look)
        axes.set_xscale("log")
        axes.margins(0.12)
        axes.set_xticks(sorted(rows["learning_rate"].unique()))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_title(f"trained on: {setting} (n = 1)")
        axes.set_xlabel("learning rate")
    grid[0, 0].set_ylabel("in-domain validation loss\n(nats per token)")
    architecture_legend(figure, names, look, _marks())
    return figure


def _line(axes: Axes, rows: pd.DataFrame, name: str, look: Look) -> None:
    style, diverged, chosen = look[name], rows["diverged"].astype(bool), rows["chosen"].astype(bool)
    axes.plot(*_xy(rows[~diverged]), color=style.colour, linestyle=style.dash)
    hollow = {"markerfacecolor": "white", "markeredgecolor": style.colour}
    axes.plot(*_xy(rows[~diverged & ~chosen]), **(style.points(markersize=4) | hollow))
    axes.plot(*_xy(rows[chosen]), **style.points(markersize=6))
    axes.plot(*_xy(rows[rows["at_edge"].astype(bool)]), **EDGE)
    lost = rows.loc[diverged, "learning_rate"]
    across = axes.get_xaxis_transform()  # y as a share of the axes' height
    axes.plot(lost, [0.97] * len(lost), transform=across, **(LOST | {"color": style.colour}))


def _xy(rows: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    return rows["learning_rate"], rows["validation_loss"]


def _marks() -> list[Line2D]:
    """What the legend says beside the architectures."""
    chosen = {"color": QUIET, "linestyle": "none", "marker": "o", "markersize": 6}
    looks: dict[str, dict[str, Any]] = {
        "chosen": chosen,
        "tried": chosen | {"markersize": 4, "markerfacecolor": "white"},
        "at the grid's edge": EDGE,
        "diverged": LOST,
    }
    return [Line2D([], [], label=label, **look) for label, look in looks.items()]
