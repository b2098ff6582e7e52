"""From alarms and truths to numbers: per event, never per point.

A fault counts as found if the right class is first said of the right entity while it acts, or
within a short grace. What was being said already does not count; a wrong class on the right
entity counts half; anything of warning or above on another entity is a false alarm. No point
adjustment: under it even a random score wins.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from foreshock.bench.happenings import Truth

__all__ = ["Alarm", "Found", "Score", "judge", "poisson_interval", "wilson_interval"]

_TAIL = 0.025
#: After a fault its traces may be told so long: slopes that flatten, jobs that start again.
AFTERMATH_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """One episode that a detector reported. Times in seconds of the world.

    Parameters
    ----------
    node
        Number of the node over all worlds.
    gpu
        Index of the GPU; None where it is about the node or the job.
    family, kind
        What it is said to be; empty from a detector that knows no classes.
    at
        When each severity was first said, by rank (1 info, 2 warning, 3 critical).
    """

    node: int
    gpu: int | None
    family: str = ""
    kind: str = ""
    at: tuple[tuple[int, float], ...]

    def first(self, rank: int) -> float:
        """When it was first said with at least this severity; infinite if never."""
        return min((moment for said, moment in self.at if said >= rank), default=math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What came of one fault.

    Parameters
    ----------
    credit
        1 right, 0.5 wrong class on the right entity, 0 missed.
    delay
        Seconds from the start to the first right alarm; infinite if there is none.
    top
        Whether the first alarm of warning or above on the node named the right entity; None
        where nothing was said.
    alarms
        Episodes of warning and above on the node while the fault acted.
    """

    truth: Truth
    credit: float
    delay: float
    top: bool | None
    alarms: int

    @property
    def lead(self) -> float:
        """Seconds from the first right alarm to the end of the job; NaN without such an end."""
        return self.truth.terminal - self.truth.start - self.delay


@dataclass(slots=True, kw_only=True)
class Score:
    """All results of one detector on one suite."""

    found: list[Found] = field(default_factory=list)
    false_alarms: list[tuple[Alarm, str]] = field(default_factory=list)
    gpu_days: float = 0.0
    seconds: float = 0.0
    samples: int = 0

    def add(self, other: Score) -> None:
        """Take over the results of another part of the suite."""
        self.found += other.found
        self.false_alarms += other.false_alarms
        self.gpu_days += other.gpu_days
        self.seconds += other.seconds
        self.samples += other.samples

    @property
    def false_rate(self) -> float:
        """False alarms of warning and above per GPU-day."""
        return len(self.false_alarms) / self.gpu_days if self.gpu_days else math.nan

    def false_by(self) -> Counter[tuple[str, str, str]]:
        """Count false alarms by family, kind and what was going on."""
        return Counter((alarm.family, alarm.kind, where) for alarm, where in self.false_alarms)


def judge(
    alarms: Sequence[Alarm],
    truths: Sequence[Truth],
    gpu_days: float,
    doing: Mapping[int, str] | None = None,
) -> Score:
    """Score the alarms of one detector on one world.

    Parameters
    ----------
    alarms
        Its episodes.
    truths
        Faults and decoys, of the same nodes.
    gpu_days
        How long was watched.
    doing
        Node to what it does when nothing is injected, for the list of false alarms.
    """
    usual = doing or {}
    by_node: dict[int, list[Alarm]] = {}
    for alarm in alarms:
        by_node.setdefault(alarm.node, []).append(alarm)
    score = Score(gpu_days=gpu_days)
    explained: set[int] = set()
    for truth in truths:
        if truth.spec is None:
            continue
        near = by_node.get(truth.node, [])
        score.found.append(_found(truth, near))
        explained |= {id(alarm) for alarm in near if _explains(truth, alarm)}
    for alarm in alarms:
        if math.isfinite(alarm.first(2)) and id(alarm) not in explained:
            where = _going_on(alarm, truths)
            if where is not None:
                score.false_alarms.append((alarm, where or usual.get(alarm.node, "nothing")))
    return score


def _until(truth: Truth) -> float:
    return truth.end + truth.grace


def _is_right_entity(truth: Truth, alarm: Alarm) -> bool:
    assert truth.spec is not None  # noqa: S101 - only faults are asked about
    if alarm.gpu is None:
        return truth.spec.scope != "gpu"
    # A detector without classes knows no nodes either: any of the GPUs hit will do.
    wide = truth.spec.scope == "gpu" or not alarm.family or len(truth.gpus) == 1
    return alarm.gpu in truth.gpus and wide


def _is_right_class(truth: Truth, alarm: Alarm) -> bool:
    assert truth.spec is not None  # noqa: S101 - only faults are asked about
    return not alarm.family or any(
        alarm.family == family and kind in ("", alarm.kind) for family, kind in truth.spec.accepted
    )


def _found(truth: Truth, alarms: Iterable[Alarm]) -> Found:
    assert truth.spec is not None  # noqa: S101 - only faults are asked about
    delays, half, first = [], False, (math.inf, False)
    count = 0
    for alarm in alarms:
        began, said = alarm.first(1), alarm.first(truth.spec.rank)
        warned = alarm.first(2)
        if truth.start <= warned <= _until(truth):
            count += 1
            place = alarm.gpu is None or alarm.gpu in truth.gpus
            first = min(first, (warned, not place))
        if began < truth.start or not said <= _until(truth):
            continue
        if _is_right_entity(truth, alarm):
            if _is_right_class(truth, alarm):
                delays.append(said - truth.start)
            half = half or math.isfinite(alarm.first(2))
        elif alarm.gpu in truth.gpus and _is_right_class(truth, alarm):
            half = True
    delay = min(delays, default=math.inf)
    credit = 1.0 if delays else 0.5 if half else 0.0
    top = None if not count else not first[1]
    return Found(truth=truth, credit=credit, delay=delay, top=top, alarms=count)


def _explains(truth: Truth, alarm: Alarm) -> bool:
    """Tell whether a fault is the reason of an alarm: the GPU hit, or what suffers with it."""
    assert truth.spec is not None  # noqa: S101 - only faults are asked about
    if not truth.start <= alarm.first(2) <= truth.end + AFTERMATH_SECONDS:
        return False
    return alarm.gpu is None or alarm.gpu in truth.gpus or alarm.family in truth.spec.related


def _going_on(alarm: Alarm, truths: Iterable[Truth]) -> str | None:
    """Name what was injected at a false alarm, if anything; None where it is true of the node."""
    at = alarm.first(2)
    for truth in truths:
        if truth.node == alarm.node and truth.start <= at <= truth.end + AFTERMATH_SECONDS / 2:
            if truth.spec is None and alarm.gpu is None and alarm.family in truth.allowed:
                return None
            # Beside a leaking GPU the others do what the node always does.
            return "" if truth.group else truth.name
    return ""


def wilson_interval(hits: float, of: int, z: float = 1.96) -> tuple[float, float]:
    """Return the 95 % interval of a share; (0, 1) of nothing.

    References
    ----------
    .. [1] Wilson (1927), "Probable Inference, the Law of Succession, and Statistical Inference",
       JASA 22.

    Examples
    --------
    >>> low, high = wilson_interval(12, 12)
    >>> round(low, 3), round(high, 3)
    (0.757, 1.0)
    """
    if of == 0:
        return 0.0, 1.0
    share, spread = hits / of, z * z / of
    centre = share + spread / 2
    half = z * math.sqrt(share * (1 - share) / of + spread / (4 * of))
    return max(0.0, (centre - half) / (1 + spread)), min(1.0, (centre + half) / (1 + spread))


def poisson_interval(count: int, exposure: float) -> tuple[float, float]:
    """Return the exact 95 % interval of a rate; of nothing seen, 0 and 3 per exposure.

    References
    ----------
    .. [1] Garwood (1936), "Fiducial Limits for the Poisson Distribution", Biometrika 28.

    Examples
    --------
    >>> poisson_interval(0, 300.0)
    (0.0, 0.01)
    """
    if exposure <= 0.0:
        return 0.0, math.inf
    if count == 0:
        return 0.0, 3.0 / exposure
    low = _mean_where(lambda mean: _at_most(count - 1, mean) > 1.0 - _TAIL, count)
    high = _mean_where(lambda mean: _at_most(count, mean) > _TAIL, count)
    return low / exposure, high / exposure


def _at_most(count: int, mean: float) -> float:
    """P(N <= count) of a Poisson variable."""
    logs = (k * math.log(mean) - mean - math.lgamma(k + 1) for k in range(count + 1))
    return math.fsum(map(math.exp, logs))


def _mean_where(below: Callable[[float], bool], count: int) -> float:
    """Find by bisection the mean at which ``below`` turns from true to false."""
    low, high = 1e-9, 3.0 * count + 20.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if below(middle) else (low, middle)
    return low
