"""Curves y(x) through a few checkpoints: x made monotone, y read between points, never outside them.

Arrays have a leading axis B of bootstrap replicates; the estimate itself is a single replicate.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator

Floats = NDArray[np.float64]


def decreasing(x: Floats, y: Floats) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Points in the order of training -> points in ascending x, with ties of x averaged.

    A loss falls as training goes on. Where it does not, x is replaced by its isotonic (least squares,
    non-increasing) regression on the step, and y by its mean over each block that this pools.

    Args:
        x, y: [B, K] and [..., B, K], in the order of training.

    Returns:
        x [B, K] ascending; y [..., B, K] in the same order; whether x was pooled [B].
    """
    pooled = np.asarray((np.diff(x, axis=-1) >= 0).any(axis=-1))
    if pooled.any():
        x, y = x.copy(), y.copy()
        x[pooled] = -_isotonic(-x[pooled])
        same = x[pooled][:, :, None] == x[pooled][:, None, :]  # [B', K, K]
        y[..., pooled, :] = np.einsum(
            "bkj,...bj->...bk", same / same.sum(-1, keepdims=True), y[..., pooled, :]
        )
    return x[..., ::-1], y[..., ::-1], pooled


def _isotonic(a: Floats) -> Floats:
    """Least-squares non-decreasing fit of each row: max over j <= i of min over k >= i of mean(a_j … a_k).

    The min-max formula (Barlow et al., Statistical Inference under Order Restrictions, 1972) is O(K²) a row
    but works on all rows at once; curves have a handful of points.
    """
    k = a.shape[-1]
    sums = np.concatenate([np.zeros((len(a), 1)), np.cumsum(a, axis=-1)], axis=-1)
    first, last = np.arange(k)[:, None], np.arange(k)
    counts = np.where(last >= first, last - first + 1, 1)
    means = (sums[:, None, 1:] - sums[:, :-1, None]) / counts  # [B, j, k]
    means = np.where(last >= first, means, np.inf)
    least = np.minimum.accumulate(means[:, :, ::-1], axis=-1)[:, :, ::-1]  # [B, j, i] min over k >= i
    return np.where(first <= last, least, -np.inf).max(axis=1)


def interpolate(x: Floats, y: Floats, x0: Floats, kind: Literal["linear", "pchip"]) -> Floats:
    """y at x0 [B, G]: NaN outside the range of x. x [B, K] ascends (its ties have equal y), y [B, K]."""
    inside = (x0 >= x[:, :1]) & (x0 <= x[:, -1:])
    if x.shape[1] == 1:
        return np.where(inside, y, np.nan)
    values = _linear(x, y, x0) if kind == "linear" else _pchip(x, y, x0)
    return np.where(inside, values, np.nan)


def _linear(x: Floats, y: Floats, x0: Floats) -> Floats:
    left = np.clip((x[:, None, :] <= x0[..., None]).sum(-1) - 1, 0, x.shape[1] - 2)  # [B, G]
    x1, x2 = np.take_along_axis(x, left, 1), np.take_along_axis(x, left + 1, 1)
    y1, y2 = np.take_along_axis(y, left, 1), np.take_along_axis(y, left + 1, 1)
    width = x2 - x1
    weight = np.divide(x0 - x1, width, out=np.zeros_like(x0), where=width > 0)
    return y1 + weight * (y2 - y1)


def _pchip(x: Floats, y: Floats, x0: Floats) -> Floats:
    """Monotone cubic; a row at a time, because scipy wants one x for all rows."""
    result = np.full(x0.shape, np.nan)
    for i, (row_x, row_y, row_x0) in enumerate(zip(x, y, x0, strict=True)):
        points, index = np.unique(row_x, return_index=True)
        if len(points) == 1:
            result[i] = row_y[0]
        else:
            result[i] = PchipInterpolator(points, row_y[index], extrapolate=False)(row_x0)
    return result
