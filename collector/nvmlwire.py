"""What the collector and its child that reads the driver say to each other: lines of JSON.

The parent writes one line with :class:`ChildSettings`, then a line per reading it asks for; the
child writes a line per reading, and lines for events and for the log at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import orjson

from collector.host import HostFiles
from collector.readings import Group
from collector.source import Reading
from schemas.sample import GpuInventory, Inventory, SampleEvent

__all__ = [
    "AskReading",
    "Change",
    "ChildSettings",
    "Lines",
    "SayEvents",
    "SayHello",
    "SayLog",
    "SayReading",
    "Stop",
    "Word",
    "dump",
    "load_command",
    "load_settings",
    "load_word",
    "without_inventory",
]

_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSettings:
    """What the child is told at its start.

    Parameters
    ----------
    node, expected_gpus
        As for :class:`~collector.nvml.NvmlSource`.
    library
        Path of ``libnvidia-ml.so.1``, or None to let the system look for it.
    groups
        Which metrics are read.
    slow_seconds
        How often what moves slowly is asked for.
    device_deadline_seconds
        How long one GPU may keep the others waiting.
    known, lost
        What was known of the GPUs before, and which of them were lost.
    host
        Where the kernel keeps what is known without the driver.
    """

    node: str
    expected_gpus: int | None = None
    library: str | None = None
    groups: tuple[str, ...] = tuple(Group)
    slow_seconds: float = 10.0
    device_deadline_seconds: float = 0.7
    known: Inventory = field(default_factory=Inventory)
    lost: tuple[str, ...] = ()
    host: HostFiles = field(default_factory=HostFiles)


@dataclass(frozen=True, slots=True)
class AskReading:
    """The parent asks for a reading with this number and event time."""

    number: int
    ts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The parent wants other metrics, or others more often, from the next reading on."""

    groups: tuple[str, ...]
    slow_seconds: float
    device_deadline_seconds: float


@dataclass(frozen=True, slots=True)
class Stop:
    """The parent asks the child to let go of the driver and end."""


@dataclass(frozen=True, slots=True)
class SayHello:
    """The child is there; from now on the time it takes is the driver's."""


@dataclass(frozen=True, slots=True)
class SayReading:
    """The child answers the question of this number."""

    number: int
    reading: Reading


@dataclass(frozen=True, slots=True)
class SayEvents:
    """The driver told of something by itself."""

    events: tuple[SampleEvent, ...]


@dataclass(frozen=True, slots=True)
class SayLog:
    """A line for the log."""

    level: str
    event: str
    facts: dict[str, Any]  # any JSON value


Word = SayHello | SayReading | SayEvents | SayLog


def dump(word: ChildSettings | AskReading | Change | Stop | Word) -> bytes:
    """Write a line. An inventory that stands unchanged is left out by the caller."""
    return orjson.dumps(_content(word), default=str, option=_OPTIONS)


def _content(word: ChildSettings | AskReading | Change | Stop | Word) -> object:
    content: object = word
    match word:
        case AskReading():
            content = {"read": word.number, "ts": word.ts}
        case Change():
            content = {"change": word}
        case Stop() | SayHello():
            content = {"stop" if isinstance(word, Stop) else "hello": True}
        case SayReading():
            content = {"read": word.number, "reading": word.reading}
        case SayEvents():
            content = {"events": word.events}
        case SayLog():
            content = {"log": word.event, "level": word.level, "facts": word.facts}
    return content


def load_settings(line: bytes) -> ChildSettings:
    """Read the first line that the child gets."""
    raw = orjson.loads(line)
    host = HostFiles(**{name: Path(path) for name, path in raw.pop("host").items()})
    known = _inventory(raw.pop("known"))
    raw["groups"], raw["lost"] = tuple(raw["groups"]), tuple(raw["lost"])
    return ChildSettings(**raw, host=host, known=known)


def load_command(line: bytes) -> AskReading | Change | Stop:
    """Read a later line that the child gets."""
    raw = orjson.loads(line)
    if "change" in raw:
        return Change(**{**raw["change"], "groups": tuple(raw["change"]["groups"])})
    return Stop() if "stop" in raw else AskReading(raw["read"], raw["ts"])


def load_word(line: bytes, last: Inventory) -> Word:
    """Read a line that the parent gets.

    Parameters
    ----------
    line
        As it came.
    last
        The inventory that stands where the reading carries none.
    """
    raw = orjson.loads(line)
    if "hello" in raw:
        return SayHello()
    if "reading" in raw:
        return SayReading(raw["read"], _reading(raw["reading"], last))
    if "events" in raw:
        return SayEvents(_events(raw["events"]))
    return SayLog(raw["level"], raw["log"], raw["facts"])


class Lines:
    r"""Puts bytes together to whole lines.

    Examples
    --------
    >>> lines = Lines()
    >>> list(lines.feed(b'{"a":')), list(lines.feed(b'1}\n{"b"'))
    ([], [b'{"a":1}'])
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Take a piece; yield the lines that are complete because of it."""
        *whole, self._rest = (self._rest + piece).split(b"\n")
        yield from whole


def without_inventory(reading: Reading) -> Reading:
    """Leave out the inventory, for a reader that has it already."""
    return replace(reading, inventory=Inventory(uptime_seconds=reading.inventory.uptime_seconds))


def _reading(raw: dict[str, Any], last: Inventory) -> Reading:
    inventory = _inventory(raw["inventory"])
    if inventory == Inventory(uptime_seconds=inventory.uptime_seconds):
        inventory = replace(last, uptime_seconds=inventory.uptime_seconds)
    pids = raw["pids"]
    return Reading(
        node=raw["node"],
        ts=raw["ts"],
        gpus=tuple(raw["gpus"]),
        values=raw["values"],
        status={
            name: {int(place): code for place, code in codes.items()}
            for name, codes in raw["status"].items()
        },
        state=raw["state"],
        nvml_error=raw["nvml_error"],
        events=_events(raw["events"]),
        inventory=inventory,
        parents=raw["parents"],
        pids=None if pids is None else {gpu: tuple(found) for gpu, found in pids.items()},
    )


def _events(raw: list[dict[str, Any]]) -> tuple[SampleEvent, ...]:
    return tuple(_made(SampleEvent, event) for event in raw)


def _inventory(raw: dict[str, Any]) -> Inventory:
    gpus = tuple(_made(GpuInventory, gpu) for gpu in raw.pop("gpus"))
    return replace(_made(Inventory, raw), gpus=gpus)


def _made(cls: type[_T], raw: dict[str, Any]) -> _T:
    names = {item.name for item in fields(cls)}  # type: ignore[arg-type]  # all are dataclasses
    return cls(**{name: value for name, value in raw.items() if name in names})
