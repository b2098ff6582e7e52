"""The collector as a service: what it is made of, how it begins and how it ends.

Live and simulated sources are read once per tick of a steady clock (:mod:`collector.live`). A
recording carries its own time: it is read as fast as the bus takes it, and the service ends with
it (:mod:`collector.recorded`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import structlog
from prometheus_client import CollectorRegistry

from bus.protocol import Bus
from collector.admission import Admission, Beside
from collector.batching import Batching
from collector.clock import Clock, SystemClock
from collector.exposed import GpuExposition, NodeNumbers
from collector.footprint import give_memory_back
from collector.health import sentence_of
from collector.hearing import Hearing
from collector.host import HostFiles
from collector.live import LiveLoop, reader_of
from collector.metrics import CollectorMetrics
from collector.orders import Orders, Pulse
from collector.patient import PatientPublisher
from collector.publishing import SamplePublisher
from collector.reading import Reader
from collector.recorded import publish_recording
from collector.settings import CollectorSettings, SourceKind
from collector.source import EventSource, JobSource, Source
from collector.spool import Spool
from schemas.sample import CollectorState
from schemas.topics import DEAD_LETTERS, SAMPLES

__all__ = ["CollectorService"]

log = structlog.get_logger()

_CLOSE_SECONDS = 5.0  # for the last messages, within the ten seconds a service has to end


class CollectorService:
    """Reads one source and publishes NodeSamples.

    Parameters
    ----------
    source
        What is read; closed when the service ends. A source may carry attributes ``boot_id``
        (of the readings last returned) and ``interval_seconds`` of its own, as recordings do.
    bus
        Where messages go.
    settings
        How often, how batched, how much may wait.
    prefix
        Of topic names.
    clock
        Time. A demonstration passes one that runs fast.
    reader
        How the source is asked; by default NVML waits for its own child process, others are
        asked directly.
    host
        Where the kernel keeps the boot id.
    events
        Tells of events beside the source: the kernel log. Closed when the service ends.
    jobs
        Knows which jobs use the GPUs; asked where the source itself does not. Closed when the
        service ends.
    node_numbers
        Tells of the machine around the GPUs when metrics are scraped.
    host_numbers
        Tells the same for what is published: name to number.
    """

    name = "collector"

    def __init__(
        self,
        source: Source,
        bus: Bus,
        settings: CollectorSettings,
        *,
        prefix: str = "",
        clock: Clock | None = None,
        reader: Reader | None = None,
        host: HostFiles | None = None,
        events: EventSource | None = None,
        jobs: JobSource | None = None,
        node_numbers: Callable[[], NodeNumbers] | None = None,
        host_numbers: Callable[[], Mapping[str, float]] | None = None,
    ) -> None:
        self.registry = CollectorRegistry()
        self._source = source
        self._bus = bus
        self._settings = settings
        self._clock: Clock = clock or SystemClock()
        self._reader = reader
        self._jobs = jobs
        self._live = source.kind != SourceKind.REPLAY
        self._metrics = CollectorMetrics(self.registry)
        self._orders = Orders()
        self._pulse = Pulse(self._clock, settings.interval_seconds)
        exposed = GpuExposition(lambda: self._pulse.alive, node_numbers)
        self.registry.register(exposed)
        self._hearing = Hearing(source, events, self._metrics)
        self._beside = Beside(
            settings.node, jobs=jobs, host=host_numbers, hearing=self._hearing, exposed=exposed
        )
        self._dead_letters = DEAD_LETTERS.full_name(prefix)
        self._admission = Admission(
            settings,
            self._rules(),
            boot_id=self._make_boot_id(host or HostFiles()),
            topic=SAMPLES.full_name(prefix),
            metrics=self._metrics,
            beside=self._beside if self._live else None,
        )
        self._publisher: SamplePublisher | None = None

    def run(self, stop: threading.Event) -> None:
        """Work until told to stop, or until a recording ends.

        Raises
        ------
        DataDirError
            If the spool cannot be opened.
        BusUnavailableError
            If the end of a recording cannot be delivered.
        """
        log.info("collector_started", source=self._source.kind, node=self._settings.node)
        if self._live:
            self._run_live(stop)
        else:
            self._run_recording(stop)
        log.info("collector_stopped")

    def health(self) -> Mapping[str, object]:
        """Return whether readings arrive and messages leave. Safe from any thread."""
        alive, publisher, admission = self._pulse.alive, self._publisher, self._admission
        waiting = publisher.waiting if publisher is not None else 0
        return {
            "ok": alive and admission.state == CollectorState.OK,
            "detail": sentence_of(admission.state, alive=alive, waiting=waiting),
            "alive": alive,
            "state": str(admission.state),
            "nodes": len(admission.nodes),
            "gpus": sum(list(admission.gpus.values())),
            "spool_messages": waiting,
            **self._hearing.health(),
            **({} if self._jobs is None else self._jobs.health()),
        }

    def release(self) -> None:
        """Let go of the GPUs for a reset, or take them back. Safe from any thread."""
        self._orders.release()

    def change(self, settings: CollectorSettings) -> None:
        """Go on with other intervals and metric groups, losing no tick. Safe from any thread.

        Parameters
        ----------
        settings
            What else differs (source, node, addresses, spool) takes effect with the next start.
        """
        self._orders.change(settings)

    def _run_live(self, stop: threading.Event) -> None:
        publisher = self._publisher = self._open_publisher()
        loop = LiveLoop(
            self._source,
            self._reader or reader_of(self._source, self._clock),
            self._settings,
            clock=self._clock,
            admission=self._admission,
            hearing=self._hearing,
            beside=self._beside,
            publisher=publisher,
            metrics=self._metrics,
            orders=self._orders,
            pulse=self._pulse,
        )
        give_memory_back()
        try:
            loop.run(stop)
        finally:
            now_ms = self._clock.unix_ms()
            for message in self._admission.last_words(now_ms):
                publisher.send(message, now_ms)
            publisher.close(_CLOSE_SECONDS, self._clock.unix_ms())
            self._hearing.close()
            if self._jobs is not None:
                self._jobs.close()
            loop.let_go()

    def _open_publisher(self) -> SamplePublisher:
        settings = self._settings.spool
        spool = Spool(settings.path, max_bytes=settings.max_bytes, max_hours=settings.max_hours)
        return SamplePublisher(
            self._bus.publisher(client_id=f"collector-{self._settings.node}"),
            spool,
            dead_letters=self._dead_letters,
            node=self._settings.node,
            settings=settings,
            metrics=self._metrics,
        )

    def _run_recording(self, stop: threading.Event) -> None:
        client = self._bus.publisher(client_id=f"replay-{self._settings.node}")
        publisher = PatientPublisher(client, self._clock, self._metrics)
        publish_recording(self._source, publisher, self._admission, self._clock, self._pulse, stop)

    def _rules(self) -> Batching:
        settings, source = self._settings, self._source
        own: float | None = getattr(source, "interval_seconds", None)
        return Batching(
            interval_seconds=settings.interval_seconds if self._live else own,
            flush_seconds=settings.flush_seconds,
            keyframe_seconds=settings.keyframe_seconds,
            source=source.kind,
            labels=settings.labels,
            expected_gpus=settings.expected_gpus,
        )

    def _make_boot_id(self, host: HostFiles) -> str:
        """Name this run: the kernel's boot id and the start of the collector.

        ``seq`` begins at 0 with every start of the collector, so the kernel's id alone would
        make the first messages after a restart look like repetitions.
        """
        return f"{host.read_boot_id()}-{self._clock.unix_ms():x}"
