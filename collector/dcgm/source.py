"""A running dcgm-exporter as source: a fleet that has one needs no second reader of the driver.

What is not in its list of counters cannot be read here; ``unmeasured`` in an alert names it. The
exporter samples on its own beat (30 s by default): a shorter interval repeats values.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from collector.dcgm.exposition import Damaged, Series, read_series
from collector.dcgm.fetch import fetch
from collector.dcgm.scrape import Device, devices_of, jobs_of
from collector.dcgm.settings import DcgmSettings
from collector.replay.identity import Devices
from collector.source import Reading
from schemas.errors import SourceError
from schemas.sample import CollectorState, EventKind, GpuInventory, Inventory, SampleEvent

__all__ = ["DcgmSource"]

log = structlog.get_logger()


class DcgmSource:
    """Source of the GPUs that an exporter knows.

    Parameters
    ----------
    settings
        Where it is and how long it may take.
    node
        Name of this node. The exporter's own host name is not used: in a cluster it is a pod's.
    expected_gpus
        How many GPUs there should be; None: as many as were ever seen.
    get
        Returns the text of one scrape or raises SourceError; tests pass their own.
    """

    kind = "dcgm"

    def __init__(
        self,
        settings: DcgmSettings,
        *,
        node: str,
        expected_gpus: int | None = None,
        get: Callable[[], str] | None = None,
    ) -> None:
        self._settings = settings
        self._node = node
        self._expected = expected_gpus
        self._get = get or self._fetch
        self._devices = Devices()
        self._facts: tuple[GpuInventory, ...] = ()
        self._driver: str | None = None
        self._xids: dict[str, int] = {}
        self._reason: str | None = None
        self._damaged = 0

    @property
    def exhausted(self) -> bool:
        """Never."""
        return False

    def close(self) -> None:
        """Nothing is held between two scrapes."""

    def read(self, ts_ms: int) -> list[Reading]:
        """Scrape once. Never raises for the exporter's sake: it is a state."""
        try:
            text = self._get()
        except SourceError as exc:
            return [self._blind(ts_ms, str(exc))]
        devices = self._devices_in(text)
        if not devices:
            return [self._blind(ts_ms, "the answer holds no metric of a GPU")]
        self._say(None)
        return [self._reading(devices, ts_ms)]

    def _fetch(self) -> str:
        token = self._settings.token
        return fetch(
            str(self._settings.url),
            timeout_seconds=self._settings.timeout_seconds,
            max_bytes=self._settings.max_bytes,
            token=None if token is None else token.get_secret_value(),
        )

    def _devices_in(self, text: str) -> list[Device]:
        series: list[Series] = []
        damaged = 0
        for one in read_series(text.splitlines()):
            if isinstance(one, Damaged):
                damaged += 1
            else:
                series.append(one)
        if damaged and not self._damaged:
            log.warning("exporter_lines_damaged", lines=damaged)
        self._damaged = damaged
        found = devices_of(series, self._devices, self._node)
        # A GPU that is named by nothing but, say, its Xid says nothing of itself.
        return [device for device in found if device.values or device.xid is not None]

    def _reading(self, devices: list[Device], ts_ms: int) -> Reading:
        self._facts = tuple(device.facts for device in devices)
        self._driver = next((d.driver for d in devices if d.driver), None) or self._driver
        whole = sum(device.facts.parent is None for device in devices)
        if self._expected is None or whole > self._expected:
            self._expected = whole
        values: dict[str, list[float | None]] = {}
        status: dict[str, dict[int, str]] = {}
        for metric in dict.fromkeys(name for device in devices for name in device.values):
            values[metric] = [device.values.get(metric) for device in devices]
            codes = {
                place: device.status.get(metric, "unsupported")
                for place, device in enumerate(devices)
                if device.values.get(metric) is None
            }
            if codes:
                status[metric] = codes
        return Reading(
            node=self._node,
            ts=ts_ms,
            gpus=tuple(device.facts.gpu for device in devices),
            values=values,
            status=status,
            events=self._new_xids(devices, ts_ms),
            inventory=self._inventory(),
            jobs=jobs_of(devices),
            parents={d.facts.gpu: d.facts.parent for d in devices if d.facts.parent is not None},
        )

    def _inventory(self) -> Inventory:
        return Inventory(
            gpus=self._facts, expected_gpus=self._expected, driver_version=self._driver
        )

    def _new_xids(self, devices: list[Device], ts_ms: int) -> tuple[SampleEvent, ...]:
        """Tell of the last Xid of a GPU when it changes.

        The exporter keeps the code until it is restarted: what stands there at the first scrape
        may be weeks old, and the same code a second time cannot be seen.
        """
        events = []
        for device in devices:
            gpu = device.facts.gpu
            if device.xid is None:
                continue
            before = self._xids.get(gpu)
            self._xids[gpu] = device.xid
            if before is None or device.xid in {0, before}:
                continue
            events.append(
                SampleEvent(
                    ts=ts_ms,
                    kind=EventKind.XID,
                    gpu=gpu,
                    pci=device.facts.pci,
                    xid=device.xid,
                    message=f"dcgm-exporter shows Xid {device.xid} as the last one",
                )
            )
        return tuple(events)

    def _blind(self, ts_ms: int, reason: str) -> Reading:
        self._say(reason)
        return Reading(
            node=self._node, ts=ts_ms, state=CollectorState.BLIND, inventory=self._inventory()
        )

    def _say(self, reason: str | None) -> None:
        if (reason is None) != (self._reason is None):
            if reason is None:
                log.info("exporter_answers_again")
            else:
                log.warning(
                    "exporter_unreadable",
                    reason=reason,
                    detail="Check that dcgm-exporter runs and that collector.dcgm.url is right.",
                )
        self._reason = reason
