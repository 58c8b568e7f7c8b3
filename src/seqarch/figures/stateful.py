"""Paper A: architectures with a state against the reference, at equal in-domain loss."""

from collections.abc import Mapping

import pandas as pd

from seqarch.figures.effects import draw as draw  # what makes this a figure
from seqarch.figures.effects import pairs
from seqarch.figures.spec import FigureJob
from seqarch.figures.style import ATTENDING, guessed_mixers

TABLES = ("equal_loss",)


def plotted(tables: Mapping[str, pd.DataFrame], job: FigureJob) -> pd.DataFrame:
    """Recurrent architectures, and hybrids that have a recurrent part; others have no state."""

    def group(arch: str) -> str | None:
        mixers = set(job.architectures.get(arch) or guessed_mixers(arch))
        if not mixers - ATTENDING:
            return None
        return "hybrid" if mixers & ATTENDING else "recurrent"

    return pairs(tables, job, group)
