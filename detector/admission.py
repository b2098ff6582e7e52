"""The door of the engine: which ticks of which message count, exactly once, in order.

Judged message by message in log order, so the outcome does not depend on how messages were
batched.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from detector.fleet import Fleet, NodeRow
from schemas.sample import NodeSample

__all__ = ["TAKE_OVER_MESSAGES", "Admitted", "admit"]

# Stretches of missing messages that are remembered per node; an outage is one of them.
_MOST_GAPS = 32
#: So many messages in a row of a boot that looks old, and it is the current one.
TAKE_OVER_MESSAGES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A message that counts.

    Parameters
    ----------
    node_row
        Row of its node.
    first_tick
        Ticks before this one were seen already.
    stepped_back
        The node's clock was set back: the first tick has no meaningful distance to the last.
    late
        Later messages of the node were taken before it, as when a collector sends what it kept
        while the bus was away. Its readings are past; what it says happened is still news.
    """

    sample: NodeSample
    node_row: int
    first_tick: int
    stepped_back: bool
    late: bool = False


def admit(fleet: Fleet, sample: NodeSample, counts: Counter[str]) -> Admitted | None:
    """Take a message in, or drop it and count why.

    Within one boot the sequence number decides the order, so a clock that was set back does not
    make the node mute. Across boots the event time decides, unless another boot goes on alone:
    then the node came up with its clock set back, and left-overs of an old boot would come
    between messages of the current one.

    Parameters
    ----------
    fleet
        Tables of the partition; the node's position is moved.
    sample
        The message.
    counts
        Grows by ``duplicate``, ``late``, ``late_events``, ``lost_messages``, ``clock_back`` or
        ``accepted``.
    """
    node_row = fleet.node_of(sample.node)
    node = fleet.nodes[node_row]
    first_tick, stepped_back = 0, False
    if sample.boot_id == node.boot_id:
        if sample.seq <= node.seq and not _counts_anew(node, sample):
            counts["duplicate" if sample.seq == node.seq else "late"] += 1
            return _late(node, node_row, sample, counts)
        if sample.seq > node.seq + 1:
            counts["lost_messages"] += sample.seq - node.seq - 1
            node.gaps = [*node.gaps[1 - _MOST_GAPS :], [node.seq + 1, sample.seq - 1]]
        elif sample.seq <= node.seq:
            node.gaps = []
        stepped_back = sample.ts[0] <= node.last_ts
        counts["clock_back"] += stepped_back
    elif _looks_old(node, sample) and not _has_taken_over(node, sample):
        counts["late"] += 1
        return None
    else:
        stepped_back = _looks_old(node, sample)
        counts["clock_back"] += stepped_back
        if not stepped_back:
            first_tick = sum(moment <= node.last_ts for moment in sample.ts)
        node.previous_boot, node.boot_id, node.gaps = node.boot_id, sample.boot_id, []
    node.candidate, node.strikes = "", 0
    node.seq = sample.seq
    node.last_ts = sample.ts[-1]
    counts["accepted"] += 1
    return Admitted(
        sample=sample, node_row=node_row, first_tick=first_tick, stepped_back=stepped_back
    )


def _late(
    node: NodeRow, node_row: int, sample: NodeSample, counts: Counter[str]
) -> Admitted | None:
    """Take in the events of a message that was missing until now; repetitions say nothing new."""
    for at, (first, last) in enumerate(node.gaps):
        if first <= sample.seq <= last:
            left = [[first, sample.seq - 1], [sample.seq + 1, last]]
            node.gaps[at : at + 1] = [part for part in left if part[0] <= part[1]]
            break
    else:
        return None
    if not sample.events:
        return None
    counts["late_events"] += len(sample.events)
    return Admitted(sample=sample, node_row=node_row, first_tick=0, stepped_back=False, late=True)


def _looks_old(node: NodeRow, sample: NodeSample) -> bool:
    """Tell whether a message of another boot may be left over from before the current one."""
    return sample.boot_id == node.previous_boot or sample.ts[-1] <= node.last_ts


def _has_taken_over(node: NodeRow, sample: NodeSample) -> bool:
    """Tell whether another boot, not the one before, goes on alone with old-looking messages."""
    return sample.boot_id != node.previous_boot and _strike(node, sample)


def _counts_anew(node: NodeRow, sample: NodeSample) -> bool:
    """Tell whether a node goes on below its number: one damaged number must not make it mute.

    A repetition is never newer than what was seen; messages that are, in a row, are no repetition.
    """
    return sample.ts[0] > node.last_ts and _strike(node, sample)


def _strike(node: NodeRow, sample: NodeSample) -> bool:
    """Count such messages of one boot in a row; True once there are enough."""
    same = sample.boot_id == node.candidate
    node.candidate, node.strikes = sample.boot_id, node.strikes + 1 if same else 1
    return node.strikes >= TAKE_OVER_MESSAGES
