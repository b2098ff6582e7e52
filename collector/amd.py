"""AMD GPUs by ``amdsmi`` of ROCm, where that library is present.

Other words for the same metrics: gfx activity is the GPU's utilisation, umc activity that of the
memory bus, the hotspot its temperature. What AMD does not offer (clock event reasons, Xids,
remapped rows) stays absent. Units follow the documentation of amdsmi (ROCm 6): percent, °C, W
(caps in µW), MHz, MB (of 2**20), and an energy counter with its own resolution in µJ.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from collector.amdwords import CLOCKS, DICTS, TEMPERATURES, first, number, status_of, text
from collector.replay.identity import Devices
from collector.source import Reading
from schemas.sample import CollectorState, GpuInventory, Inventory, ValueStatus

__all__ = ["AmdSource", "load_amdsmi"]

log = structlog.get_logger()

AmdModule = Any  # a module without types, or a stand-in with the same names
_RETRY_MS = 10_000
_REFRESH_MS = 60_000


def load_amdsmi() -> AmdModule | None:
    """Import the library of ROCm; None where it is not installed."""
    try:
        return importlib.import_module("amdsmi")
    except (ImportError, OSError, KeyError) as exc:  # it loads a C library when imported
        log.warning("amdsmi_missing", reason=str(exc)[:200])
        return None


@dataclass(slots=True)
class _Card:
    """One GPU and what it is."""

    handle: object
    facts: GpuInventory


@dataclass(slots=True)
class _Answers:
    """Values of one card and why others are missing."""

    values: dict[str, float | None] = field(default_factory=dict)
    status: dict[str, str] = field(default_factory=dict)


class AmdSource:
    """Source of AMD GPUs.

    Parameters
    ----------
    module
        ``amdsmi``, or None where it is not installed.
    node
        Name of this node.
    expected_gpus
        How many GPUs there should be; None: as many as were ever seen.
    """

    kind = "amdsmi"

    def __init__(
        self, module: AmdModule | None, *, node: str, expected_gpus: int | None = None
    ) -> None:
        self._smi: Any = module
        self._node = node
        self._expected = expected_gpus
        self._devices = Devices()
        self._cards: list[_Card] = []
        self._attached = False
        self._try_at = 0
        self._refresh_at = 0
        self._driver: str | None = None
        self._state: str = CollectorState.OK

    @property
    def exhausted(self) -> bool:
        """Never."""
        return False

    def close(self) -> None:
        """Let go of the library."""
        if self._attached:
            self._attached = False
            try:
                self._smi.amdsmi_shut_down()
            except Exception as exc:  # noqa: BLE001 - its exceptions share no base over versions
                log.info("amdsmi_shutdown_failed", reason=str(exc))

    def read(self, ts_ms: int) -> list[Reading]:
        """Read every card, or say why none can be read."""
        if self._smi is None:
            return [self._blind(ts_ms, CollectorState.NO_LIBRARY)]
        if not self._attached and not self._attach(ts_ms):
            return [self._blind(ts_ms, CollectorState.NO_DRIVER)]
        if not self._refresh_at - _REFRESH_MS <= ts_ms < self._refresh_at and not self._list(ts_ms):
            self.close()
            return [self._blind(ts_ms, CollectorState.BLIND)]
        answers = [self._card(card) for card in self._cards]
        if answers and all(not _any_value(answer) for answer in answers):
            self.close()
            return [self._blind(ts_ms, CollectorState.BLIND)]
        self._note(CollectorState.OK)
        return [self._reading(answers, ts_ms)]

    # -- attaching ---------------------------------------------------------------------------

    def _attach(self, ts_ms: int) -> bool:
        if ts_ms < self._try_at <= ts_ms + _RETRY_MS:
            return False
        self._try_at = ts_ms + _RETRY_MS
        try:
            self._smi.amdsmi_init()
        except Exception as exc:  # noqa: BLE001 - see close
            log.info("amdsmi_init_failed", reason=str(exc))
            return False
        self._attached, self._refresh_at = True, 0
        return True

    def _list(self, ts_ms: int) -> bool:
        try:
            handles = list(self._smi.amdsmi_get_processor_handles())
        except Exception as exc:  # noqa: BLE001 - see close
            log.warning("amdsmi_lists_no_gpu", reason=str(exc))
            return False
        self._refresh_at = ts_ms + _REFRESH_MS
        self._cards = [_Card(handle, self._facts(handle, n)) for n, handle in enumerate(handles)]
        self._expected = max(self._expected or 0, len(self._cards)) or None
        return True

    def _facts(self, handle: object, index: int) -> GpuInventory:
        asic = self._ask("amdsmi_get_gpu_asic_info", handle)
        driver = self._ask("amdsmi_get_gpu_driver_info", handle)
        self._driver = text(driver, "driver_version") or self._driver
        uuid, pci = self._word("uuid", handle), self._word("bdf", handle)
        model = text(asic, "market_name")
        gpu = self._devices.identify(self._node, uuid=uuid, pci=pci, index=index, model=model)
        return GpuInventory(
            gpu=gpu if gpu.startswith("GPU-") else f"GPU-{gpu}",
            index=index,
            model=model,
            pci=pci,
            serial=text(asic, "asic_serial"),
        )

    def _word(self, what: str, handle: object) -> str | None:
        said, _ = self._call(f"amdsmi_get_gpu_device_{what}", handle)
        return said if isinstance(said, str) and said and said != "N/A" else None

    # -- readings ----------------------------------------------------------------------------

    def _card(self, card: _Card) -> _Answers:
        answers = _Answers()
        handle = card.handle
        for name, wanted in DICTS.items():
            said, status = self._call(name, handle)
            for metric, (keys, factor) in wanted.items():
                _keep(answers, metric, first(said, keys), factor, status)
        for metric, (kind, sensor) in TEMPERATURES.items():
            found, status = self._temperature(handle, kind, sensor)
            _keep(answers, metric, found, 1.0, status)
        for metrics, clock in CLOCKS:
            said, status = self._clock(handle, clock)
            for metric, keys in metrics.items():
                _keep(answers, metric, first(said, keys), 1e6, status)
        self._energy(handle, answers)
        return answers

    def _energy(self, handle: object, answers: _Answers) -> None:
        said, status = self._call("amdsmi_get_energy_count", handle)
        ticks = number(first(said, ("energy_accumulator", "power")))
        step = number(first(said, ("counter_resolution",)))
        joules = None if ticks is None or step is None else ticks * step * 1e-6
        _keep(answers, "energy_joules_total", joules, 1.0, status)

    def _temperature(self, handle: object, kind: str, metric: str) -> tuple[object, str | None]:
        kinds = getattr(self._smi, "AmdSmiTemperatureType", None)
        metrics = getattr(self._smi, "AmdSmiTemperatureMetric", None)
        sensor, which = getattr(kinds, kind, None), getattr(metrics, metric, None)
        if sensor is None or which is None:
            return None, ValueStatus.UNSUPPORTED
        return self._call("amdsmi_get_temp_metric", handle, sensor, which)

    def _clock(self, handle: object, kind: str) -> tuple[object, str | None]:
        which = getattr(getattr(self._smi, "AmdSmiClkType", None), kind, None)
        if which is None:
            return None, ValueStatus.UNSUPPORTED
        return self._call("amdsmi_get_clock_info", handle, which)

    def _call(self, name: str, *arguments: object) -> tuple[object, str | None]:
        """Call the library; return its answer, or None and why there is none."""
        function: Callable[..., object] | None = getattr(self._smi, name, None)
        if function is None:
            return None, ValueStatus.UNSUPPORTED
        try:
            return function(*arguments), None
        except Exception as exc:  # noqa: BLE001 - see close
            return None, status_of(exc)

    def _ask(self, name: str, handle: object) -> object:
        return self._call(name, handle)[0]

    def _reading(self, answers: list[_Answers], ts_ms: int) -> Reading:
        gpus = tuple(card.facts.gpu for card in self._cards)
        values: dict[str, list[float | None]] = {}
        status: dict[str, dict[int, str]] = {}
        for metric in dict.fromkeys(name for one in answers for name in one.values):
            column = [one.values.get(metric) for one in answers]
            codes = {
                place: one.status.get(metric, str(ValueStatus.UNSUPPORTED))
                for place, one in enumerate(answers)
                if column[place] is None
            }
            if len(codes) == len(column) and set(codes.values()) == {ValueStatus.UNSUPPORTED}:
                continue
            values[metric] = column
            if codes:
                status[metric] = codes
        return Reading(
            node=self._node,
            ts=ts_ms,
            gpus=gpus,
            values=values,
            status=status,
            inventory=self._inventory(),
            pids=self._pids(),
        )

    def _pids(self) -> Mapping[str, tuple[int, ...]] | None:
        found: dict[str, tuple[int, ...]] = {}
        for card in self._cards:
            said, _ = self._call("amdsmi_get_gpu_process_list", card.handle)
            if isinstance(said, list):
                pids = (number(first(one, ("pid",))) for one in said)
                found[card.facts.gpu] = tuple(sorted({int(p) for p in pids if p is not None}))
        return found or None

    def _inventory(self) -> Inventory:
        return Inventory(
            gpus=tuple(card.facts for card in self._cards),
            expected_gpus=self._expected,
            driver_version=self._driver,
        )

    def _blind(self, ts_ms: int, state: CollectorState) -> Reading:
        self._note(state)
        return Reading(node=self._node, ts=ts_ms, state=state, inventory=self._inventory())

    def _note(self, state: CollectorState) -> None:
        if state != self._state:
            log.warning("collector_state_changed", state=str(state))
        self._state = state


def _any_value(answers: _Answers) -> bool:
    """Tell whether a card gave any number."""
    return any(value is not None for value in answers.values.values())


def _keep(answers: _Answers, metric: str, value: object, factor: float, status: str | None) -> None:
    found = number(value)
    if found is None:
        answers.values[metric] = None
        answers.status[metric] = status or str(ValueStatus.UNSUPPORTED)
        return
    scaled = found * factor if factor >= 1.0 else found / round(1.0 / factor)
    answers.values[metric] = scaled
