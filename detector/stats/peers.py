"""Comparing a GPU with its peers on the same node, at the same instant."""

from __future__ import annotations

from typing import Any

import numpy as np

from detector.arrays import BoolArray, FloatArray, IntArray

__all__ = ["alike_pairs", "block_view", "differing_peers", "peer_median", "to_rows"]


def block_view(column: np.ndarray[Any, Any], blocks: IntArray, fill: float) -> FloatArray:
    """Arrange a column by node: (k, g), ``fill`` in padded places.

    Examples
    --------
    >>> block_view(np.array([5.0, 6.0, 7.0]), np.array([[0, 1], [2, -1]]), np.nan)
    array([[ 5.,  6.],
           [ 7., nan]])
    """
    return np.where(blocks >= 0, column[blocks], fill)


def to_rows(block_values: np.ndarray[Any, Any], blocks: IntArray, size: int) -> FloatArray:
    """Undo :func:`block_view`: (n,) in the order of the frame; NaN for rows in no block."""
    out = np.full(size, np.nan)
    inside = blocks >= 0
    out[blocks[inside]] = block_values[inside]
    return out


def alike_pairs(values: FloatArray, absolute: float, relative: float) -> BoolArray:
    """Tell which GPUs of a node have like values: (k, g, g).

    Two values are alike if they differ by at most ``absolute`` or ``relative`` times the larger.
    A missing value is alike to nothing.
    """
    a, b = values[:, :, None], values[:, None, :]
    alike: BoolArray = np.abs(a - b) <= np.maximum(absolute, relative * np.maximum(a, b))
    return alike


def peer_median(values: FloatArray, peers: BoolArray) -> tuple[FloatArray, IntArray]:
    """Median of the peers' values and their number.

    Parameters
    ----------
    values
        (k, g) by node.
    peers
        (k, g, g): ``peers[k, i, j]`` if j is a peer of i. The diagonal is ignored.

    Returns
    -------
    median
        (k, g), NaN where there is no peer with a value.
    count
        (k, g) peers with a value.

    Examples
    --------
    >>> everybody = np.ones((1, 4, 4), dtype=bool)
    >>> peer_median(np.array([[20.0, 40.0, 22.0, 24.0]]), everybody)[0]
    array([[24., 22., 24., 22.]])
    """
    size = values.shape[1]
    use = peers & np.isfinite(values)[:, None, :] & ~np.eye(size, dtype=bool)
    spread = np.where(use, values[:, None, :], np.inf)
    spread.sort(axis=2)
    count = use.sum(axis=2)
    low = np.maximum((count - 1) // 2, 0)
    high = np.minimum(count // 2, size - 1)
    pick = np.take_along_axis
    middle = 0.5 * (pick(spread, low[:, :, None], axis=2) + pick(spread, high[:, :, None], axis=2))
    return np.where(count > 0, middle[:, :, 0], np.nan), count


def differing_peers(
    values: FloatArray, model: IntArray, blocks: IntArray, min_peers: int = 1
) -> FloatArray:
    """Median of the same node's other GPUs of the same model, where it differs from one's own.

    For quantities that are the same everywhere while all is well (lanes, links): then nothing is
    sorted.

    Returns
    -------
    ndarray
        (n,); NaN where the median is the row's own value, and with fewer than ``min_peers``.

    Examples
    --------
    >>> lanes, model = np.array([16.0, 8.0, 16.0]), np.zeros(3, dtype=np.int64)
    >>> differing_peers(lanes, model, np.array([[0, 1, 2]]))
    array([12., 16., 12.])
    >>> differing_peers(np.full(3, 16.0), model, np.array([[0, 1, 2]]))
    array([nan, nan, nan])
    """
    out = np.full(len(values), np.nan)
    known = values[np.isfinite(values)]
    if known.size == 0 or known.min() == known.max():
        return out
    same = block_view(model, blocks, -2)
    median, count = peer_median(
        block_view(values, blocks, np.nan), same[:, :, None] == same[:, None, :]
    )
    found = to_rows(np.where(count >= min_peers, median, np.nan), blocks, len(values))
    out[:] = np.where((found != values) & np.isfinite(values), found, np.nan)
    return out
