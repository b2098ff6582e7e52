"""Range checks at the door: an impossible number becomes a gap before anything averages it.

One reading in a million of a healthy card is impossible (utilisation of 4294967295 %). Passed on
it would ruin every mean and variance behind it; clamped it would be a lie. It becomes null with
the status ``implausible``, is counted, and its neighbours stay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from collector.source import Reading
from schemas.metrics import METRICS, Metric, plausible
from schemas.sample import ValueStatus

__all__ = ["POWER_LIMIT_FACTOR", "refuse_impossible"]

#: Power above this multiple of the enforced limit is refused. Real boards overshoot for
#: moments: 759 W at a limit of 700 W is the most seen on a fully used node of eight.
POWER_LIMIT_FACTOR = 2.0
_POWERS = ("power_watts", "power_instant_watts")


def refuse_impossible(reading: Reading) -> tuple[Reading, dict[str, int]]:
    """Replace impossible values by None.

    Parameters
    ----------
    reading
        As the source made it; it is not changed.

    Returns
    -------
    tuple
        The reading to publish (the same object if nothing was refused), and per metric how many
        values were refused.
    """
    refused = _out_of_range(reading)
    for name in _POWERS:
        refused.setdefault(name, set()).update(_above_limit(reading, name))
    refused = {name: positions for name, positions in refused.items() if positions}
    if not refused:
        return reading, {}
    values = dict(reading.values)
    status = dict(reading.status)
    for name, positions in refused.items():
        values[name] = [
            None if position in positions else value for position, value in enumerate(values[name])
        ]
        codes = {position: str(ValueStatus.IMPLAUSIBLE) for position in positions}
        status[name] = {**status.get(name, {}), **codes}
    counts = {name: len(positions) for name, positions in refused.items()}
    return replace(reading, values=values, status=status), counts


def _out_of_range(reading: Reading) -> dict[str, set[int]]:
    refused: dict[str, set[int]] = {}
    for name, column in reading.values.items():
        metric = METRICS.get(name)
        if metric is None or _all_plausible(metric, column):
            continue
        for position, value in enumerate(column):
            if value is not None and not plausible(metric, value):
                refused.setdefault(name, set()).add(position)
    return refused


def _all_plausible(metric: Metric, column: Sequence[float | None]) -> bool:
    """Tell it of a whole column at once, which nearly always holds."""
    present = [value for value in column if value is not None]
    # The sum shows what a minimum can hide: NaN compares as neither smaller nor larger.
    return not present or (
        math.isfinite(sum(present)) and metric.low <= min(present) and max(present) <= metric.high
    )


def _above_limit(reading: Reading, name: str) -> set[int]:
    """Positions whose power is beyond what the enforced limit allows even for a moment."""
    powers = reading.values.get(name, ())
    limits = reading.values.get("power_limit_watts", ())
    return {
        position
        for position, (power, limit) in enumerate(zip(powers, limits, strict=False))
        if power is not None
        and limit is not None
        and plausible(METRICS["power_limit_watts"], limit)
        and limit > 0
        and power > POWER_LIMIT_FACTOR * limit
    }
