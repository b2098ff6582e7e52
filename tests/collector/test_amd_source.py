"""AMD GPUs by a stand-in for amdsmi: the words differ, the metrics do not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from collector.amd import AmdSource
from collector.settings import CollectorSettings
from collector.source import Reading
from collector.sources import open_source
from collector.truth import refuse_impossible

NOW = 1_790_000_000_000
MIB = 2**20


class AmdError(Exception):
    """An error of the library."""

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.err_code = code


class FakeAmdSmi:
    """The names of amdsmi with answers of an MI300X; ``wrong`` replaces single ones."""

    AmdSmiTemperatureType = SimpleNamespace(EDGE=0, HOTSPOT=1, VRAM=2)
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT=0)
    AmdSmiClkType = SimpleNamespace(GFX=0, MEM=4)

    def __init__(self, cards: int = 2) -> None:
        self.cards = cards
        self.started = 0
        self.stopped = 0
        self.wrong: dict[tuple[str, int], Any] = {}
        self.init_fails = False

    def amdsmi_init(self) -> None:
        if self.init_fails:
            raise AmdError(34)
        self.started += 1

    def amdsmi_shut_down(self) -> None:
        self.stopped += 1

    def amdsmi_get_processor_handles(self) -> list[int]:
        return list(range(self.cards))

    def say(self, name: str, card: int, usual: object) -> Any:
        value = self.wrong.get((name, card), usual)
        if isinstance(value, Exception):
            raise value
        return value

    def amdsmi_get_gpu_device_uuid(self, card: int) -> Any:
        return self.say("uuid", card, f"1fff74a1-0000-1000-80a1-00000000000{card + 1}")

    def amdsmi_get_gpu_device_bdf(self, card: int) -> Any:
        return self.say("bdf", card, f"0000:0{card + 3}:00.0")

    def amdsmi_get_gpu_asic_info(self, card: int) -> Any:
        usual = {"market_name": "AMD Instinct MI300X", "asic_serial": f"0xA{card}"}
        return self.say("asic", card, usual)

    def amdsmi_get_gpu_driver_info(self, card: int) -> Any:
        return self.say("driver", card, {"driver_version": "6.8.5"})

    def amdsmi_get_gpu_activity(self, card: int) -> Any:
        usual = {"gfx_activity": 97, "umc_activity": 41, "mm_activity": "N/A"}
        return self.say("activity", card, usual)

    def amdsmi_get_gpu_vram_usage(self, card: int) -> Any:
        return self.say("vram", card, {"vram_total": 196592, "vram_used": 1024 * (card + 1)})

    def amdsmi_get_power_info(self, card: int) -> Any:
        usual = {"current_socket_power": 631, "average_socket_power": "N/A"}
        return self.say("power", card, usual)

    def amdsmi_get_power_cap_info(self, card: int) -> Any:
        usual = {"power_cap": 750_000_000, "default_power_cap": 750_000_000}
        return self.say("cap", card, usual)

    def amdsmi_get_temp_metric(self, card: int, sensor: int, _metric: int) -> Any:
        return self.say("temperature", card, {1: 68, 2: 55}[sensor])

    def amdsmi_get_clock_info(self, card: int, clock: int) -> Any:
        return self.say("clock", card, {"clk": 2100 if clock == 0 else 1300, "max_clk": 2100})

    def amdsmi_get_gpu_total_ecc_count(self, card: int) -> Any:
        return self.say("ecc", card, {"correctable_count": 3, "uncorrectable_count": 0})

    def amdsmi_get_energy_count(self, card: int) -> Any:
        usual = {"energy_accumulator": 1_000_000, "counter_resolution": 15.3}
        return self.say("energy", card, usual)

    def amdsmi_get_pcie_info(self, card: int) -> Any:
        usual = {"pcie_metric": {"pcie_width": 16, "pcie_replay_count": 0}}
        return self.say("pcie", card, usual)

    def amdsmi_get_gpu_process_list(self, card: int) -> Any:
        return self.say("processes", card, [{"pid": 40 + card, "name": "python"}])


@pytest.fixture
def smi() -> FakeAmdSmi:
    return FakeAmdSmi()


def only(source: AmdSource, ts: int = NOW) -> Reading:
    (reading,) = source.read(ts)
    return reading


def test_the_words_of_amd_become_the_metrics_of_the_catalogue(smi: FakeAmdSmi) -> None:
    reading = only(AmdSource(smi, node="n1"))
    values = {name: column[1] for name, column in reading.values.items()}
    assert values == {
        "gpu_utilization_ratio": 0.97,
        "memory_utilization_ratio": 0.41,
        "memory_used_bytes": 2048 * MIB,
        "memory_total_bytes": 196592 * MIB,
        "power_watts": 631.0,
        "power_limit_watts": 750.0,
        "power_default_limit_watts": 750.0,
        "temperature_celsius": 68.0,
        "memory_temperature_celsius": 55.0,
        "sm_clock_hertz": 2.1e9,
        "sm_clock_max_hertz": 2.1e9,
        "memory_clock_hertz": 1.3e9,
        "ecc_corrected_total": 3.0,
        "ecc_uncorrected_total": 0.0,
        "energy_joules_total": pytest.approx(15.3),
        "pcie_width_lanes": 16.0,
        "pcie_replay_total": 0.0,
    }
    first = reading.inventory.gpus[0]
    assert (first.model, first.pci, first.index) == ("AMD Instinct MI300X", "0000:03:00.0", 0)
    assert all(gpu.startswith("GPU-") for gpu in reading.gpus)
    assert reading.inventory.driver_version == "6.8.5"
    assert reading.pids == {reading.gpus[0]: (40,), reading.gpus[1]: (41,)}
    assert refuse_impossible(reading)[1] == {}


@pytest.mark.parametrize(
    ("error", "status"),
    [(2, "unsupported"), (3, "unsupported"), (10, "no_permission"), (44, "error:999")],
)
def test_one_failed_call_costs_its_own_metrics_of_its_own_card(
    smi: FakeAmdSmi, error: int, status: str
) -> None:
    smi.wrong["power", 0] = AmdError(error)
    reading = only(AmdSource(smi, node="n1"))
    assert reading.values["power_watts"] == [None, 631.0]
    assert reading.status["power_watts"] == {0: status}
    assert reading.values["temperature_celsius"] == [68.0, 68.0]


def test_blanks_and_absence_are_gaps_not_numbers(smi: FakeAmdSmi) -> None:
    smi.wrong["activity", 0] = {"gfx_activity": 0xFFFF, "umc_activity": "N/A"}
    smi.wrong["temperature", 1] = 0xFFFFFFFF
    reading = only(AmdSource(smi, node="n1"))
    assert reading.values["gpu_utilization_ratio"] == [None, 0.97]
    assert reading.values["temperature_celsius"] == [68.0, None]
    assert "decoder_utilization_ratio" not in reading.values


def test_a_function_that_this_version_lacks_is_unsupported(smi: FakeAmdSmi) -> None:
    smi.amdsmi_get_energy_count = None  # type: ignore[assignment]
    reading = only(AmdSource(smi, node="n1"))
    assert "energy_joules_total" not in reading.values


def test_no_library_no_driver_and_no_answer_are_different_states(smi: FakeAmdSmi) -> None:
    assert only(AmdSource(None, node="n1")).state == "no_library"
    smi.init_fails = True
    source = AmdSource(smi, node="n1")
    assert only(source).state == "no_driver"
    smi.init_fails = False
    assert only(source, NOW + 1000).state == "no_driver"  # not asked again at once
    assert only(source, NOW + 10_000).state == "ok"
    for card in (0, 1):
        for name in ("activity", "vram", "power", "cap", "temperature", "clock", "ecc", "energy",
                     "pcie"):  # fmt: skip
            smi.wrong[name, card] = AmdError(44)
    blind = only(source, NOW + 11_000)
    assert (blind.state, blind.gpus) == ("blind", ())
    assert blind.inventory.expected_gpus == 2
    smi.wrong.clear()
    assert only(source, NOW + 30_000).state == "ok"
    source.close()
    assert smi.stopped == smi.started == 2


def test_without_a_uuid_the_address_is_the_gpu(smi: FakeAmdSmi) -> None:
    smi.wrong["uuid", 0] = "N/A"
    first = only(AmdSource(smi, node="n1")).gpus
    assert len(set(first)) == 2
    assert only(AmdSource(smi, node="n1")).gpus == first


def test_the_settings_choose_it_and_a_machine_without_rocm_says_so() -> None:
    source = open_source(CollectorSettings.model_validate({"source": "amdsmi", "node": "n1"}))
    (reading,) = source.read(NOW)
    assert source.kind == "amdsmi"
    assert reading.state == "no_library"
    source.close()
