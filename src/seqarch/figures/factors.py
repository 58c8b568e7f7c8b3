"""Ablations by the part that they change: what `minor_factors` and `major_factors` share."""

from collections.abc import Mapping

import pandas as pd

from seqarch.figures.effects import pairs
from seqarch.figures.spec import FigureJob

WORDS = {  # switch -> the part of an architecture that it changes
    "bonus": "bonus for the current token",
    "conv": "short convolution",
    "decay": "data-dependent decay",
    "feature_map": "feature map",
    "gate": "output gate",
    "keys": "real keys",
    "neg_eigval": "negative eigenvalues",
    "out_norm": "norm of the output",
    "position": "position encoding",
    "temperature": "softmax temperature",
    "token_shift": "token shift",
    "window": "visibility (window)",
}


def ablations(tables: Mapping[str, pd.DataFrame], job: FigureJob) -> pd.DataFrame:
    """The pairs of the job's studies, grouped by the switches in which they differ from their reference."""

    def group(arch: str) -> str:
        switches = job.factors.get(arch, ())
        return " + ".join(WORDS.get(switch, switch) for switch in switches) or "other"

    return pairs(tables, job, group)
