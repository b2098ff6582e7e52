"""Wires services to a bus, a data directory and their health ports.

The only place where the three services meet. Services are imported when they are built, so that
a node agent loads neither the web framework nor the models.
"""
# ruff: noqa: PLC0415 - see above

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType

import structlog

from bus import Bus, open_bus
from bus.settings import BusSettings
from collector.source import Source
from foreshock.config import Settings
from foreshock.datadir import ServiceLock, open_data_dir, restrict_new_files, service_folder
from foreshock.health import HealthServer
from foreshock.preflight import require_free_ports, require_right_settings
from foreshock.run import Outcome, abandon, run_services
from foreshock.service import Service
from schemas.errors import ConfigError, ForeshockError

__all__ = ["SERVICES", "asked_of", "composed", "placed", "prepared_bus", "run_composed"]

_log = structlog.get_logger()


def _collector(settings: Settings, bus: Bus, source: Source | None) -> Service:
    from collector.agent import CollectorService
    from collector.nodecontext import NodeContext
    from collector.settings import SourceKind
    from collector.sources import open_events, open_host, open_jobs, open_source

    return CollectorService(
        source if source is not None else open_source(settings.collector),
        bus,
        settings.collector,
        prefix=settings.bus.prefix,
        events=open_events(settings.collector),
        jobs=open_jobs(settings.collector),
        node_numbers=None if settings.collector.source == SourceKind.REPLAY else NodeContext(),
        host_numbers=open_host(settings.collector),
    )


def _detector(settings: Settings, bus: Bus, _source: Source | None) -> Service:
    from detector.service import DetectorService
    from detector.topic_snapshots import TopicSnapshots

    chosen = settings.detector.snapshot_store
    if chosen == "auto":
        chosen = "topic" if settings.bus.transport == "kafka" else "files"
    prefix = settings.bus.prefix
    return DetectorService(
        bus,
        settings.detector,
        prefix=prefix,
        data_dir=settings.data_dir,
        snapshots=TopicSnapshots(bus, prefix) if chosen == "topic" else None,
    )


def _api(settings: Settings, bus: Bus, _source: Source | None) -> Service:
    from api.service import ApiService

    return ApiService(bus, settings.api, prefix=settings.bus.prefix, data_dir=settings.data_dir)


#: Name of a service to what builds it.
SERVICES: Mapping[str, Callable[[Settings, Bus, Source | None], Service]] = MappingProxyType(
    {"collector": _collector, "detector": _detector, "api": _api}
)


def placed(settings: Settings) -> Settings:
    """Put what has no absolute path of its own into the data directory."""
    bus, collector = settings.bus, settings.collector
    folder = settings.data_dir
    # An absolute path stays as it is: that is how "/" joins.
    bus = bus.model_copy(update={"path": folder / "bus" / bus.path.expanduser()})
    spool_path = folder / "collector" / (collector.spool.path or Path("spool.sqlite")).expanduser()
    spool = collector.spool.model_copy(update={"path": spool_path})
    kernel_place = folder / "collector" / (collector.kernel.place or Path("kernel.json"))
    kernel = collector.kernel.model_copy(update={"place": kernel_place})
    collector = collector.model_copy(update={"spool": spool, "kernel": kernel})
    return settings.model_copy(update={"bus": bus, "collector": collector})


def prepared_bus(settings: Settings) -> BusSettings:
    """Return the settings of the bus after making the folder that its file needs."""
    if settings.bus.transport == "sqlite":
        restrict_new_files()
        service_folder(open_data_dir(settings.data_dir), "bus")
    return placed(settings).bus


@contextmanager
def composed(
    settings: Settings, names: Sequence[str], *, source: Source | None = None
) -> Iterator[list[Service]]:
    """Build services ready to run, and let go of everything they stand on afterwards.

    Parameters
    ----------
    settings
        The effective settings.
    names
        Which services, of :data:`SERVICES`.
    source
        What the collector reads, if it is already open; by default what the settings name.

    Raises
    ------
    ForeshockError
        If the data directory, the bus or a port cannot be used.
    """
    if settings.bus.transport == "memory" and set(names) != set(SERVICES):
        raise ConfigError(
            "bus.transport is memory, which ends with the process: no other service would ever "
            "see a message. Set it to sqlite or kafka, or run 'foreshock up'."
        )
    require_right_settings(settings, names)
    restrict_new_files()
    settings = placed(settings)
    with ExitStack() as held:
        data_dir = open_data_dir(settings.data_dir)
        for name in names:
            held.enter_context(ServiceLock(service_folder(data_dir, name)))
        require_free_ports(settings, names)
        bus = open_bus(prepared_bus(settings))
        held.callback(bus.close)
        if settings.bus.transport != "kafka":
            bus.create_topics()  # on Kafka that is the administrator's: foreshock topics create
        services = [SERVICES[name](settings, bus, source) for name in names]
        _tell_api(services)
        for service in services:
            health = _health_server(service, settings)
            if health is not None:
                held.callback(health.close)
        yield services


def _tell_api(services: Sequence[Service]) -> None:
    """Let the api's signs of life depend on the services beside it."""
    if not any(service.name == "api" for service in services):
        return
    from api.service import ApiService

    for service in services:
        if isinstance(service, ApiService):
            service.depends_on(*(other.health for other in services if other is not service))


def _health_server(service: Service, settings: Settings) -> HealthServer | None:
    """Serve the health of a service that has no HTTP of its own."""
    if service.name == "collector":
        host, port, key = (
            settings.collector.host,
            settings.collector.port,
            settings.collector.api_key,
        )
    elif service.name == "detector":
        host, port, key = settings.detector.host, settings.detector.port, settings.detector.api_key
    else:
        return None
    return HealthServer(
        service, host=host, port=port, api_key=key.get_secret_value() if key is not None else None
    )


def run_composed(
    settings: Settings,
    names: Sequence[str],
    *,
    source: Source | None = None,
    stop: threading.Event | None = None,
    beside: Callable[[Sequence[Service]], None] | None = None,
    reload: Callable[[], Settings] | None = None,
) -> Outcome:
    """Build services, run them until a signal comes, and let go. See :func:`composed`.

    Parameters
    ----------
    settings, names, source
        As for :func:`composed`.
    stop
        Ends the run when set.
    beside
        Called with the services before they run; must return at once.
    reload
        Loads the settings anew on SIGHUP; None leaves that signal as it is.
    """
    with composed(settings, names, source=source) as services:
        if beside is not None:
            beside(services)
        outcome = run_services(
            services,
            stop if stop is not None else threading.Event(),
            on_signals=asked_of(services, reload),
        )
        if outcome.hung:
            abandon(outcome)  # closing the bus could wait for the thread that hangs
    return outcome


def asked_of(
    services: Sequence[Service], reload: Callable[[], Settings] | None
) -> Mapping[int, Callable[[], None]]:
    """Return what SIGHUP (settings anew) and SIGUSR1 (let go of the GPUs) do to a collector.

    Parameters
    ----------
    services
        What runs. Where no collector is among them the signals keep their usual meaning.
    reload
        Loads the settings anew.
    """
    if all(service.name != "collector" for service in services):
        return {}
    from collector.agent import CollectorService

    collectors = [service for service in services if isinstance(service, CollectorService)]

    def hang_up() -> None:
        try:
            settings = placed(reload()) if reload is not None else None
        except ForeshockError as exc:
            _log.error("settings_not_reloaded", reason=str(exc))
            return
        for collector in collectors:
            if settings is not None:
                collector.change(settings.collector)

    def release() -> None:
        for collector in collectors:
            collector.release()

    asked: dict[int, Callable[[], None]] = {signal.SIGUSR1: release}
    return asked if reload is None else {signal.SIGHUP: hang_up, **asked}
