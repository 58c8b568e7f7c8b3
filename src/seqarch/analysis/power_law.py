"""The shifted power law between two losses, y = K·(x − E0)^k + E1 (arXiv 2411.12925), by least squares."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

Floats = NDArray[np.float64]
PARAMETERS = 4
STARTS = ((-1.0, 0.0), (1.0, 0.0), (1.0, 0.7), (3.0, -0.5))  # log of the distance of E0 in spans of x, log k
BOUNDS = ((-4.0, -2.0), (5.0, 2.0))  # k from 0.14 to 7.4; E0 from 0.02 to 150 spans below the lowest x


class PowerLaw(NamedTuple):
    K: float
    E0: float
    k: float
    E1: float


def value(law: PowerLaw, x: float) -> float:
    """y at x > E0."""
    return float(law.K * (x - law.E0) ** law.k + law.E1)


def fit(x: Floats, y: Floats, near: PowerLaw | None = None) -> PowerLaw:
    """The law through points x, y [N]; E0 lies below all x. `near`: a law to start from, of similar points.

    For given E0 and k the law is linear in K and E1, so that only two parameters are searched, from several
    starts (variable projection, Golub and Pereyra 1973). With points this few the parameters are hardly
    determined, the curve between the points is.
    """
    low, span = x.min(), np.ptp(x)

    def linear(shape: Floats) -> tuple[PowerLaw, Floats]:
        e0, k = low - span * np.exp(shape[0]), np.exp(shape[1])
        basis = np.stack([(x - e0) ** k, np.ones_like(x)], axis=1)
        (slope, e1), *_ = np.linalg.lstsq(basis, y, rcond=None)
        return PowerLaw(float(slope), float(e0), float(k), float(e1)), basis @ (slope, e1) - y

    starts = STARTS if near is None else (_shape(near, low, span),)
    found = [least_squares(lambda shape: linear(shape)[1], start, bounds=BOUNDS) for start in starts]
    return linear(min(found, key=lambda each: each.cost).x)[0]


def _shape(law: PowerLaw, low: float, span: float) -> tuple[float, float]:
    """A law's two searched parameters, moved inside the bounds."""
    found = np.log(max((low - law.E0) / span, 1e-9)), np.log(law.k)
    inside = [np.clip(each, lo + 1e-3, hi - 1e-3) for each, lo, hi in zip(found, *BOUNDS, strict=True)]
    return float(inside[0]), float(inside[1])
