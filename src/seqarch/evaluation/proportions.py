"""Intervals of proportions."""

import math

from scipy.special import ndtri

CONFIDENCE = 0.95


def wilson(k: float, n: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Wilson's score interval of a proportion k / n (1927), 0–1.

    For a mean of n values between 0 and 1 with sum k it is too wide, never too narrow: no such values vary
    more than zeros and ones of the same mean.
    """
    z = float(ndtri(0.5 + confidence / 2))
    p = k / n
    centre, spread = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    low = 0.0 if k == 0 else (centre - spread) / scale
    high = 1.0 if k == n else (centre + spread) / scale
    return low, high
