"""Which domain each sample comes from: a fixed, evenly spread order that keeps the weights at every prefix.

Chairman assignment (Tijdeman, Discrete Mathematics 32, 1980): with weights λ_d that sum to 1 and D domains,
an order exists whose counts stay within 1 − 1/(2D − 2) of λ_d t for every d and every t. At step t,

    among the d with  λ_d t − k_d ≥ 1/(2D − 2)  choose the least  (1 − 1/(2D − 2) + k_d) / λ_d,

k_d being how often d was chosen before. Weights are fractions n_d/M here, so that the order has the period M:
the count before any t is one table entry and a multiplication, and a run starts anywhere at no cost.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

MAX_PERIOD = 2**16  # weights are rounded to multiples of 1/MAX_PERIOD where they are no such fractions


class Interleave:
    """An endless order of domains.

    Attributes:
        names: the domains, sorted; those of weight 0 are left out.
        counts: how often each is drawn in one period.
        period: the sum of `counts`.
    """

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.names = tuple(sorted(name for name, count in counts.items() if count > 0))
        self.counts = np.array([counts[name] for name in self.names], dtype=np.int64)
        self.period = int(self.counts.sum())
        self._domain = np.array(_order(self.counts.tolist()), dtype=np.int32)  # [M]
        self._rank = np.empty(
            self.period, dtype=np.int64
        )  # [M] draws of the same domain before, in the period
        for d in range(len(self.names)):
            self._rank[self._domain == d] = np.arange(self.counts[d])

    def __call__(self, index: ArrayLike) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """For samples `index`: the domain's number in `names`, and how often it was drawn before."""
        cycle, place = np.divmod(np.asarray(index, dtype=np.int64), self.period)
        domain = self._domain[place]
        return domain, cycle * self.counts[domain] + self._rank[place]

    def drawn(self, n_samples: int) -> dict[str, int]:
        """How often each domain is drawn in the first `n_samples`."""
        cycles, rest = divmod(n_samples, self.period)
        inside = np.bincount(self._domain[:rest], minlength=len(self.names))
        return {name: int(cycles * self.counts[d] + inside[d]) for d, name in enumerate(self.names)}


def round_weights(weights: Mapping[str, float], period: int = MAX_PERIOD) -> dict[str, int]:
    """Weights as counts in a period, by largest remainder; a weight above 0 counts at least 1.

    Integer weights whose sum is at most `period` are kept as they are.
    """
    total = sum(weights.values())
    if total <= period and all(float(weight).is_integer() for weight in weights.values()):
        return {name: int(weight) for name, weight in weights.items()}
    exact = {name: weight / total * period for name, weight in weights.items()}
    counts = {name: max(int(share), int(share > 0)) for name, share in exact.items()}
    by_remainder = sorted(exact, key=lambda name: (counts[name] - exact[name], name))
    for name in by_remainder[: max(0, period - sum(counts.values()))]:
        counts[name] += 1
    return counts


def _order(counts: Sequence[int]) -> list[int]:
    """The chairman assignment of one period. Times and deadlines are scaled by M (2D − 2) to integers."""
    n_domains, period = len(counts), sum(counts)
    if n_domains == 1:
        return [0] * period
    slack = 2 * n_domains - 2
    lag = [0] * n_domains  # M (λ_d t − k_d)
    deadline = [(slack - 1) * period / (slack * count) for count in counts]
    spacing = [period / count for count in counts]
    order = []
    for _ in range(period):
        best, earliest = -1, float("inf")
        for d, count in enumerate(counts):
            lag[d] += count
            if lag[d] * slack >= period and deadline[d] < earliest:
                best, earliest = d, deadline[d]
        order.append(best)
        lag[best] -= period
        deadline[best] += spacing[best]
    return order
