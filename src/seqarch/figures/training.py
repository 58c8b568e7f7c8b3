"""Training curves: training and in-domain validation loss against tokens, for each setting."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from seqarch.figures.render import Look
from seqarch.figures.spec import FigureJob
from seqarch.figures.style import QUIET, architecture_legend, compact, ordered

TABLES = ("training",)
TRUNK, BINS = "trunk", 40
COLUMNS = ["kind", "setting", "arch", "seed", "branch", "tokens", "loss", "n_seeds"]


def plotted(tables: Mapping[str, pd.DataFrame], job: FigureJob) -> pd.DataFrame:
    """Rows of kind train (a seed's mean loss in each of 40 bins of tokens, trunk only), validation, and
    unigram.

    Training batches come from the setting's own mix; the validation loss is in-domain in every setting.
    """
    rows = tables["training"]
    if rows.empty:
        return pd.DataFrame(columns=COLUMNS)
    trunk = rows[rows["branch"] == TRUNK] if (rows["branch"] == TRUNK).any() else rows
    width = trunk["tokens"].max() / BINS
    key = ["setting", "arch", "seed", "branch"]
    binned = trunk.assign(bin=np.ceil(trunk["tokens"] / width)).groupby([*key, "bin"], as_index=False)
    train = binned[["tokens", "loss"]].mean().assign(kind="train")
    validation = rows.dropna(subset=["validation_loss"]).copy()
    validation["loss"] = validation["validation_loss"]
    parts = [train, validation.assign(kind="validation")]
    if "unigram" in tables:
        reference = tables["unigram"]
        reference = reference[reference["domain"] == "macro_id"]
        parts.append(reference.rename(columns={"nats_per_token": "loss"}).assign(kind="unigram"))
    frame = pd.concat(parts, ignore_index=True).reindex(columns=COLUMNS)
    frame["n_seeds"] = frame.groupby(["setting", "arch"])["seed"].transform("nunique")
    return frame.sort_values(["kind", *key, "tokens"]).reset_index(drop=True)


def draw(frame: pd.DataFrame, look: Look) -> Figure:
    """A column a setting; training loss above, validation loss below."""
    settings = sorted(frame["setting"].unique())
    names = ordered(frame["arch"].dropna())
    shape = (2, len(settings))
    size = (1.2 + 3.2 * len(settings), 5.2)
    figure, grid = plt.subplots(*shape, figsize=size, sharex=True, sharey="row", squeeze=False)
    for column, setting in enumerate(settings):
        part = frame[frame["setting"] == setting]
        _train(grid[0, column], part[part["kind"] == "train"], names, look)
        _validation(grid[1, column], part[part["kind"] == "validation"], names, look)
        _reference(grid[1, column], part[part["kind"] == "unigram"])
        grid[0, column].set_title(f"trained on: {setting}")
        grid[1, column].set_xlabel("training tokens")
        grid[1, column].xaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))
        grid[1, column].xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    grid[0, 0].set_ylabel("training loss\n(nats per token)")
    grid[1, 0].set_ylabel("in-domain validation loss\n(nats per token)")
    annealed = Line2D([], [], color=QUIET, marker="o", markersize=4, linestyle="none", label="annealed model")
    dotted = Line2D([], [], color=QUIET, linestyle=":", label="its decay")
    architecture_legend(figure, names, look, [annealed, dotted])
    return figure


def _train(axes: Axes, rows: pd.DataFrame, names: list[str], look: Look) -> None:
    """The mean over seeds as a line, the seeds' range as a band."""
    for name in names:
        by_bin = rows[rows["arch"] == name].groupby("tokens")["loss"].agg(["mean", "min", "max"])
        if len(by_bin):
            axes.fill_between(
                by_bin.index, by_bin["min"], by_bin["max"], color=look[name].colour, alpha=0.15, linewidth=0
            )
            axes.plot(by_bin.index, by_bin["mean"], color=look[name].colour, linestyle=look[name].dash)


def _validation(axes: Axes, rows: pd.DataFrame, names: list[str], look: Look) -> None:
    """The trunk as a line; from it each decay, dotted, to its annealed model. Seeds are small points."""
    for name in names:
        mine = rows[rows["arch"] == name]
        for branch, part in mine.groupby("branch", sort=True):
            mean = part.groupby("tokens")["loss"].mean()
            if branch == TRUNK or (mine["branch"] != TRUNK).all():
                axes.plot(mean.index, mean, color=look[name].colour, linestyle=look[name].dash, linewidth=1)
                continue
            last = mean.index[-1]
            trunk = mine[(mine["branch"] == TRUNK) & (mine["tokens"] < last)]
            if len(trunk):
                before = trunk.groupby("tokens")["loss"].mean().iloc[-1:]
                start = before if len(mean) == 1 else mean.iloc[:-1]
                path = pd.concat([start, mean.iloc[-1:]])
                axes.plot(path.index, path, color=look[name].colour, linestyle=":", linewidth=0.9)
            ends = part[part["tokens"] == last]
            axes.plot(ends["tokens"], ends["loss"], **look[name].points(markersize=2, alpha=0.5))
            axes.plot([last], [mean.iloc[-1]], **look[name].points(markersize=4.5, markeredgecolor="white"))


def _reference(axes: Axes, rows: pd.DataFrame) -> None:
    """What a model reaches that knows token frequencies alone."""
    for loss in rows["loss"]:
        axes.axhline(loss, color=QUIET, linestyle=(0, (6, 2)), linewidth=1)
        label = f"unigram entropy {loss:.2f}"
        axes.annotate(
            label,
            (1, loss),
            (-2, 3),
            ("axes fraction", "data"),
            "offset points",
            ha="right",
            color=QUIET,
            fontsize=7,
        )
