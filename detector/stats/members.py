"""Counting over the GPUs of each node, for detectors of nodes."""

from __future__ import annotations

import numpy as np

from detector.arrays import FloatArray
from detector.frame import Frame

__all__ = ["count_open", "member_mean"]


def count_open(frame: Frame, alert: str, *, holding: bool = False) -> FloatArray:
    """Count the GPUs of each node whose alert is open.

    Parameters
    ----------
    frame
        A frame of nodes.
    alert
        "family/kind".
    holding
        Leave out the alerts whose condition has ended and that only wait to resolve.

    Returns
    -------
    FloatArray
        (nodes,), 0 where nobody judges that kind.

    Examples
    --------
    >>> frame = Frame.of(metrics={}, ts=[0, 0], nodes=2)
    >>> frame.members = Frame.of(metrics={}, ts=[0] * 4, nodes=2)
    >>> frame.members_open["a/b"] = np.array([True, True, False, True])
    >>> count_open(frame, "a/b")
    array([2., 1.])
    """
    flags = frame.members_open.get(alert)
    if holding:
        flags = frame.members_holding.get(alert, flags)
    if flags is None or frame.members is None:
        return np.zeros(len(frame))
    blocks = frame.members.blocks
    if not blocks.size:
        return np.zeros(len(frame))
    count: FloatArray = (flags[blocks] & (blocks >= 0)).sum(axis=1).astype(np.float64)
    return count


def member_mean(frame: Frame, column: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean of a column over the GPUs of each node, and how many have a value.

    Returns
    -------
    mean
        (nodes,), NaN where no GPU has a value.
    count
        (nodes,).

    Examples
    --------
    >>> frame = Frame.of(metrics={}, ts=[0, 0], nodes=2)
    >>> frame.members = Frame.of(metrics={}, ts=[0] * 4, nodes=2)
    >>> member_mean(frame, np.array([1.0, 3.0, np.nan, 5.0]))
    (array([2., 5.]), array([2., 1.]))
    """
    if frame.members is None or not frame.members.blocks.size:
        return np.full(len(frame), np.nan), np.zeros(len(frame))
    blocks = frame.members.blocks
    values = np.where(blocks >= 0, column[blocks], np.nan)
    # Sorted, so that the sum does not depend on the order of the GPUs.
    values = np.sort(values, axis=1)
    count = np.isfinite(values).sum(axis=1).astype(np.float64)
    total = np.nansum(values, axis=1)
    return np.divide(total, count, out=np.full(len(frame), np.nan), where=count > 0), count
