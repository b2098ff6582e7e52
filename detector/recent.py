"""The last minutes of every GPU, to be shown beside an alert.

Kept outside the state that snapshots save: it decides nothing. After a restart a line begins
where reading went on.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from detector.arrays import Field, FloatArray, IntArray, StateTable
from schemas.alert import AlertEvent, Scope, Series, parse_time
from schemas.window import WINDOW_MS

__all__ = ["CHARTED", "Recent"]

#: Metrics whose course explains an alert to a person, four bytes each per ten seconds and GPU.
CHARTED = (
    "memory_used_bytes",
    "temperature_celsius",
    "memory_temperature_celsius",
    "power_watts",
    "power_limit_watts",
    "sm_clock_hertz",
    "gpu_utilization_ratio",
    "memory_utilization_ratio",
    "fan_ratio",
)
#: What is shown of a family beside the metrics that its evidence names; the first one first.
_OF_FAMILY = {
    "oom_precursor": ("memory_used_bytes",),
    "throttling": ("sm_clock_hertz", "temperature_celsius", "power_watts"),
    "thermal_fault": ("temperature_celsius", "power_watts"),
    "load_imbalance": ("power_watts", "gpu_utilization_ratio"),
    "inefficiency": ("gpu_utilization_ratio", "power_watts"),
}
_ELSE = ("power_watts", "gpu_utilization_ratio", "temperature_celsius")
#: Lines of one alert; more are a dashboard's business.
_LINES = 4


class Recent:
    """Means over ten seconds of some metrics, for as many minutes as one wants.

    Parameters
    ----------
    minutes
        How far back the lines go; event time.

    Notes
    -----
    Costs ``6 * minutes * (8 + 4 * len(CHARTED))`` bytes per GPU: 2.6 KiB for ten minutes.
    """

    def __init__(self, minutes: float) -> None:
        self._slots = max(2, round(minutes * 60_000 / WINDOW_MS))
        self._span_ms = self._slots * WINDOW_MS
        self.table = StateTable(
            {
                "start": Field("i8", -1, self._slots),
                **{name: Field("f4", np.nan, self._slots) for name in CHARTED},
            }
        )

    def keep(self, rows: IntArray, starts: IntArray, means: dict[str, FloatArray]) -> None:
        """Keep closed windows.

        Parameters
        ----------
        rows, starts
            (n,) rows, each once, and when their windows began, unix milliseconds.
        means
            Metric to (n,) means, NaN where missing; metrics that are not charted are passed over.
        """
        # Time itself says which slot: a gap leaves old slots, told by their start.
        at = starts // WINDOW_MS % self._slots
        self.table["start"][rows, at] = starts
        for name in CHARTED:
            self.table[name][rows, at] = means.get(name, np.nan)

    def lines(
        self, alert: AlertEvent, row: int, now: dict[str, float], at_ms: int
    ) -> tuple[Series, ...]:
        """Return the lines of an alert on one GPU.

        Parameters
        ----------
        alert
            Its family and evidence say which metrics.
        row
            Of the GPU.
        now
            Metric to its newest reading, the last point of its line.
        at_ms
            Event time of those readings.
        """
        starts = self.table["start"][row]
        kept = np.flatnonzero((starts >= at_ms - self._span_ms) & (starts + WINDOW_MS <= at_ms))
        kept = kept[np.argsort(starts[kept])]
        # A mean stands for the middle of its window.
        moments = (starts[kept] + WINDOW_MS // 2).tolist()
        found = []
        for name in _wanted(alert):
            values = [*self.table[name][row, kept].tolist(), now.get(name, np.nan)]
            shown = [None if np.isnan(value) else _short(value) for value in values]
            if sum(value is not None for value in shown) > 1:
                found.append(Series(metric=name, ts=[*moments, at_ms], values=shown))
        return tuple(found[:_LINES])

    def beside(self, alert: AlertEvent, row: int, now: dict[str, float]) -> AlertEvent:
        """Return an alert with its lines; one that is not about a GPU as it is."""
        if alert.subject.scope != Scope.GPU:
            return alert
        lines = self.lines(alert, row, now, parse_time(alert.observed_at))
        return replace(alert, series=lines) if lines else alert


def _wanted(alert: AlertEvent) -> tuple[str, ...]:
    named = [one.metric for one in alert.evidence if one.metric in CHARTED]
    return tuple(dict.fromkeys([*named, *_OF_FAMILY.get(alert.family, _ELSE)]))


def _short(value: float) -> float:
    """Round to the six digits that a float32 has, so that no chart shows its noise."""
    return float(f"{value:.6g}")
