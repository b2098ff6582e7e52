"""The real services, fed by the simulated fleet, in one process and one data directory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from api.server import listening_socket
from api.service import ApiService
from api.settings import ApiSettings, EndpointSettings
from bus import Bus, open_bus
from collector.agent import CollectorService
from collector.clock import Clock
from collector.settings import CollectorSettings, SourceKind
from collector.source import Reading, Source
from detector.settings import DetectorSettings
from foreshock.compose import SERVICES, placed, prepared_bus
from foreshock.config import Settings
from foreshock.datadir import ServiceLock, open_data_dir, restrict_new_files, service_folder
from foreshock.demo.receiver import WebhookReceiver
from foreshock.service import Service
from schemas.alert import Severity
from schemas.errors import ConfigError, DataDirError

__all__ = ["CountedSource", "Stack", "demo_settings", "opened_stack", "require_free"]


_HOST = "127.0.0.1"


class CountedSource:
    """A source that counts the GPU samples it hands out, for the view.

    Parameters
    ----------
    source
        What is read.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.kind = source.kind
        self.samples = 0

    @property
    def exhausted(self) -> bool:
        """Whether nothing will ever come again."""
        return self._source.exhausted

    def read(self, ts_ms: int) -> list[Reading]:
        """Read everything now and count it."""
        readings = self._source.read(ts_ms)
        self.samples += sum(len(reading.gpus) for reading in readings)
        return readings

    def close(self) -> None:
        """Close what is read."""
        self._source.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Services ready to run, and the bus between them."""

    collector: Service
    detector: Service
    api: ApiService
    bus: Bus

    @property
    def services(self) -> Sequence[Service]:
        """All of them, in the order of the data."""
        return (self.collector, self.detector, self.api)

    def url(self) -> str:
        """Return where the dashboard is; empty while nothing listens yet."""
        address = self.api.address
        return "" if address is None else f"http://{address[0]}:{address[1]}/"


def require_free(port: int) -> None:
    """See to it that the port can be had before anything starts.

    Raises
    ------
    ConfigError
        If it cannot, with the option that names another.
    """
    try:
        listening_socket(_HOST, port).close()
    except (ConfigError, OverflowError) as exc:
        raise ConfigError(
            f"Port {port} of {_HOST} cannot be used; another program may serve there. "
            "Choose another with --port, or let the demo take a free one with --port 0."
        ) from exc


def demo_settings(*, data_dir: Path, port: int, receiver: WebhookReceiver) -> Settings:
    """Return settings of the demo: no file and no environment takes part in them.

    Parameters
    ----------
    data_dir
        Folder of everything the demo keeps.
    port
        Of the API on 127.0.0.1.
    receiver
        Where alerts of severity warning and above are delivered.
    """
    endpoint = EndpointSettings(
        name="demo",
        url=SecretStr(receiver.url),
        secret=SecretStr(receiver.secret),
        severity_min=Severity.WARNING,
        allow_private=True,
    )
    return Settings(
        data_dir=data_dir,
        log_level="warning",
        collector=CollectorSettings(source=SourceKind.SIMULATED, node="demo"),
        detector=DetectorSettings(),
        api=ApiSettings(host=_HOST, port=port, endpoints=(endpoint,)),
    )


@contextmanager
def opened_stack(settings: Settings, source: Source, clock: Clock) -> Iterator[Stack]:
    """Build collector, detector and api over the sqlite bus, and let go of them afterwards.

    Raises
    ------
    DataDirError
        If the data directory cannot be used, or a fleet of an earlier run is in it: its
        simulated past would lie in this run's future.
    """
    restrict_new_files()
    settings = placed(settings)
    if settings.bus.path.exists():
        raise DataDirError(
            f"{settings.data_dir} already holds the data of an earlier run. The demo begins with "
            "nothing: name another folder, or delete this one."
        )
    with ExitStack() as held:
        folder = open_data_dir(settings.data_dir)
        for name in SERVICES:
            held.enter_context(ServiceLock(service_folder(folder, name)))
        bus = open_bus(prepared_bus(settings))
        held.callback(bus.close)
        bus.create_topics()
        collector = CollectorService(
            source, bus, settings.collector, prefix=settings.bus.prefix, clock=clock
        )
        prefix, data_dir = settings.bus.prefix, settings.data_dir
        yield Stack(
            collector=collector,
            detector=SERVICES["detector"](settings, bus, None),
            api=ApiService(bus, settings.api, prefix=prefix, data_dir=data_dir),
            bus=bus,
        )
