"""The detector as a service: the stream loop and the cohort loop, side by side."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry

from bus.protocol import Bus
from detector.consuming import Consuming, Wiring
from detector.metrics import DetectorMetrics
from detector.registry import detectors_of, trial_of
from detector.settings import DetectorSettings
from detector.snapshots import FileSnapshots, Snapshots
from detector.worker import SampleWorker, WindowWorker
from schemas.topics import SAMPLES, WINDOWS

__all__ = ["DetectorService"]

_log = structlog.get_logger()
_STUCK_SECONDS = 60.0


class DetectorService:
    """Reads samples and windows, publishes alerts.

    Parameters
    ----------
    bus
        Transport.
    settings
        Of the detector.
    prefix
        Of topic names.
    data_dir
        Snapshots are kept in ``<data_dir>/detector/snapshots``.
    snapshots
        Another store for them.

    Raises
    ------
    ConfigError
        If a detector or parameter in the settings is unknown.
    """

    name = "detector"

    def __init__(
        self,
        bus: Bus,
        settings: DetectorSettings,
        *,
        prefix: str = "",
        data_dir: Path,
        snapshots: Snapshots | None = None,
    ) -> None:
        self.registry = CollectorRegistry()
        self._metrics = DetectorMetrics(self.registry)
        stream, cohort = detectors_of(settings)
        trial = trial_of(settings)
        store = snapshots or FileSnapshots(
            data_dir / "detector" / "snapshots", settings.snapshots_kept
        )

        stream_wiring = Wiring(
            bus=bus,
            source=SAMPLES,
            prefix=prefix,
            group=settings.group,
            make=lambda partition: SampleWorker(
                stream, partition, trial, settings.series_minutes, settings.forget_hours
            ),
            snapshots=store,
            metrics=self._metrics,
            checkpoint_seconds=settings.checkpoint_seconds,
            poll_records=settings.poll_records,
        )
        samples = Consuming(stream_wiring)
        self._loops = {"stream": samples}
        if cohort:
            cohort_wiring = replace(
                stream_wiring,
                source=WINDOWS,
                group=settings.cohort_group,
                make=lambda _: WindowWorker(cohort, trial),
            )
            # A node is silent, rather than late, only if its samples were all read and its
            # windows made.
            self._loops["cohort"] = Consuming(cohort_wiring, quiet=lambda: samples.settled)
        self._failure: BaseException | None = None

    def run(self, stop: threading.Event) -> None:
        """Work until told to stop. Raises what either loop raised."""
        ending = threading.Event()
        threads = [
            threading.Thread(target=self._guard, args=(name, loop, ending), name=f"detector-{name}")
            for name, loop in self._loops.items()
        ]
        for thread in threads:
            thread.start()
        while not stop.wait(0.2) and not ending.is_set():
            pass
        ending.set()
        for thread in threads:
            thread.join()
        _log.info("detector_stopped")
        if self._failure is not None:
            raise self._failure

    def _guard(self, name: str, loop: Consuming, ending: threading.Event) -> None:
        try:
            loop.run(ending)
        except BaseException as exc:  # noqa: BLE001 - handed to the thread that runs the service
            _log.error("loop_ended", loop=name, reason=str(exc))
            self._failure = exc
        finally:
            ending.set()

    def health(self) -> Mapping[str, object]:
        """Say whether both loops turn and how far behind they are."""
        now = time.monotonic()
        turns = {name: loop.last_turn for name, loop in self._loops.items()}
        stuck = [
            name for name, turn in turns.items() if turn is None or now - turn > _STUCK_SECONDS
        ]
        lag = {name: loop.lag for name, loop in self._loops.items()}
        away = next((loop.outage for loop in self._loops.values() if loop.outage), None)
        detail = (
            f"The {' and '.join(stuck)} loop has not turned yet or is stuck."
            if stuck
            else away or f"Both loops turn; {sum(n or 0 for n in lag.values())} messages behind."
        )
        ok = not stuck and away is None and self._failure is None
        return {"ok": ok, "detail": detail, "lag": lag}
