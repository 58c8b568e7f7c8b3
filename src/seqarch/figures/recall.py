"""Recall: score against the number of pairs, up to the training length and beyond, and against the state."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter
from scipy.special import stdtrit

from seqarch.figures.render import Look
from seqarch.figures.spec import FigureJob
from seqarch.figures.style import QUIET, architecture_legend, compact, ordered, side_label

TABLES = ("recall",)
WHAT = {"mqar": "key-value pairs", "copying": "letters", "phonebook": "entries"}
NEAR, BEYOND = "up to the training length", "beyond the training length"
COLUMNS = [
    *("level", "task", "kind", "arch", "seed", "side", "length", "n_pairs", "score", "lo", "hi", "chance"),
    *("signal", "n_seeds", "n", "train_length", "learning_rate", "position", "state_bytes", "n_params"),
]
CELL = ["task", "kind", "arch", "side", "length", "n_pairs"]
CONFIDENCE = 0.95


def plotted(tables: Mapping[str, pd.DataFrame], job: FigureJob) -> pd.DataFrame:
    """Rows of level seed and mean; on each side of the training length, of the longest sequences that hold
    that many pairs. Means are over the seeds whose controls leave signal; where none do, over all of them.
    `lo` and `hi`: the t-interval over these seeds, empty with one."""
    rows = tables["recall"]
    rows = rows[rows["kind"].isin(WHAT)]
    if rows.empty:
        return pd.DataFrame(columns=COLUMNS)
    rows = rows.assign(side=np.where(rows["length"] > rows["train_length"], BEYOND, NEAR))
    longest = rows.groupby(["task", "side", "n_pairs"])["length"].transform("max")
    seeds = rows[rows["length"] == longest].assign(level="seed", n_seeds=1)
    same: dict[str, Any] = {
        name: (name, "first")
        for name in ("chance", "train_length", "learning_rate", "position", "state_bytes", "n_params")
    }
    fine = seeds["signal"].isna() | (seeds["signal"] == "ok")
    some = fine.groupby([seeds[name] for name in CELL]).transform("any")
    means = (
        seeds[fine | ~some]
        .groupby(CELL, as_index=False)
        .agg(
            score=("score", "mean"),
            sd=("score", "std"),
            n_seeds=("seed", "nunique"),
            n=("n", "sum"),
            signal=("signal", "first"),
            **same,
        )
    )
    half = stdtrit(means["n_seeds"] - 1, 0.5 + CONFIDENCE / 2) * means["sd"] / np.sqrt(means["n_seeds"])
    means = means.assign(
        level="mean", lo=(means["score"] - half).clip(0, 1), hi=(means["score"] + half).clip(0, 1)
    )
    frame = pd.concat([seeds, means], ignore_index=True).reindex(columns=COLUMNS)
    return frame.sort_values(["level", *CELL, "seed"]).reset_index(drop=True)


def draw(frame: pd.DataFrame, look: Look) -> Figure:
    """A row a task: near, beyond, and the hardest cell of each length against the bytes of the state."""
    tasks, names = sorted(frame["task"].unique()), ordered(frame["arch"])
    size = (9.6, 1.0 + 2.4 * len(tasks))
    figure, grid = plt.subplots(len(tasks), 3, figsize=size, squeeze=False, sharey=True)
    for row, task in zip(grid, tasks, strict=True):
        part = frame[frame["task"] == task]
        for axes, side in zip(row, (NEAR, BEYOND), strict=False):
            _by_pairs(axes, part[part["side"] == side], names, look)
            axes.set_title(f"{side}{_lengths(part, side)}")
            axes.set_xlabel(WHAT[part["kind"].iloc[0]])
        _by_state(row[2], part, names, look)
        side_label(row[0], task)
    figure.supylabel("score", fontsize=8)
    hollow = Line2D([], [], color=QUIET, marker="o", markersize=4.5, linestyle="none", label="no signal")
    hollow.set_markerfacecolor("white")
    chance = Line2D([], [], color=QUIET, linestyle=":", linewidth=1, label="a guess")
    architecture_legend(figure, names, look, [hollow, chance])
    return figure


def _lengths(rows: pd.DataFrame, side: str) -> str:
    lengths = sorted(rows.loc[rows["side"] == side, "length"].unique())
    return f" (T = {', '.join(map(str, lengths))})" if lengths and rows["kind"].iloc[0] == "mqar" else ""


def _by_pairs(axes: Axes, rows: pd.DataFrame, names: list[str], look: Look) -> None:
    axes.set_xscale("log", base=2)
    axes.set_ylim(-0.03, 1.04)
    if rows.empty:
        axes.text(0.5, 0.5, "not tested", transform=axes.transAxes, ha="center", color=QUIET)
        return
    for name in names:
        mine = rows[rows["arch"] == name]
        means, seeds = mine[mine["level"] == "mean"], mine[mine["level"] == "seed"]
        axes.fill_between(
            means["n_pairs"], means["lo"], means["hi"], color=look[name].colour, alpha=0.13, linewidth=0
        )
        if len(seeds) > len(means):
            _seeds(axes, seeds, name, look)
        _means(axes, means["n_pairs"], means, name, look)
    _chance(axes, rows)
    _ticks(axes, sorted(rows["n_pairs"].unique()))


def _seeds(axes: Axes, seeds: pd.DataFrame, name: str, look: Look) -> None:
    """Small points, hollow without signal."""
    hollow = seeds["signal"].fillna("ok") != "ok"
    for chosen, face in ((~hollow, look[name].colour), (hollow, "white")):
        if chosen.any():
            style = look[name].points(markersize=2, alpha=0.45, markeredgewidth=0.5)
            rows = seeds[chosen]
            axes.plot(rows["n_pairs"], rows["score"], **style, markerfacecolor=face)


def _means(axes: Axes, x: pd.Series, means: pd.DataFrame, name: str, look: Look) -> None:
    """A line, its points hollow where the controls leave no signal."""
    axes.plot(x, means["score"], **look[name].line(markersize=0))
    for hollow in (False, True):
        chosen = (means["signal"].fillna("ok") != "ok") == hollow
        style = look[name].points(markersize=4.2, markeredgewidth=0.8)
        if hollow:
            style["markerfacecolor"] = "white"
        if chosen.any():
            axes.plot(x[chosen], means.loc[chosen, "score"], **style)


def _by_state(axes: Axes, rows: pd.DataFrame, names: list[str], look: Look) -> None:
    """One point a length, at the most pairs that it was tested with."""
    axes.set_xscale("log")
    means = rows[rows["level"] == "mean"]
    hardest = means["n_pairs"] == means.groupby(["arch", "length"])["n_pairs"].transform("max")
    for name in names:
        mine = means[hardest & (means["arch"] == name)].sort_values("length")
        axes.errorbar(
            mine["state_bytes"],
            mine["score"],
            [mine["score"] - mine["lo"], mine["hi"] - mine["score"]],
            fmt="none",
            ecolor=look[name].colour,
            elinewidth=0.8,
        )
        _means(axes, mine["state_bytes"], mine, name, look)
        _label(axes, mine, look[name].colour)
    _chance(axes, rows)
    axes.set_title(f"most {WHAT[rows['kind'].iloc[0]]} of a length")
    axes.set_xlabel("state at the end of a sequence (bytes)")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _label(axes: Axes, points: pd.DataFrame, colour: str) -> None:
    """Length and pairs at each point; of points on top of each other, at the first."""
    labelled: list[tuple[float, float]] = []
    for _, point in points.iterrows():
        place = float(point["state_bytes"]), float(point["score"])
        if any(x == place[0] and abs(y - place[1]) < 0.05 for x, y in labelled):
            continue
        labelled.append(place)
        text = f"T {point['length']:.0f}: {point['n_pairs']:.0f}"
        axes.annotate(text, place, (4, 4), textcoords="offset points", fontsize=5.5, color=colour)


def _chance(axes: Axes, rows: pd.DataFrame) -> None:
    for chance in rows["chance"].dropna().unique():
        axes.axhline(chance, color=QUIET, linestyle=":", linewidth=1)


def _ticks(axes: Axes, values: list[float]) -> None:
    axes.xaxis.set_major_locator(FixedLocator(values))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(FixedLocator([]))
