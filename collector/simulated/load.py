"""What the ranks do at each moment: activity, waiting and memory of a training job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collector.simulated.faults import Fault, FaultKind
from collector.simulated.jobs import JobBoard
from collector.simulated.settings import SimulatedSettings

__all__ = ["MIB", "Demand", "LoadModel", "Memory"]

Floats = NDArray[np.float64]
MIB = float(2**20)
_CHECKPOINT_EVERY = 300.0
_CHECKPOINT_SECONDS = 6.0
_LOADING_SECONDS = 18.0
_DIP_SECONDS = 1.0
#: Allocator after a start: seconds, share of the plateau. As recorded: from 3 MiB to tens of GiB
#: in seconds, then a last step when the first evaluation has run.
_STAIR_SECONDS = np.array([2.0, 6.0, 10.0, 14.0, 18.0, 22.0, 60.0])
_STAIR_SHARE = np.array([0.0, 0.006, 0.05, 0.35, 0.62, 0.86, 0.985, 1.0])
_CONTEXT = 520.0 * MIB  # what a process holds before its first tensor
_BLOCK = 20.0 * MIB  # the caching allocator grows in blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What each rank wants to do, before clocks and waiting.

    Parameters
    ----------
    activity
        Share of the chip's full dynamic power, 0 to 1.
    utilization
        Share of time with a kernel resident, 0 to 1.
    waits
        Whether the rank spins in a collective, doing nothing else.
    synced
        Whether the rank runs in step with its peers.
    transfer
        PCIe bytes a second.
    """

    activity: Floats
    utilization: Floats
    waits: NDArray[np.bool_]
    synced: NDArray[np.bool_]
    transfer: Floats


class LoadModel:
    """Activity of every GPU as a function of time and of the jobs.

    Parameters
    ----------
    settings
        Fleet settings.
    faults
        The schedule: power-capped phases, dips, hangs.
    """

    def __init__(self, settings: SimulatedSettings, faults: Sequence[Fault]) -> None:
        self._nodes, self._gpus = settings.nodes, settings.gpus
        self._caps = [f for f in faults if f.kind is FaultKind.POWER_CAP]
        self._dips = [f for f in faults if f.kind is FaultKind.SHORT_DIPS]
        self._hangs = [f for f in faults if f.kind is FaultKind.HANG]
        self.level = self._base_level()

    def _base_level(self) -> Floats:
        # Two kinds of job: one at the power cap (690 W), one at about 400 W.
        level = np.where(np.arange(self._nodes) % 2 == 0, 1.0, 0.45)
        return np.repeat(level, self._gpus)

    def _rows(self, fault: Fault) -> slice | int:
        first = fault.node * self._gpus
        return slice(first, first + self._gpus) if fault.gpu is None else first + fault.gpu

    def demand(self, seconds: float, board: JobBoard, wobble: Floats) -> Demand:
        """Return what every rank wants at ``seconds``.

        Parameters
        ----------
        seconds
            Simulated seconds since the origin.
        board
            The jobs.
        wobble
            Relative noise of the work per GPU, around 1.
        """
        age = seconds - board.started
        loading = board.running & (age < _LOADING_SECONDS)
        training = board.running & ~loading & ~board.spinning
        level = self.level.copy()
        for fault in self._caps:
            if fault.active(seconds):
                level[self._rows(fault)] = 1.0
        want = Demand(
            activity=np.where(training, level * wobble, np.where(loading, 0.07, 0.0)),
            utilization=np.where(training, 1.0, np.where(loading, 0.3, 0.0)),
            waits=board.running & board.spinning,
            synced=training,
            transfer=np.where(training, 4e7, np.where(loading, 2e9, 0.0)),
        )
        self._checkpoint(want, age)
        self._dip(want, seconds)
        self._hang(want, seconds, board)
        want.activity[want.waits] = 0.0
        want.utilization[want.waits] = 1.0
        want.synced[want.waits] = False
        return want

    def _checkpoint(self, want: Demand, age: Floats) -> None:
        since = np.mod(age, _CHECKPOINT_EVERY, out=np.zeros_like(age), where=np.isfinite(age))
        saving = want.synced & (age > _CHECKPOINT_EVERY) & (since < _CHECKPOINT_SECONDS)
        # In the last seconds rank 0 works alone and the others spin, as in the recording.
        alone = saving & (since > 0.5 * _CHECKPOINT_SECONDS)
        first = saving & ~alone
        want.activity[first] = 0.12
        want.utilization[first] = 0.3
        want.waits[alone & (np.arange(age.size) % self._gpus != 0)] = True
        want.transfer[saving] = 3e9

    def _dip(self, want: Demand, seconds: float) -> None:
        for fault in self._dips:
            phase = (seconds - fault.start_seconds) % fault.size
            if fault.active(seconds) and phase < _DIP_SECONDS:
                rows = np.zeros(want.synced.size, bool)
                rows[self._rows(fault)] = True
                rows &= want.synced
                want.activity[rows] *= 0.6
                want.utilization[rows] = 0.55

    def _hang(self, want: Demand, seconds: float, board: JobBoard) -> None:
        for fault in self._hangs:
            if not fault.active(seconds) or fault.gpu is None:
                continue
            first = fault.node * self._gpus
            node = slice(first, first + self._gpus)
            row = first + fault.gpu
            want.waits[node] |= board.running[node]
            want.waits[row] = want.synced[row] = False
            want.activity[row] = want.utilization[row] = 0.0


class Memory:
    """Bytes each job holds: a staircase to a plateau, small blocks after it, and leaks.

    Parameters
    ----------
    settings
        Fleet settings; the seed draws the plateaus.
    faults
        The schedule: leaks and flat plateaus.
    capacity
        Total minus reserved, bytes.
    """

    def __init__(
        self, settings: SimulatedSettings, faults: Sequence[Fault], capacity: float
    ) -> None:
        self._seed, self._gpus = settings.seed, settings.gpus
        size = settings.nodes * settings.gpus
        self._leaks = [f for f in faults if f.kind is FaultKind.LEAK]
        self._flats = [f for f in faults if f.kind is FaultKind.FLAT_PLATEAU]
        self._capacity = capacity
        self._plateau: Floats = np.zeros(size)
        self._growth: Floats = np.zeros(size)
        self._leaked: Floats = np.zeros(size)

    def _rows(self, fault: Fault) -> slice | int:
        first = fault.node * self._gpus
        return slice(first, first + self._gpus) if fault.gpu is None else first + fault.gpu

    def start(self, node: int, number: int, members: tuple[int, ...], seconds: float) -> None:
        """Draw the plateau of a new job; what the last one held is gone."""
        if not members:
            return
        rng = np.random.default_rng([self._seed, node, number])
        share = rng.uniform(0.66, 0.78) + rng.uniform(-0.01, 0.01, self._gpus)
        rows = slice(node * self._gpus, (node + 1) * self._gpus)
        self._plateau[rows] = share * self._capacity
        for fault in self._flats:
            if fault.node == node and seconds < fault.end_seconds:
                self._plateau[self._rows(fault)] = fault.size * self._capacity
        self._leaked[rows] = 0.0
        self._growth[rows] = 0.0

    def used(self, seconds: float, dt: float, board: JobBoard, rng: np.random.Generator) -> Floats:
        """Advance by ``dt`` and return the bytes used per GPU, idle ones a few MiB."""
        age = seconds - board.started
        stair = _STAIR_SHARE[np.searchsorted(_STAIR_SECONDS, age, side="right")]
        # About one block in ten minutes and at most 240 MiB: fragmentation, not a leak.
        grows = rng.random(age.size) < dt / 600.0
        self._growth = np.minimum(self._growth + grows * _BLOCK, 12 * _BLOCK)
        for fault in self._leaks:
            if fault.active(seconds):
                rows = self._rows(fault)
                self._leaked[rows] += fault.size * 2**30 / 3600.0 * dt * board.running[rows]
        leak = np.floor(self._leaked / _BLOCK) * _BLOCK
        context = np.clip(age * 260.0 * MIB, 0.0, _CONTEXT)
        held = context + stair * (self._plateau - _CONTEXT) + self._growth
        held = np.minimum(held + leak, self._capacity)
        held = np.where(board.running, np.floor(held / (2 * MIB)) * 2 * MIB, 0.0)
        return np.maximum(held, 3.0 * MIB)

    def exhausted(self, used: Floats) -> NDArray[np.bool_]:
        """Which GPUs cannot take another block: their job is about to end."""
        full: NDArray[np.bool_] = used > self._capacity - _BLOCK
        return full
