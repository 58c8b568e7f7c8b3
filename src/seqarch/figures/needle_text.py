"""Needles in text by depth and length: a panel for each format and model, controls below the depths.

Drawn as the needle lines are; only the table is another.
"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from seqarch.figures.needle_heatmap import COLUMNS, CONTROLS, KEY, draw
from seqarch.figures.spec import FigureJob

__all__ = ["TABLES", "draw", "plotted"]
TABLES = ("needle",)


def plotted(tables: Mapping[str, pd.DataFrame], job: FigureJob) -> pd.DataFrame:
    """Rows `depth` (score: mean over the runs with signal; empty without any), and one for each control."""
    rows = tables["needle"]
    rows = rows[rows["format"] != "mean"].copy()
    rows["task"], rows["kind"] = rows["format"], "text"
    rows["seed"] = rows["run_id"].fillna("published") if "run_id" in rows else 0
    rows["with_signal"] = rows["score"].where(rows["signal"] == "ok")
    common: dict[str, Any] = {"n_seeds": ("seed", "nunique"), "n": ("n", "sum")}
    cells = rows.groupby([*KEY, "depth"], as_index=False).agg(
        score=("with_signal", "mean"), n_signal=("with_signal", "count"), **common
    )
    parts = [cells.assign(row="depth")]
    once = rows.drop_duplicates([*KEY, "seed"])
    for control in CONTROLS:
        mean = once.groupby(KEY, as_index=False).agg(score=(control, "mean"), **common)
        parts.append(mean.assign(row=control))
    frame = pd.concat(parts, ignore_index=True).reindex(columns=COLUMNS)
    return frame.sort_values(["task", "arch", "row", "length", "depth"]).reset_index(drop=True)
