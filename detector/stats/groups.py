"""Which GPUs do the same work: the job where it is known, else what looks like one job.

Never all GPUs of a host by default: two tenants on one node are two groups, and cards of
different models or power limits differ by nature.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from detector.arrays import BoolArray, FloatArray, IntArray, filled
from detector.frame import Frame

__all__ = ["Groups", "comparable", "groups_of", "working_groups"]

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
    slot
        (n,) place of the row in its group, from 0.
    """

    number: IntArray
    count: int
    node: IntArray
    slot: IntArray

    def median(self, values: FloatArray, use: BoolArray) -> tuple[FloatArray, IntArray]:
        """Median over the rows in use of each row's group, and how many there are, (n,) each.

        NaN and 0 for rows without a group. Missing values are left out.

        Examples
        --------
        >>> frame = Frame.of(metrics={}, ts=[0] * 4)
        >>> frame.job[:] = [7, 7, 7, 8]
        >>> everybody = np.ones(4, dtype=bool)
        >>> groups_of(frame, everybody).median(np.array([3.0, 1.0, 2.0, 9.0]), everybody)
        (array([2., 2., 2., 9.]), array([3, 3, 3, 1]))
        """
        inside = use & (self.number >= 0) & np.isfinite(values)
        group = self.number[inside]
        size = np.bincount(group, minlength=self.count)
        table = np.full((self.count, int(self.slot.max(initial=0)) + 1), np.inf)
        table[group, self.slot[inside]] = values[inside]
        table.sort(axis=1)
        each = np.arange(self.count)
        low = table[each, np.maximum(size - 1, 0) // 2]
        high = table[each, np.minimum(size // 2, table.shape[1] - 1)]
        middle = np.where(size > 0, 0.5 * (low + high), np.nan)
        return self.spread(middle, np.nan), self.spread(size, 0).astype(np.int64)

    def size(self, use: BoolArray) -> IntArray:
        """(n,) how many rows of each row's group are in use; 0 for rows without a group."""
        inside = use & (self.number >= 0)
        size = np.bincount(self.number[inside], minlength=self.count)
        return self.spread(size, 0).astype(np.int64)

    def spread(self, per_group: FloatArray | IntArray, missing: float) -> FloatArray:
        """(n,) the value of each row's group; ``missing`` for rows without one."""
        found: FloatArray = np.where(self.number >= 0, per_group[self.number], missing)
        return found


def comparable(frame: Frame) -> BoolArray:
    """(n,) whole GPUs that are read; without a job's name their group needs the memory."""
    grouped = (frame.job >= 0) | np.isfinite(frame["memory_used_bytes"])
    read = np.isfinite(frame["power_watts"]) & np.isfinite(frame["gpu_utilization_ratio"])
    return read & grouped & ~(frame.mig_parent | frame.mig_instance | frame.gone | frame.lost)


def working_groups(frame: Frame) -> tuple[BoolArray, Groups]:
    """Return who can be compared and the groups of those, worked out once per frame."""

    def make() -> tuple[BoolArray, Groups]:
        present = comparable(frame)
        return present, groups_of(frame, present)

    return frame.once("working groups", make)


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
    least = np.maximum(_ALIKE_BYTES, _ALLOCATED_RATIO * filled(total))
    part = use & (node >= 0) & (known | (used >= least))
    at = np.flatnonzero(part)
    # Memory counts only where nothing better is known.
    memory = np.where(known, 0.0, filled(used))[at]
    limit = np.rint(filled(frame["power_limit_watts"], -1.0))[at]
    codes = (limit, frame.model[at], frame.job[at], node[at])
    begins = _begins(codes, memory)
    steps = np.diff(codes[-1])
    if begins.sum() > 1 + np.count_nonzero(steps) or (steps < 0).any():
        # Several groups on some node, perhaps interleaved.
        order = np.lexsort((memory, *codes))
        at = at[order]
        begins = _begins(tuple(code[order] for code in codes), memory[order])
    ordinal = np.cumsum(begins) - 1
    first = np.flatnonzero(begins)
    number, slot = np.full(len(frame), -1, dtype=np.int64), np.zeros(len(frame), dtype=np.int64)
    number[at] = ordinal
    slot[at] = np.arange(len(at)) - first[ordinal]
    return Groups(number=number, count=max(len(first), 1), node=node, slot=slot)


def _begins(codes: tuple[FloatArray | IntArray, ...], memory: FloatArray) -> BoolArray:
    """(m,) the row and the one before it do not belong together; the first one never does."""
    begins = np.ones(len(memory), dtype=bool)
    before, after = memory[:-1], memory[1:]
    larger = np.maximum(before, after)
    apart = np.abs(after - before) > np.maximum(_ALIKE_BYTES, _ALIKE_RATIO * larger)
    for code in codes:
        apart |= code[1:] != code[:-1]
    begins[1:] = apart
    return begins


def _node_of(frame: Frame) -> IntArray:
    """(n,) number of the block that holds the row, -1 where none does."""
    node = np.full(len(frame), -1, dtype=np.int64)
    inside = frame.blocks >= 0
    place = np.broadcast_to(np.arange(len(frame.blocks))[:, None], frame.blocks.shape)
    node[frame.blocks[inside]] = place[inside]
    return node
