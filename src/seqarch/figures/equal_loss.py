"""Out-of-domain loss at equal in-domain loss: differences from the reference, as a forest plot."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from seqarch.figures.render import Look
from seqarch.figures.selection import of_study, verdict_interval
from seqarch.figures.spec import FigureJob
from seqarch.figures.style import BAND, INK, domain_title, ordered, side_label
from seqarch.figures.verdicts import MISSING, estimate, verdict_legend

TABLES = ("equal_loss",)
COLUMNS = [
    *(
        "study",
        "setting",
        "length",
        "kind",
        "arch",
        "ref",
        "domain",
        "x0",
        "seed",
        "delta",
        "mean",
        "lo",
        "hi",
    ),
    *("interval", "margin", "verdict", "n_seeds", "n_docs", "phase", "confidence"),
]


def plotted(tables: Mapping[str, pd.DataFrame], job: FigureJob) -> pd.DataFrame:
    """The rows at the primary x0, shortest window; lo and hi are of the interval behind the verdict."""
    rows = of_study(tables["equal_loss"], job.study)
    rows = verdict_interval(rows[rows["is_primary"].astype(bool)])
    key = ["setting", "domain", "arch", "kind", "seed"]
    return rows.sort_values(key).reindex(columns=COLUMNS).reset_index(drop=True)


def draw(frame: pd.DataFrame, look: Look) -> Figure:
    """Rows of panels: settings (of each study); columns: out-of-domain sets, then their mean."""
    places = list(
        frame[["study", "setting"]]
        .drop_duplicates()
        .sort_values(["study", "setting"])
        .itertuples(index=False)
    )
    domains = sorted(frame["domain"].unique(), key=lambda name: (name == "macro_ood", name))
    names = {study: ordered(rows["arch"], rows["ref"].iloc[0]) for study, rows in frame.groupby("study")}
    labels = [setting if len(names) == 1 else f"{study}\n{setting}" for study, setting in places]
    heights = [
        max(
            0.55 + 0.3 * len(names[study]), 0.4 + 0.1 * max(map(len, label.split("\n")))
        )  # the label is upright
        for (study, _), label in zip(places, labels, strict=True)
    ]
    figure, grid = plt.subplots(
        len(places),
        len(domains),
        figsize=(1.6 + 1.5 * len(domains), 1.4 + sum(heights)),
        height_ratios=heights,
        sharex="row",
        sharey="row",
        squeeze=False,
    )
    for row, (study, setting) in enumerate(places):
        for column, domain in enumerate(domains):
            axes = grid[row, column]
            mine = (frame["study"] == study) & (frame["setting"] == setting) & (frame["domain"] == domain)
            _panel(axes, frame[mine], names[study], look)
            if row == 0:
                axes.set_title(domain_title(domain), fontweight="bold" if domain == "macro_ood" else None)
        grid[row, 0].set_yticks(range(len(names[study])), names[study])
        grid[row, 0].set_ylim(len(names[study]) - 0.4, -0.6)
        side_label(grid[row, 0], labels[row])
    references = " or ".join(sorted(frame["ref"].unique()))
    label = f"out-of-domain loss minus that of {references} at equal in-domain loss (nats per token)"
    figure.supxlabel(label, fontsize=8)
    verdict_legend(figure, frame)
    return figure


def _panel(axes: Axes, rows: pd.DataFrame, names: list[str], look: Look) -> None:
    margin = float(rows["margin"].max()) if len(rows) else 0.0
    axes.axvspan(-margin, margin, color=BAND, linewidth=0, zorder=0)
    axes.axvline(0, color=INK, linewidth=0.8, zorder=1)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.locator_params(axis="x", nbins=4)
    for place, name in enumerate(names):
        mine = rows[rows["arch"] == name]
        summary = mine[mine["kind"] == "summary"]
        if summary.empty or np.isnan(summary["mean"].iloc[0]):
            words = "no data" if summary.empty else "no overlap"
            axes.text(0.5, place, words, transform=axes.get_yaxis_transform(), **MISSING)
            continue
        row, seeds = summary.iloc[0], mine.loc[mine["kind"] == "seed", "delta"]
        estimate(axes, place, row, seeds, look[name].colour)
        if not np.isfinite(row["lo"]):
            note = f"n = {row['n_seeds']:.0f}"
            beside: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 6.5}
            axes.annotate(note, (row["mean"], place), (5, 0), **beside)
