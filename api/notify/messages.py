"""What a notification says, before any format: what, where, since when, why, what to do. Pure.

A receiver's own file turns a :class:`Message` into its format and cuts it to its limits, from the
least needed on: see :func:`fitting`.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from api.matchers import EXTERNAL
from api.notify.words import ACTIONS, KINDS, WORDS
from api.readings import duration, is_empty, label, reading
from schemas.alert import parse_time
from schemas.metrics import METRICS

__all__ = ["Message", "Style", "build_digest", "build_message", "clean", "fitting", "plain_text"]

TITLE_LIMIT = 120
_EVIDENCE_LIMIT = 6
_STEP_LIMIT = 6
_LINE_LIMIT = 400
#: Characters that turn the direction of text around, or hide: names could be forged with them.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})

Event = Mapping[str, Any]  # decoded JSON of an AlertEvent
_Rendered = TypeVar("_Rendered", str, bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How one endpoint is spoken to.

    Parameters
    ----------
    language
        ``en`` or ``zh-CN``.
    timezone
        IANA zone of times.
    link
        Address of the api for people, or None.
    """

    language: str = "en"
    timezone: str = "UTC"
    link: str | None = None

    def say(self, pair: tuple[str, str]) -> str:
        """Return the word of this language."""
        return pair[1] if self.language.startswith("zh") else pair[0]

    def word(self, name: str) -> str:
        """Return one of :data:`~api.notify.words.WORDS`."""
        return self.say(WORDS[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A notification in parts; every text is clean, none is escaped yet.

    Parameters
    ----------
    title
        At most 120 characters; says enough by itself.
    severity
        info, warning, critical, or resolved.
    summary
        The detector's sentence.
    facts
        Name and value: where, since when.
    evidence, steps, notes
        One line each.
    cause
        May be empty.
    footer
        Ids, for who looks closer.
    link
        Where to read on, or None.
    words
        Headings of the parts, in the message's language.
    """

    title: str
    severity: str
    summary: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    evidence: tuple[str, ...] = ()
    cause: str = ""
    steps: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    footer: str = ""
    link: str | None = None
    words: Mapping[str, str]


def clean(value: object, limit: int = _LINE_LIMIT) -> str:
    r"""Return text in one line without control and direction characters, cut to a length.

    Examples
    --------
    >>> clean("node\u202e-1\r\nBcc: x")
    'node-1 Bcc: x'
    """
    text = "" if value is None else str(value)
    shown = "".join(
        " " if c in "\r\n\t\v\f" else c for c in text if c in "\r\n\t\v\f" or not _unseen(c)
    )
    text = " ".join(shown.split())
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def _unseen(character: str) -> bool:
    return unicodedata.category(character) in _UNSEEN


def build_message(
    event: Event,
    style: Style,
    *,
    kind: str = "fired",
    delayed: bool = False,
    replayed: bool = False,
) -> Message:
    """Build the message of one alert.

    Parameters
    ----------
    event
        The AlertEvent.
    style
        Language, zone, link.
    kind
        What happened, a word of :class:`~api.lifecycle.EventType`.
    delayed
        Whether it is the first word of an alert that has ended.
    replayed
        Whether somebody asked for it to be sent again.
    """
    resolved = event["state"] == "resolved"
    severity = "resolved" if resolved else str(event["severity"])
    notes = _notes(event, style, kind, delayed=delayed, replayed=replayed)
    steps = () if resolved else _steps(event, style)
    return Message(
        title=_title(event, style, severity),
        severity=severity,
        summary=clean(event["summary"], 1000),
        facts=_facts(event, style, resolved=resolved),
        evidence=tuple(
            _evidence(item, style)
            for item in [item for item in event.get("evidence") or () if not is_empty(item)][
                :_EVIDENCE_LIMIT
            ]
        ),
        cause=clean(event.get("likely_cause"), 600),
        steps=steps,
        notes=notes,
        footer=_footer(event),
        link=None if style.link is None else f"{style.link}/alerts/{event['alert_id']}",
        words=_headings(style),
    )


def build_digest(events: Sequence[Event], style: Style) -> Message:
    """Build one message that tells of many alerts: counts by kind and place, the gravest first."""
    rank = {"critical": 0, "warning": 1, "info": 2}
    firing = [e for e in events if e["state"] != "resolved"]
    gravest = min((str(e["severity"]) for e in firing), key=lambda s: rank[s], default="resolved")
    counted = Counter((_kind(e, style), _group(e, style), e["state"] == "resolved") for e in events)
    lines = tuple(
        f"{number} × {name}, {place}" + (f" ({style.word('over_now')})" if over else "")
        for (name, place, over), number in counted.most_common()
    )
    severity = style.word(gravest)
    counts = f"{len(firing)} {style.word('new')}, {len(events) - len(firing)} "
    title = f"[{severity}] {len(events)} {style.word('digest')}: {counts}{style.word('over_now')}"
    worst = sorted(firing, key=lambda e: rank[str(e["severity"])])[:5]
    return Message(
        title=clean(title, TITLE_LIMIT),
        severity=gravest,
        evidence=lines,
        notes=tuple(_title(e, style, str(e["severity"])) for e in worst),
        link=style.link,
        words=_headings(style) | {"evidence": ""},
    )


def _headings(style: Style) -> dict[str, str]:
    names = ("evidence", "cause", "next", "open")
    return {name: style.word(name) for name in names}


def _kind(event: Event, style: Style) -> str:
    if event["kind"] == EXTERNAL and (event.get("labels") or {}).get("alertname"):
        return clean(event["labels"]["alertname"], 80)
    known = KINDS.get(str(event["kind"]))
    return clean(str(event["kind"]).replace("_", " ")) if known is None else style.say(known)


def _title(event: Event, style: Style, severity: str) -> str:
    """Severity, place, kind, job: at the end the same as at the beginning but for one word."""
    subject = event["subject"]
    zh = style.language.startswith("zh")
    left, right = ("【", "】") if zh else ("[", "] ")
    title = f"{left}{style.word(severity)}{right}{where(event, style)}"
    title += f" {_kind(event, style)}" if zh else f": {_kind(event, style)}"
    # An alert of another tool names the job that scraped it, not one that computes.
    if subject.get("job") and subject["scope"] != "job" and event["kind"] != EXTERNAL:
        title += f"{'，' if zh else ', '}{style.word('job').lower()} {clean(subject['job'], 40)}"
    return clean(title, TITLE_LIMIT)


def where(event: Event, style: Style) -> str:
    """Name the subject as a title does.

    Examples
    --------
    >>> subject = {"scope": "gpu", "node": "node-117", "gpu_index": 3}
    >>> where({"subject": subject}, Style()), where({"subject": subject}, Style(language="zh-CN"))
    ('node-117 GPU 3', 'node-117 3 号 GPU')
    """
    subject = event["subject"]
    zh = style.language.startswith("zh")
    node = clean(subject.get("node"), 60)
    if subject["scope"] == "gpu":
        index = subject.get("gpu_index")
        if index is None:
            gpu = clean(subject.get("gpu_uuid"), 48)
        else:
            gpu = f"{index} 号 GPU" if zh else f"GPU {index}"
        return f"{node} {gpu}".strip()
    if subject["scope"] == "job":
        return f"{style.word('job').lower()} {clean(subject.get('job'), 60)}"
    if subject["scope"] == "rack":
        return f"{'机架' if zh else 'rack'} {clean(subject.get('rack'), 60)}"
    if subject["scope"] == "pipeline":
        return clean(subject.get("pipeline"), 60)
    return node


def _group(event: Event, style: Style) -> str:
    subject = event["subject"]
    return clean(subject.get("node"), 60) or where(event, style)


def _facts(event: Event, style: Style, *, resolved: bool) -> tuple[tuple[str, str], ...]:
    subject = event["subject"]
    found = [(style.word("where"), where(event, style))]
    detail = [clean(subject.get(n), 80) for n in ("model", "gpu_uuid", "pci") if subject.get(n)]
    if detail and subject["scope"] == "gpu":
        found.append((style.word("gpu"), ", ".join(detail)))
    if subject.get("job"):
        found.append((style.word("job"), clean(subject["job"], 80)))
    begun = parse_time(event["started_at"])
    ended = parse_time(event["ended_at"]) if resolved and event.get("ended_at") else None
    until = parse_time(event["observed_at"]) if ended is None else ended
    span = duration(max(0, until - begun) // 1000)
    said = style.word("for" if ended is None else "lasted")
    found.append((style.word("since"), f"{_time(begun, style)} ({said} {span})"))
    if ended is not None:
        found.append((style.word("ended"), _time(ended, style)))
    if resolved and event.get("end_reason"):
        found.append((style.word("end_reason"), clean(event["end_reason"], 120)))
    return tuple(found)


def _time(unix_ms: int, style: Style) -> str:
    moment = datetime.fromtimestamp(unix_ms // 1000, ZoneInfo(style.timezone))
    return f"{moment:%Y-%m-%d %H:%M:%S} {moment.tzname()}"


def _evidence(item: Mapping[str, Any], style: Style) -> str:  # decoded JSON of an Evidence
    metric, unit = str(item["metric"]), str(item["unit"])

    def said(value: float | None) -> str:
        return clean(reading(value, metric, unit), 60)

    known = METRICS.get(metric)
    zh = style.language.startswith("zh") and known is not None
    name = known.label_zh if zh and known is not None else label(metric)
    parts = []
    low, high = item.get("expected_low"), item.get("expected_high")
    if low is not None and high is not None:
        parts.append(f"{style.word('expected')} {said(low)} – {said(high)}")
    elif high is not None:
        parts.append(f"{style.word('expected')} {style.word('at_most')} {said(high)}")
    elif low is not None:
        parts.append(f"{style.word('expected')} {style.word('at_least')} {said(low)}")
    if item.get("baseline") is not None:
        parts.append(f"{style.word('before')} {said(item['baseline'])}")
    if item.get("peers") is not None:
        parts.append(f"{style.word('peers')} {said(item['peers'])}")
    if item.get("window_seconds") is not None:
        parts.append(f"{style.word('over')} {duration(item['window_seconds'])}")
    value = style.word("unknown").lower() if item["value"] is None else said(item["value"])
    return clean(f"{name}: {value}" + (f" ({', '.join(parts)})" if parts else ""))


def _steps(event: Event, style: Style) -> tuple[str, ...]:
    action = ACTIONS.get(str(event.get("action")))
    found = [clean(step) for step in event.get("next_steps") or ()]
    if action is not None and (style.language.startswith("zh") or not found):
        found.insert(0, style.say(action))
    return tuple(step for step in found if step)[:_STEP_LIMIT]


def _notes(
    event: Event, style: Style, kind: str, *, delayed: bool, replayed: bool
) -> tuple[str, ...]:
    found = []
    if kind in {"reminder", "escalated", "reopened", "flapping", "test"}:
        found.append(style.word(kind))
    if delayed:
        found.append(style.word("delayed"))
    if replayed:
        found.append(style.word("replay"))
    missing = [clean(name, 60) for name in list(event.get("unmeasured") or ())[:5]]
    if missing:
        found.append(f"{style.word('unknown')}: {', '.join(missing)}")
    return tuple(found)


def _footer(event: Event) -> str:
    detector = event.get("detector") or {}
    name = clean(f"{detector.get('name', '')} {detector.get('version', '')}", 60)
    return clean(f"{event['family']}/{event['kind']} · {name} · {event['alert_id']}", 200)


def plain_text(message: Message, *, with_title: bool = True) -> str:
    """Return the message as lines of plain text."""
    lines = [message.title] if with_title else []
    if message.summary:
        lines.append(message.summary)
    lines += [f"{name}: {value}" for name, value in message.facts]
    if message.evidence:
        heading = message.words["evidence"]
        lines += [f"{heading}:"] if heading else []
        lines += [f"- {line}" for line in message.evidence]
    if message.cause:
        lines.append(f"{message.words['cause']}: {message.cause}")
    if message.steps:
        lines.append(f"{message.words['next']}:")
        lines += [f"{number}) {step}" for number, step in enumerate(message.steps, 1)]
    lines += list(message.notes)
    if message.link:
        lines.append(f"{message.words['open']}: {message.link}")
    if message.footer:
        lines.append(message.footer)
    return "\n".join(lines)


def fitting(
    message: Message,
    render: Callable[[Message], _Rendered],
    limit: int,
    measure: Callable[[_Rendered], int] = len,
) -> _Rendered:
    """Return the first rendering that fits, leaving out the least needed first.

    Parameters
    ----------
    message
        The whole message.
    render
        Makes the bytes or the text.
    limit
        Most of it, in the unit of ``measure``.
    measure
        Length as the receiver counts it: bytes, characters, UTF-16 units.
    """
    body = render(message)
    for shorter in _shorter(message):
        if measure(body) <= limit:
            break
        body = render(shorter)
    return body


def _shorter(message: Message) -> list[Message]:
    """Return ever shorter messages, down to the title alone."""
    few = replace(message, footer="", evidence=message.evidence[:12], notes=message.notes[:3])
    fewer = replace(few, evidence=message.evidence[:3], steps=message.steps[:3], notes=())
    least = replace(fewer, evidence=(), cause=message.cause[:200], summary=message.summary[:300])
    bare = replace(least, cause="", steps=(), facts=message.facts[:1])
    title = replace(bare, facts=(), summary="")
    return [few, fewer, least, bare, title, replace(title, title=clean(title.title, 60))]
