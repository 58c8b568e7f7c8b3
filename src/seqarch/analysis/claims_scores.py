"""What long-context and recall scores say of an entry or a pair: contrasts within a population.

The tables `ruler`, `needle` and `recall` are read by their common columns. Models that may be compared form a
population: runs of one training setting, models trained on the recall tasks (setting `recall`), or published
models, which have no setting and no seeds.

A contrast is made cell by cell (a task at a depth, say), where both of its sides were measured, so that no
side averages over other tasks than the other.
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
        sides = [_cells(rows[rows["arch"] == name], measure, name) for name in (arch, ref) if name]
        common = set.intersection(*({key for _, key in side.index} for side in sides))
        if not common:
            raise NotRun(f"{arch} and {ref} have no scores of the same tasks on both sides of {measure}")
        found = [_of_entry(side, common) for side in sides]
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


def _cells(rows: pd.DataFrame, measure: str, name: str) -> pd.DataFrame:
    """A row a seed and cell that has both sides: their difference, and its variance over samples.

    A seed of -1 stands for a model without seeds.
    """
    what, other = OF_MEASURE[measure]
    if measure == "middle":
        second = (rows["depth"] <= ENDS[0]) | (rows["depth"] >= ENDS[1])
        first = rows["depth"].between(*MIDDLE)
    else:
        first = rows["length"] > rows[what]
        second = ~first & rows[what].notna()
    keys = [column for column in (*CELL, other) if column in rows]
    text = rows[keys].astype("string").fillna("")
    n = rows["n"].fillna(1)
    smoothed = (rows["score"] * n + 1) / (n + 2)  # a score of 0 or 1 is not known exactly (Agresti and Coull)
    frame = pd.DataFrame(
        {
            "seed": rows["seed"].fillna(-1).astype(int),
            "cell": text.agg("|".join, axis=1) if len(rows) else "",
            "side": np.select([first, second], ["first", "second"], ""),
            "score": rows["score"],
            "variance": smoothed * (1 - smoothed) / n,
            "n": n,
        }
    )
    groups = frame[frame["side"] != ""].groupby(["seed", "cell", "side"])
    each = groups.agg(score=("score", "mean"), sum=("variance", "sum"), count=("n", "size"), n=("n", "sum"))
    each["variance"] = each["sum"] / each["count"] ** 2
    wide = each.unstack("side")
    if wide.empty or {"first", "second"} - set(wide["score"].columns):
        raise NotRun(f"no scores of {name} with signal on both sides of {measure}")
    result = pd.DataFrame(
        {
            "value": wide["score"]["first"] - wide["score"]["second"],
            "variance": wide["variance"]["first"] + wide["variance"]["second"],
            "n": np.minimum(wide["n"]["first"], wide["n"]["second"]),
        }
    ).dropna()
    # Cells that every seed has: seeds are compared on the same.
    seeds = result.index.get_level_values("seed").nunique()
    complete = result.groupby("cell")["value"].transform("size") == seeds
    if not complete.any():
        raise NotRun(f"no scores of {name} with signal on both sides of {measure}, for all of its seeds")
    return result[complete]


def _of_entry(cells: pd.DataFrame, common: set[str]) -> Evidence:
    cells = cells[cells.index.get_level_values("cell").isin(common)]
    values = cells.groupby("seed")["value"].mean()
    if list(values.index) != [-1]:
        seeds = values.index.to_numpy(dtype=np.int64).tolist()
        return Evidence(dict(zip(seeds, values.to_numpy().tolist(), strict=True)))
    se = float(np.sqrt(cells["variance"].sum()) / len(cells))
    return Evidence({}, samples=Estimate(float(values.iloc[0]), se, float(cells["n"].min() - 1), SAMPLES))


def minus(a: Evidence, b: Evidence) -> Evidence:
    """The difference of two entries' values: paired by seed; of models without seeds, over samples."""
    if a.samples is not None and b.samples is not None:
        se = float(np.hypot(a.samples.se, b.samples.se))
        df = min(a.samples.df, b.samples.df)
        return Evidence({}, samples=Estimate(a.samples.mean - b.samples.mean, se, df, SAMPLES))
    seeds = [seed for seed in a.values if seed in b.values]
    if not seeds:
        raise ComparisonError("the two entries share no seed: evaluate both with the same seeds")
    return Evidence({seed: a.values[seed] - b.values[seed] for seed in seeds})
