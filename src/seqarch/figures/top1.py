"""Paper A: attention to the one element or the one chunk that matters most, against the reference."""

from collections.abc import Mapping

import pandas as pd

from seqarch.figures.effects import draw as draw  # what makes this a figure
from seqarch.figures.effects import pairs
from seqarch.figures.spec import FigureJob
from seqarch.figures.style import guessed_mixers

TABLES = ("equal_loss",)
GROUPS = {"top1_element": "Top-1 element", "top1_chunk": "Top-1 chunk"}


def plotted(tables: Mapping[str, pd.DataFrame], job: FigureJob) -> pd.DataFrame:
    """Entries of the two mixers; others of the studies are left out."""

    def group(arch: str) -> str | None:
        mixers = list(job.architectures.get(arch) or guessed_mixers(arch))
        return GROUPS.get(mixers[0]) if len(mixers) == 1 else None

    return pairs(tables, job, group)
