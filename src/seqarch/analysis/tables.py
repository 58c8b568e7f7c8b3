"""One table of all runs, from each run's own."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from seqarch.analysis.errors import ComparisonError

MOST_ROWS = 2000  # of one branch of one run in the training table; more says nothing more in a plot
RUN = ["setting", "arch", "seed"]


def gathered(paths: Sequence[Path], order: Sequence[str]) -> pa.Table:
    """The rows of all files, sorted by `order`; ComparisonError if columns differ or no file is given."""
    if not paths:
        raise ComparisonError("no run to gather: expected at least one file")
    tables = [pq.read_table(path) for path in paths]
    for path, table in zip(paths, tables, strict=True):
        if table.schema.names != tables[0].schema.names:
            raise ComparisonError(
                f"{path} has other columns than {paths[0]}: made by other code; evaluate both with the same"
            )
    return (
        pa.concat_tables(tables)
        .replace_schema_metadata(None)
        .sort_by([(name, "ascending") for name in order])
    )


def training(paths: Sequence[Path], experiment: str) -> pa.Table:
    """The training curves of all runs, long branches thinned.

    A row stands for `steps` consecutive steps: the last one's step, tokens and learning rate, the mean of
    loss and gradient norm, and the validation loss if one was taken (rows with one end a group).
    """
    table = gathered(paths, [*RUN, "branch", "step"])
    frame = table.to_pandas()
    counts = frame.groupby([*RUN, "branch"])["step"].transform("size").to_numpy()
    number = frame.groupby([*RUN, "branch"]).cumcount().to_numpy()
    width = np.ceil(counts / MOST_ROWS)
    starts = (number % width == 0) | frame["validation_loss"].notna().shift(fill_value=True).to_numpy()
    group = frame.assign(group=np.cumsum(starts)).groupby("group", sort=True)
    rows = group.last(skipna=False)
    rows[["loss", "grad_norm"]] = group[["loss", "grad_norm"]].mean()
    rows.insert(0, "experiment", experiment)
    rows["steps"] = group.size()
    return pa.Table.from_pandas(rows, preserve_index=False).replace_schema_metadata(None)
