"""Loss by position: nats per token against tokens since the state was reset."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from seqarch.figures.render import Look
from seqarch.figures.spec import FigureJob
from seqarch.figures.style import QUIET, architecture_legend, domain_title, ordered, seeds_words, side_label

TABLES = ("positions",)
COLUMNS = [
    *("kind", "setting", "domain", "role", "arch", "seed", "bucket_lo", "bucket_hi", "nats_per_token"),
    *("n_docs", "n_seeds", "train_length"),
]


def plotted(tables: Mapping[str, pd.DataFrame], job: FigureJob) -> pd.DataFrame:
    """Rows of kind seed and mean, at each run's last annealed (else last) checkpoint and longest window."""
    rows = tables["positions"]
    if (rows["phase"] == "annealed").any():
        rows = rows[rows["phase"] == "annealed"]
    run = rows.groupby(["setting", "arch", "seed"])
    rows = rows[
        (rows["step"] == run["step"].transform("max")) & (rows["length"] == run["length"].transform("max"))
    ]
    seeds = rows.assign(kind="seed", n_seeds=1)
    key = ["setting", "domain", "role", "arch", "bucket_lo", "bucket_hi", "train_length"]
    means = seeds.groupby(key, as_index=False).agg(
        nats_per_token=("nats_per_token", "mean"), n_docs=("n_docs", "min"), n_seeds=("seed", "nunique")
    )
    frame = pd.concat([seeds, means.assign(kind="mean")], ignore_index=True).reindex(columns=COLUMNS)
    return frame.sort_values(["kind", "setting", "role", "domain", "arch", "seed", "bucket_lo"]).reset_index(
        drop=True
    )


def draw(frame: pd.DataFrame, look: Look) -> Figure:
    """Rows of panels: settings; columns: domains, in-domain first."""
    settings = sorted(frame["setting"].unique())
    domains = list(dict.fromkeys(frame.sort_values(["role", "domain"])["domain"]))
    names = ordered(frame["arch"])
    size = (0.9 + 1.7 * len(domains), 1.2 + 1.9 * len(settings))
    figure, grid = plt.subplots(
        len(settings), len(domains), figsize=size, sharex=True, sharey="col", squeeze=False
    )
    for row, setting in enumerate(settings):
        for column, domain in enumerate(domains):
            axes = grid[row, column]
            part = frame[(frame["setting"] == setting) & (frame["domain"] == domain)]
            if part.empty:
                axes.text(0.5, 0.5, "no long documents", transform=axes.transAxes, ha="center", color=QUIET)
                continue
            _panel(axes, part, names, look)
            if row == 0:
                role = "in domain" if part["role"].iloc[0] == "id" else "out of domain"
                axes.set_title(f"{domain_title(domain)}\n{role}, n = {part['n_docs'].min():.0f}")
        side_label(grid[row, 0], f"trained on: {setting}")
    words = seeds_words(frame.loc[frame["kind"] == "mean", "n_seeds"].unique())
    figure.supxlabel(f"tokens since the state was reset ({words})", fontsize=8)
    figure.supylabel("loss (nats per token)", fontsize=8)
    architecture_legend(figure, names, look)
    return figure


def _panel(axes: Axes, rows: pd.DataFrame, names: list[str], look: Look) -> None:
    """Means over seeds at the middle of each bucket; seeds as small points; the training length as a line."""
    length = rows["train_length"].iloc[0]
    axes.axvline(length, color=QUIET, linewidth=0.9, linestyle=(0, (6, 2)))
    spot = axes.get_subplotspec()
    if spot is not None and spot.is_first_col():
        place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        text: dict[str, Any] = {"ha": "right", "va": "top", "rotation": 90, "fontsize": 6, "color": QUIET}
        axes.annotate("training length", (length, 1), (-2, -1), **place, **text)
    for name in names:
        mine = rows[rows["arch"] == name]
        middle = (mine["bucket_lo"] + mine["bucket_hi"]) / 2
        seeds, means = mine["kind"] == "seed", mine["kind"] == "mean"
        axes.plot(
            middle[seeds],
            mine.loc[seeds, "nats_per_token"],
            **look[name].points(markersize=2, alpha=0.4, markeredgewidth=0),
        )
        axes.plot(
            middle[means],
            mine.loc[means, "nats_per_token"],
            **look[name].line(markersize=3.2, markeredgecolor="white", markeredgewidth=0.4),
        )
    axes.set_xlim(0, rows["bucket_hi"].max() * 1.04)
