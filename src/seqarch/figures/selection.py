"""Which rows of a table a figure is about."""

import pandas as pd

from seqarch.figures.errors import FigureError


def of_study(equal_loss: pd.DataFrame, study: str | None) -> pd.DataFrame:
    """The rows of one study (None: of all) at the shortest window; FigureError for an unknown study."""
    if study is not None:
        found = sorted(equal_loss["study"].unique())
        if study not in found:
            raise FigureError(f"no study {study!r} in the table; it has {', '.join(found) or 'none'}")
        equal_loss = equal_loss[equal_loss["study"] == study]
    return equal_loss[equal_loss["length"] == equal_loss["length"].min()]


def verdict_interval(rows: pd.DataFrame) -> pd.DataFrame:
    """`lo` and `hi`: the interval that the verdict uses, over seeds or over seeds and documents; none if
    there is none."""
    wide = rows["interval"] == "seeds and documents"
    bounds = {
        name: rows[f"ci_{name}"].where(~wide, rows[f"domain_ci_{name}"]).where(rows["interval"].notna())
        for name in ("lo", "hi")
    }
    return rows.assign(**bounds)
