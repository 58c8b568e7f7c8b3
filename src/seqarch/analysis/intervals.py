"""What a few paired differences say: intervals, tests of difference and of equivalence, power."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]
POWER = 0.8  # of the smallest detectable effect
MOST = 0.9  # of the bootstrap replicates must have a value
UNKNOWN = "no error over documents: too few of them, or too few draws in which the curves overlap"


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error and degrees of freedom; no interval where `se` is NaN.

    `about` says which repetition the error speaks of.
    """

    mean: float
    se: float
    df: float
    about: str

    def interval(self, confidence: float) -> tuple[float, float]:
        """mean ± t_df · se; (NaN, NaN) with no standard error."""
        half = stats.t.ppf((1 + confidence) / 2, self.df) * self.se
        return self.mean - half, self.mean + half

    def p_different(self) -> float:
        """Two-sided p of mean = 0."""
        if self.se == 0:
            return float(self.mean == 0)
        return float(2 * stats.t.sf(abs(self.mean) / self.se, self.df))

    def p_equivalent(self, margin: float) -> float:
        """Two one-sided tests: p of |mean| >= margin (Schuirmann 1987)."""
        if self.se == 0:
            return float(abs(self.mean) >= margin)
        return float(stats.t.sf((margin - abs(self.mean)) / self.se, self.df))

    def smallest_detectable(self, confidence: float) -> float:
        """The true difference found with a power of 80 % at this standard error (one test, without Holm)."""
        return float((stats.t.ppf((1 + confidence) / 2, self.df) + stats.t.ppf(POWER, self.df)) * self.se)


def over_seeds(deltas: Floats) -> Estimate:
    """From one difference a seed [S]: the t-interval, conditional on the documents. Empty with one seed."""
    n = len(deltas)
    se = float(np.std(deltas, ddof=1) / np.sqrt(n)) if n > 1 else float("nan")
    return Estimate(float(np.mean(deltas)), se, max(n - 1, 1), "seeds")


def over_seeds_and_documents(mean: float, replicates: Floats, n_docs: int) -> Estimate:
    """From hierarchical bootstrap replicates of the mean difference [B] (seeds, then documents drawn anew).

    A bootstrap draws from n documents as if they were the population, so its standard error is short by
    sqrt((n-1)/n) and normal quantiles are too small: hence the factor and t with n-1 degrees of freedom
    (Hesterberg 2015, section 5). Replicates without a value (no overlap in that draw) are left out; if they
    are more than a tenth, the error is not known: they are those in which the documents matter most.

    Args:
        n_docs: documents of the smallest domain involved.
    """
    valid = replicates[~np.isnan(replicates)]
    if n_docs < 2 or len(valid) < max(2, MOST * len(replicates)):
        return Estimate(mean, float("nan"), 1, "seeds and documents")
    se = float(np.std(valid, ddof=1) * np.sqrt(n_docs / (n_docs - 1)))
    return Estimate(mean, se, n_docs - 1, "seeds and documents")


@dataclass(frozen=True)
class Cautious:
    """One mean with errors of several kinds: each test and each interval is that of the kind that says least.

    Which kind that is depends on the level: t over few seeds grows much faster than t over many documents as
    the level of a test sinks, as Holm's does. So none is chosen in advance.
    """

    kinds: tuple[Estimate, ...]  # of the same mean

    @property
    def mean(self) -> float:
        return self.kinds[0].mean

    @property
    def known(self) -> bool:
        """Whether there is an interval."""
        return all(np.isfinite([each.mean, each.se]).all() for each in self.kinds)

    def interval(self, confidence: float) -> tuple[float, float]:
        return self._widest(confidence).interval(confidence) if self.known else (float("nan"), float("nan"))

    def about(self, confidence: float) -> str:
        """The kind behind the interval."""
        return self._widest(confidence).about

    def p_different(self) -> float:
        return max(each.p_different() for each in self.kinds)

    def p_equivalent(self, margin: float) -> float:
        return max(each.p_equivalent(margin) for each in self.kinds)

    def smallest_detectable(self, confidence: float) -> float:
        return max(each.smallest_detectable(confidence) for each in self.kinds)

    def _widest(self, confidence: float) -> Estimate:
        return max(self.kinds, key=lambda each: each.interval(confidence)[1])


def largest_sd_for_equivalence(margin: float, n_seeds: int, confidence: float) -> float:
    """The SD over seeds above which not even a zero difference can be shown equivalent; NaN with one seed."""
    if n_seeds < 2:
        return float("nan")
    return float(margin * np.sqrt(n_seeds) / stats.t.ppf(confidence, n_seeds - 1))


def welch(a: Floats, b: Floats) -> Estimate:
    """mean(a) − mean(b) without pairing, unequal variances (Welch 1947); empty with one seed."""
    difference = float(a.mean() - b.mean())
    if min(len(a), len(b)) < 2:
        return Estimate(difference, float("nan"), 1, "seeds")
    squares = [float(np.var(values, ddof=1) / len(values)) for values in (a, b)]
    total = sum(squares)
    parts = sum(v**2 / (len(values) - 1) for v, values in zip(squares, (a, b), strict=True))
    return Estimate(difference, total**0.5, total**2 / parts if parts else 1.0, "seeds")


def welch_p(a: Floats, b: Floats) -> float:
    """p of equal means without pairing, as a sensitivity analysis; NaN with one seed."""
    estimate = welch(a, b)
    return float("nan") if np.isnan(estimate.se) else estimate.p_different()
