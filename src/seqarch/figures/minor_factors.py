"""Paper A: parts of architectures that are said not to decide, taken out or put in, at equal loss."""

from collections.abc import Mapping

import pandas as pd

from seqarch.figures.effects import draw as draw  # what makes this a figure
from seqarch.figures.factors import ablations
from seqarch.figures.spec import FigureJob

TABLES = ("equal_loss",)


def plotted(tables: Mapping[str, pd.DataFrame], job: FigureJob) -> pd.DataFrame:
    """All ablations of the studies that name this figure."""
    return ablations(tables, job)
