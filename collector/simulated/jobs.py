"""The training jobs of the fleet: who runs, since when, and what a lost GPU does to a job.

One job per node, one rank per GPU. Everything is an event on one timeline, so that the same
schedule gives the same jobs whatever the reading interval.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from collector.simulated.faults import Fault, FaultKind
from collector.simulated.identity import gpu_uuid, job_id
from collector.simulated.settings import SimulatedSettings
from schemas.sample import JobRef

__all__ = ["JobBoard"]

_SETTLED_SECONDS = 1730.0  # the jobs are half an hour old when the simulation begins
_SPIN_SECONDS = 12.0  # peers of a lost rank wait in NCCL until the launcher notices
_RESTART_SECONDS = 45.0  # from the loss to the next start on what is left
_LINGER_SECONDS = 30.0  # from the last rank's stop to the next job
_DONE = float("inf")


@dataclass(order=True, slots=True)
class _Event:
    seconds: float
    order: int
    action: str = field(compare=False)
    node: int = field(compare=False)
    positions: tuple[int, ...] = field(compare=False, default=())


class JobBoard:
    """State of all jobs at one moment, as arrays over all GPUs of the fleet.

    Parameters
    ----------
    settings
        Fleet settings.
    faults
        The schedule; it restarts and stops jobs, and losing a GPU ends its job.

    Attributes
    ----------
    running, spinning
        Whether a rank's process lives, and whether it only waits for a dead peer.
    started
        Simulated seconds at which the rank's process started.
    present, lost
        Whether the driver lists the GPU, and whether every call on it fails.
    number
        Number of the job per node.
    """

    def __init__(self, settings: SimulatedSettings, faults: Sequence[Fault]) -> None:
        self._settings = settings
        size = settings.nodes * settings.gpus
        self.running: NDArray[np.bool_] = np.zeros(size, bool)
        self.spinning: NDArray[np.bool_] = np.zeros(size, bool)
        self.present: NDArray[np.bool_] = np.ones(size, bool)
        self.lost: NDArray[np.bool_] = np.zeros(size, bool)
        self.started: NDArray[np.float64] = np.full(size, -_DONE)
        self.number = [0] * settings.nodes
        self._queue: list[_Event] = []
        self._pushed = 0
        if settings.jobs:
            for node in range(settings.nodes):
                self._start(node, -_SETTLED_SECONDS)
        for fault in faults:
            self._plan(fault)

    def advance(self, seconds: float) -> list[tuple[float, str, int, tuple[int, ...]]]:
        """Apply everything due up to ``seconds``; return what happened.

        Returns
        -------
        list
            Time, action (``start``, ``stop``, ``lost``, ``returned``, ...), node and positions.
        """
        done = []
        while self._queue and self._queue[0].seconds <= seconds:
            event = heapq.heappop(self._queue)
            positions = self._apply(event)
            done.append((event.seconds, event.action, event.node, positions))
        return done

    def crash(self, node: int, seconds: float) -> None:
        """End a node's job now, as an out-of-memory error does, and plan the next one."""
        self._push(seconds, "stop", node, self._slots(node))
        self._push(seconds + _RESTART_SECONDS, "start", node)

    def refs(self, node: int) -> tuple[JobRef, ...]:
        """Jobs on the node, one entry per rank."""
        name = job_id(self._settings.seed, node, self.number[node])
        return tuple(
            JobRef(
                gpus=(gpu_uuid(self._settings.seed, node, index),),
                job=name,
                project="pretraining" if node % 2 == 0 else "fine-tuning",
                user_hash=f"user-{node % 3 + 1}",
                rank=index,
                pids=(20_000 + 100 * self.number[node] + index,),
            )
            for index, position in enumerate(self._slots(node))
            if self.running[position] and self.present[position]
        )

    def _slots(self, node: int) -> tuple[int, ...]:
        gpus = self._settings.gpus
        return tuple(range(node * gpus, (node + 1) * gpus))

    def _push(
        self, seconds: float, action: str, node: int, positions: tuple[int, ...] = ()
    ) -> None:
        self._pushed += 1
        heapq.heappush(self._queue, _Event(seconds, self._pushed, action, node, positions))

    def _plan(self, fault: Fault) -> None:
        slots = self._slots(fault.node)
        start, end = fault.start_seconds, fault.end_seconds
        if fault.kind in (FaultKind.JOB_RESTART, FaultKind.WARM_UP):
            self._push(start, "stop", fault.node, slots)
            self._push(end, "start", fault.node)
        elif fault.kind is FaultKind.STAGGERED_STOP:
            # As recorded: the first ranks leave early, half of the node stays to the end.
            for rank, slot in enumerate(slots):
                share = min(rank / max(len(slots) // 2, 1), 1.0)
                self._push(start + share * fault.duration_seconds, "stop", fault.node, (slot,))
            self._push(end + _LINGER_SECONDS, "start", fault.node)
        elif fault.kind in (FaultKind.GPU_LOST, FaultKind.GPU_MISSING) and fault.gpu is not None:
            hit = (slots[fault.gpu],)
            gone = "lost" if fault.kind is FaultKind.GPU_LOST else "missing"
            self._push(start, gone, fault.node, hit)
            self._push(start + _SPIN_SECONDS, "stop", fault.node, slots)
            self._push(start + _RESTART_SECONDS, "start", fault.node)
            self._push(end, "returned", fault.node, hit)

    def _apply(self, event: _Event) -> tuple[int, ...]:
        where = list(event.positions)
        if event.action == "start":
            return self._start(event.node, event.seconds)
        if event.action == "stop":
            self.running[where] = False
            self.spinning[where] = False
        elif event.action == "returned":
            self.present[where] = True
            self.lost[where] = False
        else:
            slots = list(self._slots(event.node))
            self.spinning[slots] = self.running[slots]
            self.running[where] = False
            self.spinning[where] = False
            self.lost[where] |= event.action == "lost"
            self.present[where] &= event.action == "lost"
        return event.positions

    def _start(self, node: int, seconds: float) -> tuple[int, ...]:
        slots = self._slots(node)
        if not self._settings.jobs or self.running[list(slots)].any():
            return ()
        members = tuple(slot for slot in slots if self.present[slot] and not self.lost[slot])
        self.number[node] += 1
        self.running[list(members)] = True
        self.started[list(members)] = seconds
        return members
