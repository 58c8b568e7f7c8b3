"""Differences from a reference at equal in-domain loss as a list: a row a pair, its numbers beside it.

What the figures of paper A share that compare many pairs (`stateful`, `minor_factors`, `major_factors`,
`top1`); each of them says which pairs it shows and how they are grouped. The effect is on the mean over
out-of-domain sets, at the primary x0 of the pair's study.
"""

from collections.abc import Callable, Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from seqarch.figures.errors import FigureError
from seqarch.figures.render import Look
from seqarch.figures.selection import verdict_interval
from seqarch.figures.spec import FigureJob
from seqarch.figures.style import BAND, INK, QUIET, ordered
from seqarch.figures.verdicts import MISSING, estimate, verdict_legend

COLUMNS = [
    *("group", "study", "setting", "arch", "ref", "kind", "seed", "delta", "mean", "lo", "hi", "verdict"),
    *("interval", "margin", "n_seeds", "n_docs", "x0", "phase", "confidence"),
]
ROW, HEADER = 0.22, 0.26  # inches of a pair, of a group's name


def pairs(
    tables: Mapping[str, pd.DataFrame],
    job: FigureJob,
    group: Callable[[str], str | None],
) -> pd.DataFrame:
    """The rows of the job's studies at the primary x0; `group` names a pair's group (None: not shown)."""
    rows = tables["equal_loss"]
    if missing := sorted(set(job.studies) - set(rows["study"])):
        raise FigureError(f"no rows of the studies {', '.join(missing)}: compare again")
    rows = rows[rows["study"].isin(job.studies)] if job.studies else rows
    rows = rows[rows["length"] == rows["length"].min()]
    rows = rows[rows["is_primary"].astype(bool) & (rows["domain"] == "macro_ood")]
    rows = verdict_interval(rows.assign(group=rows["arch"].map(group)))
    rows = rows[rows["group"].notna()]
    order = {name: i for i, name in enumerate(ordered(rows["arch"]))}
    place = rows.assign(order=rows["arch"].map(order)).sort_values(
        ["group", "order", "study", "setting", "kind", "seed"], kind="stable"
    )
    return place.reindex(columns=COLUMNS).reset_index(drop=True)


def draw(frame: pd.DataFrame, look: Look) -> Figure:
    """A column a setting; groups from the top, each with its pairs."""
    settings = sorted(frame["setting"].unique())
    places, height = _places(frame)
    top, bottom = 0.85, 0.6
    tall = height + top + bottom
    names = [_label(frame, *pair) for pair in frame[["arch", "ref"]].itertuples(index=False)]
    longest = max(*map(len, names), *(1.15 * len(group) for group in frame["group"]))  # groups are bold
    left, panel, numbers = 0.35 + 0.062 * longest, 2.3, 1.45
    wide = left + len(settings) * (panel + numbers)
    figure = plt.figure(figsize=(wide, tall))
    figure.set_layout_engine("none")  # the numbers beside the axes have columns of their own
    limits = _limits(frame)
    for i, setting in enumerate(settings):
        box = ((left + i * (panel + numbers)) / wide, bottom / tall, panel / wide, height / tall)
        axes = figure.add_axes(box)
        _frame(axes, frame, height, limits)
        axes.set_title(f"trained on: {setting}")
        for pair, place in places.items():
            _row(axes, place, _of(frame, setting, *pair), look)
            if i == 0:
                text = _label(frame, *pair[1:])
                axes.annotate(text, (0, place), (-6, 0), ("axes fraction", "data"), "offset points", **_LABEL)
        if i == 0:
            for group, place in _headers(frame).items():
                axes.annotate(
                    group, (0, place), (-6, 0), ("axes fraction", "data"), "offset points", **_GROUP
                )
    references = sorted(frame["ref"].unique())
    what = f"minus that of {references[0]}" if len(references) == 1 else "of the first minus the second"
    label = f"out-of-domain loss {what} at equal in-domain loss (nats per token, mean of sets)"
    figure.supxlabel(label, fontsize=8)
    verdict_legend(figure, frame)
    return figure


_LABEL: dict[str, Any] = {"ha": "right", "va": "center", "fontsize": 7}
_GROUP: dict[str, Any] = {**_LABEL, "fontweight": "bold", "color": INK}


def _keys(frame: pd.DataFrame) -> list[tuple[str, str, str]]:
    return list(frame[["group", "arch", "ref"]].drop_duplicates().itertuples(index=False, name=None))


def _places(frame: pd.DataFrame) -> tuple[dict[tuple[str, str, str], float], float]:
    """Where each pair's row is, in inches from the top, and the height of all."""
    places, at, group = {}, 0.0, None
    for pair in _keys(frame):
        if pair[0] != group:
            group, at = pair[0], at + HEADER
        places[pair] = at + ROW / 2
        at += ROW
    return places, at + 0.08


def _headers(frame: pd.DataFrame) -> dict[str, float]:
    places, _ = _places(frame)
    first: dict[str, float] = {}
    for (group, *_), place in places.items():
        first.setdefault(group, place - ROW / 2 - HEADER / 2 + 0.03)
    return first


def _label(frame: pd.DataFrame, arch: str, ref: str) -> str:
    return arch if frame["ref"].nunique() == 1 else f"{arch} − {ref}"


def _of(frame: pd.DataFrame, setting: str, group: str, arch: str, ref: str) -> pd.DataFrame:
    same = (frame["group"] == group) & (frame["arch"] == arch) & (frame["ref"] == ref)
    return frame[same & (frame["setting"] == setting)]


def _limits(frame: pd.DataFrame) -> tuple[float, float]:
    """Of all panels alike: all estimates and seeds, twice the margin; far wider intervals are cut."""
    margin = float(frame["margin"].max())
    inner = frame[["delta", "mean"]].to_numpy(float)
    low, high = np.nanmin(inner, initial=-2 * margin), np.nanmax(inner, initial=2 * margin)
    span = high - low
    low = max(np.nanmin(frame["lo"].to_numpy(float), initial=low), low - span)
    high = min(np.nanmax(frame["hi"].to_numpy(float), initial=high), high + span)
    space = 0.06 * (high - low)
    return float(low - space), float(high + space)


def _frame(axes: Axes, frame: pd.DataFrame, height: float, limits: tuple[float, float]) -> None:
    margin = float(frame["margin"].max())
    axes.axvspan(-margin, margin, color=BAND, linewidth=0, zorder=0)
    axes.axvline(0, color=INK, linewidth=0.8, zorder=1)
    axes.set_ylim(height, 0)
    axes.set_xlim(*limits)
    axes.set_yticks([])
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    axes.locator_params(axis="x", nbins=5)


def _row(axes: Axes, place: float, rows: pd.DataFrame, look: Look) -> None:
    summary = rows[rows["kind"] == "summary"]
    beside: dict[str, Any] = {"va": "center", "fontsize": 6.5, "color": QUIET}
    if summary.empty or np.isnan(summary["mean"].iloc[0]):
        words = "no data" if summary.empty else "no overlap"
        axes.text(0.5, place, words, transform=axes.get_yaxis_transform(), **MISSING)
        return
    row = summary.iloc[0]
    seeds = rows.loc[rows["kind"] == "seed", "delta"]
    estimate(axes, place, row, seeds, look[row["arch"]].colour, below=0.07)
    if np.isfinite(row["lo"]):
        words = f"{row['mean']:+.3f} [{row['lo']:+.3f}, {row['hi']:+.3f}]"
    else:
        words = f"{row['mean']:+.3f}, n = {row['n_seeds']:.0f}"
    words = words.replace("-", "−")
    axes.annotate(words, (1, place), (6, 0), ("axes fraction", "data"), "offset points", **beside)
