"""What can be found wrong before anything starts: settings that contradict, and taken ports.

The services check the same when they are built. Here all of it is found at once, without opening
anything, for ``config show``, ``doctor`` and the start of every command.
"""
# Services are looked into only where they are named: a node agent loads no web framework.
# ruff: noqa: PLC0415 - see above

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from foreshock.config import Settings
from foreshock.health import require_key
from schemas.errors import ConfigError

__all__ = [
    "Listening",
    "listening",
    "port_fault",
    "require_free_ports",
    "require_right_settings",
    "wrong_settings",
]

_EVERYWHERE = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - compared with, not listened on


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where one service listens; port 0 takes a free one."""

    service: str
    host: str
    port: int

    def meets(self, other: Listening) -> bool:
        """Whether the two cannot listen at the same time."""
        if self.port != other.port or self.port == 0:
            return False
        return self.host == other.host or not _EVERYWHERE.isdisjoint({self.host, other.host})


def listening(settings: Settings, names: Sequence[str]) -> list[Listening]:
    """Return where each of these services listens."""
    collector, detector, api = settings.collector, settings.detector, settings.api
    places = {
        "collector": (collector.host, collector.port),
        "detector": (detector.host, detector.port),
        "api": (api.host, api.port),
    }
    return [
        Listening(service=name, host=host.strip("[]"), port=port)
        for name, (host, port) in places.items()
        if name in names
    ]


def _collector(settings: Settings) -> Iterator[Callable[[], object]]:
    part = settings.collector
    yield lambda: require_key("collector", part.host, part.api_key)


def _detector(settings: Settings) -> Iterator[Callable[[], object]]:
    from detector.registry import detectors_of

    part = settings.detector
    yield lambda: require_key("detector", part.host, part.api_key)
    yield lambda: detectors_of(part)


def _api(settings: Settings) -> Iterator[Callable[[], object]]:
    from api.database import file_of

    url = settings.api.database
    yield settings.api.check_bind
    yield lambda: file_of(url.get_secret_value() if url else None, settings.data_dir)
    for endpoint in settings.api.endpoints:
        if endpoint.enabled:
            yield endpoint.signing_secret
            yield endpoint.access_token


#: Service to the checks of its settings, each of which raises ConfigError.
_CHECKS: Mapping[str, Callable[[Settings], Iterator[Callable[[], object]]]] = MappingProxyType(
    {"collector": _collector, "detector": _detector, "api": _api}
)


def wrong_settings(settings: Settings, names: Sequence[str] = tuple(_CHECKS)) -> list[str]:
    """Return one sentence for each thing with which these services could not start.

    Parameters
    ----------
    settings
        The effective settings, each value valid by itself.
    names
        The services that shall run, by default all of them on one machine.
    """
    found = []
    for name in names:
        for check in _CHECKS[name](settings):
            try:
                check()
            except ConfigError as exc:
                found.append(str(exc))
    for one, other in itertools.combinations(listening(settings, names), 2):
        if one.meets(other):
            found.append(
                f"{one.service}.port and {other.service}.port are both {one.port}. "
                "Give each service a port of its own."
            )
    return found


def require_right_settings(settings: Settings, names: Sequence[str]) -> None:
    """Raise ConfigError with every sentence of :func:`wrong_settings`, one per line."""
    found = wrong_settings(settings, names)
    if found:
        raise ConfigError("\n".join(found))


def port_fault(at: Listening) -> str | None:
    """Say why the service could not listen now, or None if it could."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            at.host, at.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as exc:
        return exc.strerror or str(exc)
    return None


def require_free_ports(settings: Settings, names: Sequence[str]) -> None:
    """Raise ConfigError if a service could not listen, before any of them starts."""
    faults = [(at, fault) for at in listening(settings, names) if (fault := port_fault(at))]
    if faults:
        raise ConfigError(
            "\n".join(
                f"The {at.service} cannot listen on {at.host} port {at.port}: {fault}. Stop the "
                f"program that does, or set {at.service}.port to a free port."
                for at, fault in faults
            )
        )
