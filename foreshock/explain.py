"""``foreshock explain``: why an alert fired, from a recording or from what the bus still holds."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson
from rich.console import Console

from api.database import Database
from api.queries import Queries
from api.storekinds import file_of, kind_of
from bus import Bus, open_bus
from collector.replay.samples import samples_of
from collector.replay.source import ReplaySource
from detector.cohort.listing import COHORT_DETECTORS
from detector.settings import DetectorSettings
from foreshock.compose import prepared_bus
from foreshock.config import Settings
from foreshock.explain_words import lines_of
from foreshock.explaining import Explained, explain
from foreshock.replay import replay_settings
from schemas.alert import AlertEvent, Scope, parse_time
from schemas.codec import CONTENT_TYPE_HEADER, JSON_CONTENT_TYPE, decode_alert, decode_sample
from schemas.errors import ConfigError, DecodeError, SourceError
from schemas.sample import NodeSample
from schemas.topics import ALERTS, SAMPLES

__all__ = ["MOST_SHOWN", "explain_alert", "explain_files", "is_alert_id"]

_ID = re.compile(r"[0-9a-fA-F]{8}[0-9a-fA-F-]{0,28}")
#: Alerts of a recording that are explained one by one.
MOST_SHOWN = 20
#: Baselines need their history: so much before the alert is replayed, ms.
_HISTORY_MS = 2 * 3600 * 1000
_AFTER_MS = 5 * 60_000


def is_alert_id(word: str) -> bool:
    """Tell whether a word is an alert id, or the beginning of one, and not the name of a file.

    Examples
    --------
    >>> is_alert_id("6f0c1b2a"), is_alert_id("node1.csv"), is_alert_id("beef")
    (True, False, False)
    """
    return _ID.fullmatch(word) is not None and not Path(word).exists()


def explain_files(
    files: Sequence[Path],
    *,
    format: str = "auto",  # noqa: A002 - the name of the option
    map_path: Path | None = None,
    timezone: str | None = None,
    node: str | None = None,
    settings: DetectorSettings | None = None,
    console: Console,
) -> int:
    """Replay recordings and explain every alert in them.

    Parameters
    ----------
    files, format, map_path, timezone, node
        As for :func:`foreshock.replay.run_replay`.
    settings
        Of the detector; the defaults if None.
    console
        Where people read it.

    Returns
    -------
    int
        Exit code 0.

    Raises
    ------
    SourceError
        If a recording cannot be used.
    """
    chosen = replay_settings(files, format, map_path, timezone, node)

    def samples() -> Iterator[NodeSample]:
        with contextlib.closing(ReplaySource(chosen)) as source:
            yield from samples_of(source)

    found = explain(samples, settings)
    if not found:
        _say(console, ["No alerts: no score held its threshold for long enough."])
    for number, one in enumerate(found[:MOST_SHOWN]):
        _say(console, [*([""] if number else []), *lines_of(one)])
    if len(found) > MOST_SHOWN:
        _say(console, ["", f"… and {len(found) - MOST_SHOWN} more alerts."])
    return 0


def explain_alert(alert_id: str, settings: Settings, console: Console) -> int:
    """Explain one alert from the bus, or from the store if the bus forgot it.

    Parameters
    ----------
    alert_id
        The whole id, or its first eight characters or more.
    settings
        Where bus and store are.
    console
        Where people read it.

    Returns
    -------
    int
        Exit code 0.

    Raises
    ------
    ConfigError
        If the bus ends with its process.
    SourceError
        If nobody knows the alert.
    """
    if settings.bus.transport == "memory":
        raise ConfigError(
            "bus.transport is memory, so nothing is kept to explain. Use a recording: "
            "foreshock explain FILE."
        )
    bus = open_bus(prepared_bus(settings))
    try:
        events = _events(bus, settings, alert_id) or _stored(settings, alert_id)
        if not events:
            raise SourceError(
                f"There is no alert {alert_id} on the bus or in the store. The list is at "
                "/v1/alerts; 'foreshock replay --alerts OUT.jsonl' writes the id of each alert."
            )
        samples = list(_samples(bus, settings, events))
    finally:
        bus.close()
    _say(console, _told(events, samples, settings.detector))
    return 0


def _told(
    events: Sequence[AlertEvent], samples: Sequence[NodeSample], settings: DetectorSettings
) -> list[str]:
    first = events[0]
    kept = lines_of(Explained(events=tuple(events), trace=None))
    if not samples:
        return [*kept, "", "The bus keeps no samples of that time any more: no scores to show."]
    found = explain(lambda: samples, settings, lambda e: e.fingerprint == first.fingerprint)
    same = next((one for one in found if one.events[0].alert_id == first.alert_id), None)
    if same is not None:
        return [*lines_of(same), "", f"Replayed from {len(samples)} messages on the bus."]
    if not found:
        return [
            *kept,
            "",
            f"The {len(samples)} messages that the bus still keeps do not lead to the alert again: "
            "its baseline was learned from older ones, or settings changed since.",
        ]
    return [
        *lines_of(found[0]),
        "",
        f"The bus keeps {len(samples)} messages of that time. From them alone the alert begins "
        f"{found[0].events[0].started_at}, not {first.started_at}: the baseline is younger.",
    ]


def _events(bus: Bus, settings: Settings, alert_id: str) -> list[AlertEvent]:
    """Read the events of one alert from the bus, by their seq, each once."""
    found: dict[int, AlertEvent] = {}
    for record in bus.read_all(ALERTS.full_name(settings.bus.prefix)):
        try:
            event = decode_alert(record.value)
        except DecodeError:
            continue  # the api sets it aside and says so
        if event.alert_id.startswith(alert_id.lower()):
            found.setdefault(event.seq, event)
    return [found[seq] for seq in sorted(found)]


def _stored(settings: Settings, alert_id: str) -> list[AlertEvent]:
    """Read the last event of an alert from the store."""
    url = settings.api.database.get_secret_value() if settings.api.database else None
    file = file_of(url, settings.data_dir)
    if file is not None and not file.exists():
        return []
    database = Database(kind_of(url, settings.data_dir))
    try:
        shown = Queries(database).alert(alert_id)
    finally:
        database.close()
    return [] if shown is None else [decode_alert(orjson.dumps(shown))]


def _samples(bus: Bus, settings: Settings, events: Sequence[AlertEvent]) -> Iterator[NodeSample]:
    """Read the samples that may have led to an alert, in log order."""
    first, last = events[0], events[-1]
    since = parse_time(first.started_at) - _HISTORY_MS
    until = parse_time(last.observed_at) + _AFTER_MS
    wide = {cls.name for cls in COHORT_DETECTORS} | {"partition_silent"}
    one_node = first.detector.name not in wide and first.subject.scope != Scope.JOB
    node = (first.subject.node or "").encode() if one_node else None
    for record in bus.read_all(SAMPLES.full_name(settings.bus.prefix)):
        if (node is not None and record.key != node) or record.arrived_ms < since:
            continue
        kinds = [value for name, value in record.headers if name == CONTENT_TYPE_HEADER]
        try:
            sample = decode_sample(record.value, kinds[0] if kinds else JSON_CONTENT_TYPE)
        except DecodeError:
            continue  # it is among the dead letters
        if since <= sample.ts[-1] and sample.ts[0] <= until:
            yield sample


def _say(console: Console, lines: Sequence[str]) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
