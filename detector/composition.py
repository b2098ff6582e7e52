"""Which rows stand where in a frame: the part of a round that is the same tick after tick."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from detector.arrays import BoolArray, FloatArray, IntArray
from detector.blocks import Block, NodeFacts
from detector.fleet import FACTS, Fleet

__all__ = ["Composition", "composition_of"]

#: Compositions that are remembered; a service that reads whole fleets sees few different ones.
_REMEMBERED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """Rows and facts of a round of k nodes and n GPUs. Shared between frames, never written to.

    Parameters
    ----------
    sizes, starts
        (k,) rows that each node takes, and its first position.
    rows, node_rows
        (n,) and (k,) rows of the tables.
    span, node_span
        The same as slices, if they are one ascending piece of the table, else None.
    gone_as_nan
        (n,) NaN where the GPU is gone, else 0.
    others
        As in :class:`~detector.frame.Frame`.
    """

    sizes: IntArray
    starts: IntArray
    rows: IntArray
    span: slice | None
    node_rows: IntArray
    node_span: slice | None
    blocks: IntArray
    gone: BoolArray
    gone_as_nan: FloatArray
    absent: BoolArray
    mig_parent: BoolArray
    mig_instance: BoolArray
    model: IntArray
    job: IntArray
    extra: dict[str, FloatArray]
    node_extra: dict[str, FloatArray]


def composition_of(fleet: Fleet, blocks: Sequence[Block]) -> Composition:
    """Return the composition of a round, made anew only if it was not seen lately."""
    # By identity: layouts and facts are cached per node and never change. They are kept beside,
    # so that no new one can get the identity of an old one.
    key = tuple([id(part) for block in blocks for part in (block.layout, block.facts)])
    known = fleet.compositions.get(key)
    if known is None:
        made = _compose(blocks)
        if len(fleet.compositions) >= _REMEMBERED:
            fleet.compositions.pop(next(iter(fleet.compositions)))
        known = (made, [(block.layout, block.facts) for block in blocks])
        fleet.compositions[key] = known
    found: Composition = known[0]
    return found


def _compose(blocks: Sequence[Block]) -> Composition:
    sizes = np.array([block.size for block in blocks], dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    cut = [(block.layout, size) for block, size in zip(blocks, sizes.tolist(), strict=True)]
    rows = np.concatenate([layout.rows[:size] for layout, size in cut])
    node_rows = np.array([block.node_row for block in blocks], dtype=np.int64)
    gone, absent = _presence(blocks, starts, len(rows))
    facts = [block.facts for block in blocks]
    columns = np.concatenate([layout.facts[:, :size] for layout, size in cut], axis=1)
    return Composition(
        sizes=sizes,
        starts=starts,
        rows=rows,
        span=_span(rows),
        node_rows=node_rows,
        node_span=_span(node_rows),
        blocks=_blocks(sizes, starts),
        gone=gone,
        gone_as_nan=np.where(gone, np.nan, 0.0),
        absent=absent,
        mig_parent=np.concatenate([layout.mig_parent[:size] for layout, size in cut]),
        mig_instance=np.concatenate([layout.mig_instance[:size] for layout, size in cut]),
        model=np.concatenate([layout.model[:size] for layout, size in cut]),
        job=np.concatenate([layout.job[:size] for layout, size in cut]),
        extra={
            **dict(zip(FACTS, columns, strict=True)),
            "uptime_seconds": np.repeat([fact.uptime for fact in facts], sizes),
        },
        node_extra=_node_extra(facts),
    )


def _presence(blocks: Sequence[Block], starts: IntArray, total: int) -> tuple[BoolArray, BoolArray]:
    """(n,) each: the GPU is not listed any more; and it should be."""
    gone, absent = np.zeros(total, dtype=bool), np.zeros(total, dtype=bool)
    for block, start in zip(blocks, starts.tolist(), strict=True):
        listed, end = start + block.layout.present, start + block.size
        gone[listed:end] = True
        absent[listed : listed + block.layout.due if block.facts.gone_counts else end] = (
            block.facts.absent
        )
    return gone, absent


def _node_extra(facts: Sequence[NodeFacts]) -> dict[str, FloatArray]:
    return {
        "expected_gpus": np.array([fact.expected for fact in facts]),
        "known_gpus": np.array([fact.known for fact in facts]),
        "listed_gpus": np.array([fact.listed for fact in facts]),
        "collector_state": np.array([fact.state for fact in facts]),
        "nvml_error": np.array([fact.nvml_error for fact in facts]),
        "uptime_seconds": np.array([fact.uptime for fact in facts]),
        "message_seconds": np.array([fact.every for fact in facts]),
    }


def _span(rows: IntArray) -> slice | None:
    """Return rows as a slice, if they are one ascending piece.

    Examples
    --------
    >>> _span(np.array([3, 4, 5])), _span(np.array([3, 5, 4]))
    (slice(3, 6, None), None)
    """
    if not len(rows) or (np.diff(rows) != 1).any():
        return None
    return slice(int(rows[0]), int(rows[-1]) + 1)


def _blocks(sizes: IntArray, starts: IntArray) -> IntArray:
    """(nodes, most GPUs) positions in the frame, -1 as padding."""
    width = int(sizes.max(initial=0))
    offsets = np.arange(width)
    return np.where(offsets < sizes[:, None], starts[:, None] + offsets, -1)
