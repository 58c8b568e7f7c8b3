"""What long-context and recall scores say of an entry or a pair: contrasts within a population.

The tables `ruler`, `needle` and `recall` are read by their common columns. Models that may be compared form a
population: runs of one training setting, models trained on the recall tasks (setting `recall`), or published
models, which have no setting and no seeds.

A contrast is made cell by cell (a task at a depth, say), where both of its sides were measured, so that no
side averages over other tasks than the other. Two entries are compared at the same places: at the same
multiples of each one's training length, or at the same depths.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from seqarch.analysis.claims_evidence import Evidence, NotRun
from seqarch.analysis.errors import ComparisonError
from seqarch.analysis.intervals import Estimate

PUBLISHED = "published"  # the population of rows without a setting
MIDDLE = (40.0, 60.0)  # depths in percent, inclusive
ENDS = (10.0, 90.0)  # up to, and from
AGGREGATES = ("mean", "partial_mean", "avg", "wavg_inc", "wavg_dec")  # of other rows
COLUMNS = ("arch", "seed", "setting", "task", "length", "score", "n")
# What tells the cells of a contrast apart, beside what it contrasts; where a table has it.
CELL = ("task", "profile", "n_pairs")
OF_MEASURE = {"beyond_training_length": ("train_length", "depth"), "middle": ("depth", "length")}
SAMPLES = "samples of one model"


class Scores:
    """The scores of all runs and models, as claims use them."""

    def __init__(self, rows: pd.DataFrame | None) -> None:
        """`rows`: those of all tables together; None: there are none."""
        self.rows = None if rows is None else _evidence(rows)

    def populations(self, measure: str) -> list[str]:
        """Those with any row that the measure speaks of, in the order of names, published models last."""
        what = OF_MEASURE[measure][0]
        if self.rows is None or {"setting", what} - set(self.rows):
            return []
        names = self.rows.loc[self.rows[what].notna(), "setting"].unique()
        return sorted(names, key=lambda name: (name == PUBLISHED, name))

    def entries(self, population: str) -> set[str]:
        """The entries or models that a population has scores of."""
        assert self.rows is not None
        return set(self.rows.loc[self.rows["setting"] == population, "arch"])

    def contrast(
        self, measure: str, arch: str, ref: str | None, population: str, tasks: Sequence[str]
    ) -> Evidence:
        """An entry's contrast, minus the reference's where there is one, over the cells that both have.

        `beyond_training_length`: score beyond the training length minus score up to it; `middle`: score in
        the middle minus at the ends. Each cell counts alike.

        Raises NotRun for missing rows and columns, ComparisonError for entries without a common seed.
        """
        rows = self._chosen(measure, population, tasks)
        sides = [_measured(rows[rows["arch"] == name], measure, name) for name in (arch, ref) if name]
        places = set.intersection(*(_places(side) for side in sides))
        cells = [_cells(side[side["place"].isin(places)]) for side in sides]
        common = set.intersection(*({key for _, key in each.index} for each in cells))
        if not common:
            raise NotRun(f"{arch} and {ref} have no scores of the same tasks on both sides of {measure}")
        found = [_of_entry(each, common) for each in cells]
        return found[0] if len(found) == 1 else minus(*found)

    def _chosen(self, measure: str, population: str, tasks: Sequence[str]) -> pd.DataFrame:
        needed = [*COLUMNS, OF_MEASURE[measure][0]]
        absent = [] if self.rows is None else [name for name in needed if name not in self.rows]
        if self.rows is None or absent:
            what = f"the scores lack {', '.join(absent)}" if absent else "no table of scores was given"
            raise NotRun(f"{what}: run the long-context evaluation")
        rows = self.rows[self.rows["setting"] == population]
        return rows[rows["task"].isin(tasks)] if tasks else rows


def _evidence(rows: pd.DataFrame) -> pd.DataFrame:
    """Measured cells alone: no averages of other rows, no cell whose controls say that it says nothing."""
    keep = pd.Series(True, index=rows.index)
    if "task" in rows:
        keep &= ~rows["task"].isin(AGGREGATES)
    if "format" in rows:
        keep &= rows["format"].isna() | (rows["format"] != "mean")
    if "signal" in rows:
        keep &= rows["signal"].isna() | (rows["signal"] == "ok")
    if "score" in rows:
        keep &= rows["score"].notna()
    rows = rows[keep]
    return rows.assign(setting=rows["setting"].fillna(PUBLISHED)) if "setting" in rows else rows


def _measured(rows: pd.DataFrame, measure: str, name: str) -> pd.DataFrame:
    """What was measured on the two sides: seed, cell, side, place, score, its variance over samples, n.

    A place is what two entries must share: the cell, the side, and the multiple of the training length, or
    the depth. A seed of -1 stands for a model without seeds. Raises NotRun without rows on both sides.
    """
    none = NotRun(f"no scores of {name} with signal on both sides of {measure}")
    if rows.empty:
        raise none
    what, other = OF_MEASURE[measure]
    if measure == "middle":
        second = (rows["depth"] <= ENDS[0]) | (rows["depth"] >= ENDS[1])
        first = rows["depth"].between(*MIDDLE)
        at = rows["depth"]
    else:
        first = rows["length"] > rows[what]
        second = ~first & rows[what].notna()
        at = rows["length"] / rows[what]
    keys = [column for column in (*CELL, other) if column in rows]
    text = rows[keys].astype("string").fillna("")
    n = rows["n"].fillna(1)
    # A score of 0 or 1 is not known exactly (Agresti and Coull).
    smoothed = ((rows["score"] * n + 1) / (n + 2)).clip(0, 1)
    frame = pd.DataFrame(
        {
            "seed": rows["seed"].fillna(-1).astype(int),
            "cell": text.agg("|".join, axis=1),
            "side": np.select([first, second], ["first", "second"], ""),
            "score": rows["score"],
            "variance": smoothed * (1 - smoothed) / n,
            "n": n,
        }
    )
    frame["place"] = frame["cell"] + "|" + frame["side"] + "|" + at.astype(float).map("{:.6g}".format)
    frame = frame[frame["side"] != ""]
    if set(frame["side"]) != {"first", "second"}:
        raise none
    return frame


def _places(measured: pd.DataFrame) -> set[str]:
    """The places that every seed has: seeds are compared on the same."""
    seeds = measured.groupby("place")["seed"].nunique()
    return set(seeds.index[seeds == measured["seed"].nunique()])


def _cells(measured: pd.DataFrame) -> pd.DataFrame:
    """A row a seed and cell that has both sides: their difference, and its variance over samples."""
    groups = measured.groupby(["seed", "cell", "side"])
    each = groups.agg(score=("score", "mean"), sum=("variance", "sum"), count=("n", "size"), n=("n", "sum"))
    each["variance"] = each["sum"] / each["count"] ** 2
    wide = each.unstack("side")
    if wide.empty or {"first", "second"} - set(wide["score"].columns):
        return pd.DataFrame(index=wide.index[:0])
    cells = pd.DataFrame(
        {
            "value": wide["score"]["first"] - wide["score"]["second"],
            "variance": wide["variance"]["first"] + wide["variance"]["second"],
            "n": np.minimum(wide["n"]["first"], wide["n"]["second"]),
        }
    )
    return cells.dropna()


def _of_entry(cells: pd.DataFrame, common: set[str]) -> Evidence:
    """The mean over cells, of each seed; with the error over the samples, the same for all seeds."""
    cells = cells[cells.index.get_level_values("cell").isin(common)]
    by_seed = cells.groupby("seed")
    values = by_seed["value"].mean()
    variance = float((by_seed["variance"].sum() / by_seed.size() ** 2).mean())
    samples = Estimate(float(values.mean()), variance**0.5, float(cells["n"].min() - 1), SAMPLES)
    if list(values.index) == [-1]:
        return Evidence({}, samples=samples)
    seeds = values.index.to_numpy(dtype=np.int64).tolist()
    return Evidence(dict(zip(seeds, values.to_numpy().tolist(), strict=True)), samples=samples)


def minus(a: Evidence, b: Evidence) -> Evidence:
    """The difference of two entries' values: paired by seed; and over samples."""
    assert a.samples is not None
    assert b.samples is not None
    seeds = [seed for seed in a.values if seed in b.values]
    if (a.values or b.values) and not seeds:
        raise ComparisonError("the two entries share no seed: evaluate both with the same seeds")
    values = {seed: a.values[seed] - b.values[seed] for seed in seeds}
    mean = float(np.mean(list(values.values()))) if values else a.samples.mean - b.samples.mean
    se = float(np.hypot(a.samples.se, b.samples.se))
    return Evidence(values, samples=Estimate(mean, se, min(a.samples.df, b.samples.df), SAMPLES))
