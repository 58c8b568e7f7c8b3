"""The central figure: out-of-domain loss against in-domain loss, a line per architecture.

One point is one annealed model; a line joins an architecture's means over seeds in the order of training,
small points are seeds. At the primary x0 of the analysis a large mark with an interval shows the interpolated
loss.
"""

import itertools
from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator
from scipy import stats

from seqarch.figures.render import Look
from seqarch.figures.selection import of_study, verdict_interval
from seqarch.figures.spec import FigureJob
from seqarch.figures.style import (
    BAND,
    INK,
    QUIET,
    architecture_legend,
    domain_title,
    ordered,
    seeds_words,
    side_label,
)

TABLES = ("losses",)  # and equal_loss, unigram where they are given
COLUMNS = ["kind", "setting", "domain", "arch", "seed", "step", "x", "y", "lo", "hi", "n_seeds", "low_n"]
CONFIDENCE = 0.95
INSET = (0.41, 0.34)  # width and height of the inset in a panel's
CORNERS = ((0.57, 0.07), (0.06, 0.47), (0.06, 0.07), (0.57, 0.47))  # tried in turn


def plotted(tables: Mapping[str, pd.DataFrame], job: FigureJob) -> pd.DataFrame:
    """The plotted rows, told apart by `kind`.

    seed, mean: points (x, y). x0: interpolated y at the primary x0, lo and hi over seeds. delta: y is the
    difference from the reference at x0. common: lo and hi of x. unigram: (x, y) of token frequencies alone.
    """
    losses = tables["losses"]
    losses = losses[losses["length"] == losses["length"].min()]
    if "boundary_mode" in losses:
        losses = losses[losses["boundary_mode"] != "packed"]  # a secondary result
    compared = None
    if "equal_loss" in tables and len(tables["equal_loss"]):
        compared = of_study(tables["equal_loss"], job.study)
        if job.study:
            losses = losses[losses["arch"].isin([*compared["arch"], *compared["ref"]])]
    phases = losses["phase"].unique()
    if "annealed" in phases:
        losses = losses[losses["phase"] == "annealed"]
    parts = [_points(losses)]
    if compared is not None and compared["study"].nunique() == 1:
        parts += [_interpolated(compared), _differences(compared), _common(compared)]
    if "unigram" in tables:
        parts.append(_unigram(tables["unigram"]))
    frame = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    frame = frame[frame["setting"].isin(losses["setting"].unique())]
    return frame.reindex(columns=COLUMNS).sort_values(COLUMNS[:6]).reset_index(drop=True)


def _points(losses: pd.DataFrame) -> pd.DataFrame:
    """One row a seed and checkpoint, and their means over seeds."""
    key = ["setting", "arch", "seed", "step"]
    x = losses.loc[losses["domain"] == "macro_id", [*key, "nats_per_token"]]
    y = losses[losses["role"] == "ood"].rename(columns={"nats_per_token": "y"})
    seeds = y.merge(x.rename(columns={"nats_per_token": "x"}), on=key)
    seeds = seeds.assign(kind="seed")
    group = seeds.groupby(["setting", "domain", "arch", "step"], as_index=False)
    means = group.agg(x=("x", "mean"), y=("y", "mean"), n_seeds=("seed", "nunique"), low_n=("low_n", "any"))
    return pd.concat([seeds, means.assign(kind="mean")], ignore_index=True)


def _interpolated(compared: pd.DataFrame) -> pd.DataFrame:
    """Each architecture's loss at the primary x0, with its t-interval over seeds."""
    rows = compared[compared["is_primary"].astype(bool) & (compared["kind"] == "seed")]
    columns = ["setting", "domain", "seed", "x0"]
    own = rows[[*columns, "arch", "loss_arch"]]
    reference = rows[[*columns]].assign(arch=rows["ref"], loss_arch=rows["loss_ref"])
    both = pd.concat([own, reference.drop_duplicates()], ignore_index=True)
    group = both.rename(columns={"x0": "x", "loss_arch": "y"}).groupby(["setting", "domain", "arch", "x"])
    result = group.agg(y=("y", "mean"), sd=("y", "std"), n_seeds=("y", "count")).reset_index()
    n = result["n_seeds"]
    half = stats.t.ppf((1 + CONFIDENCE) / 2, np.maximum(n - 1, 1)) * result["sd"] / np.sqrt(n)
    return result.assign(kind="x0", lo=result["y"] - half, hi=result["y"] + half).drop(columns="sd")


def _differences(compared: pd.DataFrame) -> pd.DataFrame:
    """Each architecture's difference from the reference at x0: y, with the interval behind the verdict."""
    rows = verdict_interval(compared[compared["is_primary"].astype(bool) & (compared["kind"] == "summary")])
    rows = rows.dropna(subset=["mean"]).rename(columns={"x0": "x", "mean": "y"})
    return rows[["setting", "domain", "arch", "x", "y", "lo", "hi", "n_seeds"]].assign(kind="delta")


def _common(compared: pd.DataFrame) -> pd.DataFrame:
    """The range of x that all compared runs share, where it is one range."""
    rows = compared.drop_duplicates(["setting", "overlap_lo", "overlap_hi"])
    rows = rows[~rows["setting"].duplicated(keep=False)].dropna(subset=["overlap_lo"])
    return rows[["setting"]].assign(kind="common", lo=rows["overlap_lo"], hi=rows["overlap_hi"])


def _unigram(unigram: pd.DataFrame) -> pd.DataFrame:
    """x and y of a model that knows token frequencies alone."""
    x = unigram[unigram["domain"] == "macro_id"].set_index("setting")["nats_per_token"]
    y = unigram[unigram["role"] == "ood"].rename(columns={"nats_per_token": "y"})
    return y[["setting", "domain", "y"]].assign(kind="unigram", x=y["setting"].map(x))


def draw(frame: pd.DataFrame, look: Look) -> Figure:
    """Rows of panels: settings, with one x axis; columns: out-of-domain sets, then their mean."""
    points = frame[frame["kind"].isin(["seed", "mean"])]
    settings = sorted(points["setting"].unique())
    domains = sorted(points["domain"].unique(), key=lambda name: (name == "macro_ood", name))
    names = ordered(points["arch"])
    size = (0.9 + 1.95 * len(domains), 1.3 + 2.0 * len(settings))
    figure, grid = plt.subplots(len(settings), len(domains), figsize=size, sharex="row", squeeze=False)
    for row, setting in enumerate(settings):
        of_setting = frame[frame["setting"] == setting]
        common = of_setting[of_setting["kind"] == "common"]
        for column, domain in enumerate(domains):
            axes = grid[row, column]
            part = of_setting[of_setting["domain"] == domain]
            for lo, hi in zip(common["lo"], common["hi"], strict=True):
                axes.axvspan(lo, hi, color=BAND, linewidth=0, zorder=0)
            _curves(axes, part, names, look)
            _at_x0(axes, part[part["kind"] == "x0"], names, look)
            axes.margins(0.09)
            axes.autoscale_view()
            deltas = part[part["kind"] == "delta"]
            corner = _free_corner(axes, part) if len(deltas) else None
            _reference(axes, part[part["kind"] == "unigram"])
            if corner is not None:
                _inset(axes, corner, deltas, names, look, _range(of_setting))
            axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
            axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
            if row == 0:
                axes.set_title(domain_title(domain), fontweight="bold" if domain == "macro_ood" else None)
        side_label(grid[row, 0], f"trained on: {setting}")
    seeds = seeds_words(points["n_seeds"].dropna().unique())
    figure.supxlabel(f"in-domain loss (nats per token, mean over in-domain sets; {seeds})", fontsize=8)
    figure.supylabel("out-of-domain loss (nats per token)", fontsize=8)
    architecture_legend(figure, names, look, _explained(frame))
    return figure


def _curves(axes: Axes, rows: pd.DataFrame, names: list[str], look: Look) -> None:
    for name in names:
        mine = rows[rows["arch"] == name].sort_values("step")
        seeds, means = mine[mine["kind"] == "seed"], mine[mine["kind"] == "mean"]
        axes.plot(seeds["x"], seeds["y"], **look[name].points(markersize=2.2, alpha=0.45, markeredgewidth=0))
        axes.plot(
            means["x"],
            means["y"],
            **look[name].line(markersize=3.4, markeredgecolor="white", markeredgewidth=0.4),
        )


def _at_x0(axes: Axes, rows: pd.DataFrame, names: list[str], look: Look) -> None:
    """The interpolated losses at the primary x0, which a dotted line marks."""
    for x0 in np.unique(rows["x"].to_numpy(float)):
        axes.axvline(x0, color=INK, linewidth=0.7, linestyle=(0, (1, 2)), zorder=1)
    for name in names:
        mine = rows[rows["arch"] == name]
        x, y, lo, hi = (mine[column].to_numpy(float) for column in ("x", "y", "lo", "hi"))
        mark = look[name].points(markersize=5, markerfacecolor="white", markeredgewidth=1, zorder=4)
        axes.errorbar(x, y, np.nan_to_num([y - lo, hi - y]), elinewidth=1, capsize=2, **mark)


def _range(rows: pd.DataFrame) -> tuple[float, float]:
    """Limits that hold zero and all differences of a row of panels."""
    deltas = rows.loc[rows["kind"] == "delta", ["y", "lo", "hi"]].to_numpy(float)
    low, high = np.nanmin(deltas, initial=0.0), np.nanmax(deltas, initial=0.0)
    space = max(0.08 * (high - low), 1e-3)
    return float(low - space), float(high + space)


def _free_corner(axes: Axes, rows: pd.DataFrame) -> tuple[float, float]:
    """Where an inset hides nothing; if no corner is free, the panel is made longer at its lower end."""
    places = axes.transAxes.inverted().transform(axes.transData.transform(_drawn(rows)))
    wide, high = INSET[0] + 0.03, INSET[1] + 0.09  # with its title and labels
    for left, low in CORNERS:
        inside = (places[:, 0] > left - 0.02) & (places[:, 0] < left + wide)
        if not (inside & (places[:, 1] > low - 0.07) & (places[:, 1] < low + high)).any():
            return left, low
    left, low = CORNERS[0]
    low_y, high_y = axes.get_ylim()
    inside = places[:, 0] > left - 0.02
    lowest = low_y + places[inside, 1].min() * (high_y - low_y)
    top = low + high
    axes.set_ylim((lowest - top * high_y) / (1 - top), high_y)
    return left, low


def _drawn(rows: pd.DataFrame) -> np.ndarray:
    """Points of what a panel shows [N, 2]: seeds, lines of means, intervals."""
    points = [rows.loc[rows["kind"] == "seed", ["x", "y"]].to_numpy(float)]
    share = np.linspace(0, 1, 25)[:, None]
    for _, line in rows[rows["kind"] == "mean"].sort_values("step").groupby("arch"):
        path = line[["x", "y"]].to_numpy(float)
        points += [a + share * (b - a) for a, b in itertools.pairwise(path)] or [path]
    for _, mark in rows[rows["kind"] == "x0"].iterrows():
        ends = np.array(
            [[mark["x"], mark["y"] if np.isnan(mark[end]) else mark[end]] for end in ("lo", "hi")]
        )
        points.append(ends[0] + share * (ends[1] - ends[0]))
    return np.concatenate(points)


def _inset(
    axes: Axes,
    corner: tuple[float, float],
    rows: pd.DataFrame,
    names: list[str],
    look: Look,
    limits: tuple[float, float],
) -> None:
    """Differences from the reference at x0."""
    inset = axes.inset_axes((*corner, *INSET))
    drawn = [name for name in names if name in set(rows["arch"])]
    for place, name in enumerate(drawn):
        mine = rows[rows["arch"] == name]
        y, lo, hi = (mine[column].to_numpy(float) for column in ("y", "lo", "hi"))
        mark = look[name].points(markersize=3, markeredgewidth=0)
        inset.errorbar(y, [place], xerr=np.nan_to_num([y - lo, hi - y]), elinewidth=0.9, **mark)
    inset.axvline(0, color=INK, linewidth=0.6, zorder=1)
    inset.set_ylim(len(drawn) - 0.4, -0.6)
    inset.set_yticks([])
    inset.set_xlim(*limits)
    inset.xaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10]))
    inset.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    inset.tick_params(axis="x", labelsize=5.5, length=2, pad=1)
    inset.set_title("Δ at equal loss", fontsize=6, pad=2, color=INK)
    inset.grid(visible=False)
    inset.patch.set_alpha(0.85)


def _reference(axes: Axes, rows: pd.DataFrame) -> None:
    """The unigram loss as a line; where it is off the panel, at the panel's edge with an arrow."""
    for value in rows["y"].to_numpy(float):
        low, high = axes.get_ylim()
        inside = low <= value <= high
        where = value if inside else high
        axes.axhline(where, color=QUIET, linestyle=(0, (6, 2)), linewidth=0.9, zorder=1, clip_on=False)
        words = f"unigram {value:.2f}" if inside else f"unigram {value:.2f} ↑"
        axes.annotate(
            words,
            (0, where),
            (2, -2),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha="left",
            va="top",
            fontsize=6.5,
            color=QUIET,
        )
        axes.set_ylim(low, high)


def _explained(frame: pd.DataFrame) -> list[Artist]:
    """Legend entries of what else is drawn."""
    kinds = set(frame["kind"])
    handles: list[Artist] = []
    if "x0" in kinds:
        mark: dict[str, Any] = {
            "color": INK,
            "marker": "o",
            "markersize": 6,
            "markerfacecolor": "white",
            "linestyle": ":",
        }
        handles.append(Line2D([], [], label="at equal in-domain loss", **mark))
    if "common" in kinds:
        handles.append(Patch(facecolor=BAND, edgecolor="#c9d0da", linewidth=0.5, label="common range"))
    if "unigram" in kinds:
        handles.append(
            Line2D([], [], color=QUIET, linestyle=(0, (6, 2)), linewidth=0.9, label="unigram entropy")
        )
    return handles
