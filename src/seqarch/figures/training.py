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
from seqarch.figures.style import QUIET, architecture_legend, compact, ordered, seeds_words

TABLES = ("training",)
TRUNK, BINS = "trunk", 40
COLUMNS = ["kind", "setting", "arch", "seed", "branch", "start", "tokens", "loss", "n_seeds"]


def plotted(tables: Mapping[str, pd.DataFrame], job: FigureJob) -> pd.DataFrame:
    """Rows of kind train (a seed's mean loss in each of 40 bins of tokens), validation, and unigram.

    `start` is where a branch leaves the trunk: before its first row. Training batches come from the
    setting's own mix; the validation loss is in-domain in every setting.
    """
    rows = tables["training"]
    if rows.empty:
        return pd.DataFrame(columns=COLUMNS)
    trunk = rows[rows["branch"] == TRUNK] if (rows["branch"] == TRUNK).any() else rows
    width = trunk["tokens"].max() / BINS
    key = ["setting", "arch", "seed", "branch"]
    rows = rows.assign(start=rows.groupby(key)["tokens"].transform("min"))
    binned = rows.assign(bin=np.ceil(rows["tokens"] / width)).groupby([*key, "start", "bin"], as_index=False)
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
        words = seeds_words(part["n_seeds"].dropna().unique())
        grid[0, column].set_title(f"trained on: {setting}\n{words}")
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
    """The mean over seeds as a line, the seeds' range as a band; decays dotted, from where they start."""
    for name in names:
        mine = rows[rows["arch"] == name]
        trunk = _trunk(mine)
        by_bin = trunk.groupby("tokens")["loss"].agg(["mean", "min", "max"])
        axes.fill_between(
            by_bin.index, by_bin["min"], by_bin["max"], color=look[name].colour, alpha=0.15, linewidth=0
        )
        axes.plot(by_bin.index, by_bin["mean"], color=look[name].colour, linestyle=look[name].dash)
        for _, part in mine.drop(index=trunk.index).groupby("branch", sort=True):
            _decay(axes, trunk, part, look[name].colour)


def _trunk(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows before any decay; all of them where there is no trunk."""
    trunk = rows[rows["branch"] == TRUNK]
    return trunk if len(trunk) else rows


def _decay(axes: Axes, trunk: pd.DataFrame, branch: pd.DataFrame, colour: str) -> None:
    """A decay's mean over seeds, from the trunk's last point before it to its end."""
    before = trunk[trunk["tokens"] < branch["start"].min()]
    path = branch.groupby("tokens")["loss"].mean()
    if len(before):
        path = pd.concat([before.groupby("tokens")["loss"].mean().iloc[-1:], path])
    axes.plot(path.index, path, color=colour, linestyle=":", linewidth=0.9)


def _validation(axes: Axes, rows: pd.DataFrame, names: list[str], look: Look) -> None:
    """The trunk as a line; from it each decay, dotted, to its annealed model. Seeds are small points."""
    for name in names:
        mine = rows[rows["arch"] == name]
        trunk = _trunk(mine)
        mean = trunk.groupby("tokens")["loss"].mean()
        axes.plot(mean.index, mean, color=look[name].colour, linestyle=look[name].dash, linewidth=1)
        for _, part in mine.drop(index=trunk.index).groupby("branch", sort=True):
            _decay(axes, trunk, part, look[name].colour)
            mean = part.groupby("tokens")["loss"].mean()
            last = mean.index[-1]
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
