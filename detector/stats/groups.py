"""Which GPUs do the same work: the job where it is known, else what looks like one job.

Never all GPUs of a host by default: two tenants on one node are two groups, and cards of
different models or power limits differ by nature.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from detector.arrays import BoolArray, FloatArray, IntArray
from detector.frame import Frame

__all__ = ["Groups", "groups_of"]

_GIB = float(2**30)
#: Without a job's name, GPUs whose memory differs by more than this do not run the same program:
#: ranks of recorded training jobs differ by less than 1 %, tenants of one node by 12 % and more.
_ALIKE_RATIO, _ALIKE_BYTES = 0.10, 1.0 * _GIB
#: Less than this share of the memory is a bare context, not a program that works.
_ALLOCATED_RATIO = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Numbered groups of the rows of a frame.

    Parameters
    ----------
    number
        (n,) group of the row, -1 for none.
    count
        How many groups there are.
    node
        (n,) number of the row's node in the frame.
    """

    number: IntArray
    count: int
    node: IntArray

    def median(self, values: FloatArray, use: BoolArray) -> tuple[FloatArray, IntArray]:
        """Median over the rows in use of each row's group, and how many there are, (n,) each.

        NaN and 0 for rows without a group. Missing values are left out.

        Examples
        --------
        >>> four = Groups(number=np.array([0, 0, 0, 1]), count=2, node=np.zeros(4, dtype=int))
        >>> four.median(np.array([3.0, 1.0, 2.0, 9.0]), np.ones(4, dtype=bool))
        (array([2., 2., 2., 9.]), array([3, 3, 3, 1]))
        """
        inside = use & (self.number >= 0) & np.isfinite(values)
        group, value = self.number[inside], values[inside]
        value = value[np.lexsort((value, group))]
        size = np.bincount(group, minlength=self.count)
        start = np.cumsum(size) - size
        last = max(len(value) - 1, 0)
        low = np.minimum(start + np.maximum(size - 1, 0) // 2, last)
        high = np.minimum(start + size // 2, last)
        middle = np.full(self.count, np.nan)
        if len(value):
            middle = np.where(size > 0, 0.5 * (value[low] + value[high]), np.nan)
        return self.spread(middle, np.nan), self.spread(size, 0).astype(np.int64)

    def size(self, use: BoolArray) -> IntArray:
        """(n,) how many rows of each row's group are in use; 0 for rows without a group."""
        inside = use & (self.number >= 0)
        size = np.bincount(self.number[inside], minlength=self.count)
        return self.spread(size, 0).astype(np.int64)

    def spread(self, per_group: FloatArray | IntArray, missing: float) -> FloatArray:
        """(n,) the value of each row's group; ``missing`` for rows without one."""
        padded = np.append(per_group.astype(np.float64), missing)
        return padded[self.number]


def groups_of(frame: Frame, use: BoolArray) -> Groups:
    """Return the groups of a frame, numbered.

    Rows of one group share node, model, power limit and job. Where the job is not known they
    hold about as much memory as well, and more than a bare context.

    Parameters
    ----------
    frame
        GPUs of any number of nodes.
    use
        (n,) rows that take part.

    Examples
    --------
    Two tenants without names, three GPUs each, one GPU that holds nothing:

    >>> used = [68e9, 16e9, 68e9, 68e9, 16e9, 16e9, 3e6]
    >>> frame = Frame.of(metrics={"memory_used_bytes": used}, ts=[0] * 7)
    >>> groups_of(frame, np.ones(7, dtype=bool)).number
    array([ 1,  0,  1,  1,  0,  0, -1])
    """
    node = _node_of(frame)
    known = frame.job >= 0
    used, total = frame["memory_used_bytes"], frame["memory_total_bytes"]
    least = np.maximum(_ALIKE_BYTES, _ALLOCATED_RATIO * np.nan_to_num(total))
    part = use & (node >= 0) & (known | (used >= least))
    at = np.flatnonzero(part)
    # Memory counts only where nothing better is known.
    memory = np.where(known, 0.0, np.nan_to_num(used))[at]
    limit = np.rint(np.nan_to_num(frame["power_limit_watts"], nan=-1.0))[at]
    codes = (limit, frame.model[at], frame.job[at], node[at])
    order = np.lexsort((memory, *codes))
    begins = np.zeros(len(at), dtype=bool)
    for code in codes:
        begins[1:] |= code[order][1:] != code[order][:-1]
    low, high = memory[order][:-1], memory[order][1:]
    begins[1:] |= high - low > np.maximum(_ALIKE_BYTES, _ALIKE_RATIO * high)
    number = np.full(len(frame), -1, dtype=np.int64)
    number[at[order]] = np.cumsum(begins)
    return Groups(number=number, count=int(begins.sum()) + 1, node=node)


def _node_of(frame: Frame) -> IntArray:
    """(n,) number of the block that holds the row, -1 where none does."""
    node = np.full(len(frame), -1, dtype=np.int64)
    inside = frame.blocks >= 0
    place = np.broadcast_to(np.arange(len(frame.blocks))[:, None], frame.blocks.shape)
    node[frame.blocks[inside]] = place[inside]
    return node
