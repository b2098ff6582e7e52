"""What was said of the alerts that are open, so that their end says the same.

When an alert ends its readings are well again, and words made of those would name another cause
than the one that people acted on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson

from schemas.alert import Action, AlertEvent, AlertState

__all__ = ["Remembered"]

_Words = tuple[str, str, tuple[str, ...]]  # likely cause, action, next steps
_Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True)
class _Said:
    """Words of an open alert, and the alert that explains it."""

    words: _Words
    caused_by: str | None


class Remembered:
    """Cause, action and next steps of open alerts, by their ids.

    Words are constants of the detectors, so an entry costs little more than its id; nothing is
    kept of alerts that have ended.
    """

    def __init__(self) -> None:
        self._open: dict[str, _Said] = {}

    def __len__(self) -> int:
        return len(self._open)

    def kept(self, alert: AlertEvent) -> AlertEvent:
        """Note what a firing event says; return an end with the words that the alert had last.

        An end whose beginning is not known, from before a snapshot of an older version, is
        returned as it is.
        """
        before = self._open.get(alert.alert_id)
        if alert.state == AlertState.RESOLVED:
            self._open.pop(alert.alert_id, None)
            return alert if before is None else _ending_as(alert, before)
        caused_by = alert.caused_by
        if caused_by is None and before is not None:
            caused_by = before.caused_by
        words = (alert.likely_cause, str(alert.action), alert.next_steps)
        self._open[alert.alert_id] = _Said(words, caused_by)
        return alert

    def explained_by(self, alert_id: str, cause: str) -> None:
        """Note the alert that explains an open one and was found after it."""
        said = self._open.get(alert_id)
        if said is not None:
            self._open[alert_id] = replace(said, caused_by=cause)

    def dump(self) -> _Bytes:
        """Return everything as the bytes of a JSON document, each text once."""
        texts = sorted({said.words for said in self._open.values()})
        place = {words: number for number, words in enumerate(texts)}
        alerts = {
            key: [place[said.words], said.caused_by] for key, said in sorted(self._open.items())
        }
        written = orjson.dumps({"texts": texts, "open": alerts}) if alerts else b""
        return np.frombuffer(written, dtype=np.uint8)

    def load(self, saved: _Bytes | None) -> None:
        """Take over what :meth:`dump` gave; nothing from a snapshot that has none, or another."""
        self._open = {}
        if saved is None or not len(saved):
            return
        try:
            said = orjson.loads(saved.tobytes())
            texts = [
                (cause, str(Action(action)), tuple(steps)) for cause, action, steps in said["texts"]
            ]
            self._open = {
                key: _Said(texts[number], caused_by)
                for key, (number, caused_by) in said["open"].items()
            }
        except (ValueError, KeyError, TypeError, IndexError):
            # Words are no reason to refuse a snapshot: the ends are then worded from what is read.
            self._open = {}


def _ending_as(alert: AlertEvent, said: _Said) -> AlertEvent:
    cause, action, steps = said.words
    return replace(
        alert,
        likely_cause=cause,
        action=Action(action),
        next_steps=steps,
        caused_by=alert.caused_by or said.caused_by,
    )
