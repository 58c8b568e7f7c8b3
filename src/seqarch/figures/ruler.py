"""RULER: score against length for each family of tasks, published models and own runs alike."""

import math
from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from seqarch.figures.render import Look
from seqarch.figures.spec import FigureJob
from seqarch.figures.style import QUIET, architecture_legend, ordered

TABLES = ("ruler",)
FAMILIES: dict[str, tuple[str, ...]] = {
    "one needle": ("niah_single_1", "niah_single_2", "niah_single_3"),
    "many keys": ("niah_multikey_1", "niah_multikey_2", "niah_multikey_3"),
    "many values, queries": ("niah_multivalue", "niah_multiquery"),
    "variable tracking": ("vt",),
    "common, frequent words": ("cwe", "fwe"),
    "questions": ("qa_1", "qa_2"),
    "all 13 tasks": ("mean",),
    "mean of some tasks": ("partial_mean",),
}
COLUMNS = [
    *("kind", "family", "arch", "setting", "seed", "length", "percent", "lo", "hi", "n", "tasks"),
    *("train_length", "comparable"),
]
PER_ROW = 4


def plotted(tables: Mapping[str, pd.DataFrame], job: FigureJob) -> pd.DataFrame:
    """Rows of kind `run`, one a model (or run), family and length, and `mean` over the seeds of a run.

    A family's score is the mean over its tasks; its interval combines theirs, whose samples are independent:
    half-widths as the root of the sum of squares.
    """
    rows = tables["ruler"].dropna(subset=["length"]).copy()
    rows["setting"] = rows["setting"].fillna("published")
    rows["seed"] = rows["seed"].fillna(0)
    made: list[dict[str, Any]] = []
    for family, tasks in FAMILIES.items():
        part = rows[rows["task"].isin(tasks)]
        by = ["arch", "setting", "seed", "length"]
        for key, group in part.groupby(by, sort=True):
            score, count = group["score"].mean(), len(group)
            low = math.sqrt(((group["score"] - group["ci_lo"]) ** 2).sum()) / count
            high = math.sqrt(((group["ci_hi"] - group["score"]) ** 2).sum()) / count
            made.append(
                {
                    "kind": "run",
                    "family": family,
                    **dict(zip(by, key, strict=True)),
                    "percent": 100 * score,
                    "lo": 100 * max(0.0, score - low),
                    "hi": 100 * min(1.0, score + high),
                    "n": group["n"].sum(),
                    "tasks": " ".join(sorted(group["task"])),
                    "train_length": group["train_length"].iloc[0],
                    "comparable": group["comparable"].iloc[0],
                }
            )
    runs = pd.DataFrame(made, columns=COLUMNS)
    same = ["family", "arch", "setting", "length", "train_length", "comparable"]
    means = runs.groupby(same, as_index=False).agg(
        percent=("percent", "mean"),
        lo=("lo", "mean"),
        hi=("hi", "mean"),
        n=("n", "sum"),
        seed=("seed", "nunique"),
    )
    means.loc[means["seed"] > 1, ["lo", "hi"]] = float("nan")  # seeds are drawn as points instead
    frame = pd.concat([runs, means.assign(kind="mean", seed=float("nan"))], ignore_index=True)
    frame["family"] = pd.Categorical(frame["family"], list(FAMILIES))
    frame = frame.sort_values(["kind", "family", "arch", "setting", "seed", "length"]).reset_index(drop=True)
    return frame.astype({"family": str}).reindex(columns=COLUMNS)


def draw(frame: pd.DataFrame, look: Look) -> Figure:
    """A panel a family, in the order of FAMILIES."""
    families = [family for family in FAMILIES if family in set(frame["family"])]
    names = ordered(frame["arch"])
    columns = min(PER_ROW, len(families))
    lines = -(-len(families) // columns)
    size = (1.0 + 2.15 * columns, 1.2 + 1.9 * lines)
    figure, grid = plt.subplots(lines, columns, figsize=size, sharex=True, sharey=True, squeeze=False)
    for axes, family in zip(grid.flat, families, strict=False):
        _panel(axes, frame[frame["family"] == family], names, look)
        axes.set_title(family)
    for axes in list(grid.flat)[len(families) :]:
        axes.set_visible(False)
    lengths = sorted(frame["length"].unique())
    first: Axes = grid[0, 0]
    first.set_xscale("log", base=2)
    first.set_xticks(lengths, [_short(length) for length in lengths], minor=False)
    first.set_xlim(lengths[0] / 1.25, lengths[-1] * 1.25)
    first.set_ylim(-2, 102)
    for axes in grid[:, 0]:
        axes.set_ylabel("score (%)")
    figure.supxlabel(
        f"length (tokens); dashed: training length; n = {frame['n'].min():.0f} or more", fontsize=8
    )
    architecture_legend(figure, names, look)
    return figure


def _panel(axes: Axes, rows: pd.DataFrame, names: list[str], look: Look) -> None:
    for length in sorted(rows["train_length"].dropna().unique()):
        if rows["length"].min() <= length <= rows["length"].max():
            axes.axvline(length, color=QUIET, linewidth=0.8, linestyle=(0, (6, 2)))
    for name in names:
        for _, part in rows[rows["arch"] == name].groupby("setting"):
            mean = part[part["kind"] == "mean"].sort_values("length")
            banded = mean.dropna(subset=["lo", "hi"])
            axes.fill_between(
                banded["length"], banded["lo"], banded["hi"], color=look[name].colour, alpha=0.16, linewidth=0
            )
            axes.plot(mean["length"], mean["percent"], **look[name].line(markersize=3.4))
            seeds = part[part["kind"] == "run"]
            if seeds["seed"].nunique() > 1:
                points = look[name].points(markersize=2, alpha=0.5, markeredgewidth=0)
                axes.plot(seeds["length"], seeds["percent"], **points)


def _short(length: float) -> str:
    return f"{length / 1024:g}K" if length >= 1024 else f"{length:g}"
