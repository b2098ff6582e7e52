"""A running dcgm-exporter as source: a real HTTP server on loopback, well and unwell."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bus.memory import MemoryBus
from collector.agent import CollectorService
from collector.clock import ManualClock
from collector.dcgm.settings import DcgmSettings
from collector.dcgm.source import DcgmSource
from collector.settings import CollectorSettings
from collector.source import Reading
from collector.sources import open_source
from schemas.codec import decode_sample
from schemas.topics import SAMPLES

NOW = 1_790_000_000_000
MIB = 2**20


def labels(gpu: int, **more: str) -> str:
    said = {
        "gpu": str(gpu),
        "UUID": f"GPU-a{gpu}",
        "pci_bus_id": f"00000000:4{gpu}:00.0",
        "device": f"nvidia{gpu}",
        "modelName": "NVIDIA H100 80GB HBM3",
        "Hostname": "exporter-pod-x7",
        "DCGM_FI_DRIVER_VERSION": "535.129.03",
        **more,
    }
    return ",".join(f'{name}="{value}"' for name, value in said.items())


def scrape(gpus: int = 2, *, celsius: float = 40.0, xid: int = 0, **more: str) -> str:
    lines = ["# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).", "# TYPE go_threads gauge"]
    for gpu in range(gpus):
        at = labels(gpu, **more)
        lines += [
            f"DCGM_FI_DEV_GPU_TEMP{{{at}}} {celsius + gpu:g}",
            f"DCGM_FI_DEV_POWER_USAGE{{{at}}} 632.125000",
            f"DCGM_FI_DEV_SM_CLOCK{{{at}}} 1980",
            f"DCGM_FI_DEV_GPU_UTIL{{{at}}} 100",
            f"DCGM_FI_DEV_FB_USED{{{at}}} 19818",
            f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{at}}} 129931554972",
            f"DCGM_FI_DEV_MEMORY_TEMP{{{at}}} 9223372036854775794",
            f'DCGM_FI_DEV_XID_ERRORS{{{at},err_code="{xid}"}} {xid if gpu == 1 else 0}',
        ]
    return "\n".join([*lines, "go_threads 12", ""])


class Exporter:
    """A server whose behaviour the test sets."""

    def __init__(self) -> None:
        self.body = scrape().encode()
        self.status = 200
        self.length: int | None = None
        self.pause = 0.0
        self.asked: list[str | None] = []
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                exporter.asked.append(self.headers.get("Authorization"))
                self.send_response(exporter.status)
                if exporter.status == 302:
                    self.send_header("Location", "/elsewhere")
                if exporter.length is not None:
                    self.send_header("Content-Length", str(exporter.length))
                self.end_headers()
                try:
                    for begin in range(0, len(exporter.body), 200):
                        self.wfile.write(exporter.body[begin : begin + 200])
                        self.wfile.flush()
                        if exporter.pause:
                            time.sleep(exporter.pause)
                except OSError:
                    pass

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/metrics"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def source(self, **settings: object) -> DcgmSource:
        chosen = DcgmSettings.model_validate({"url": self.url, **settings})
        return DcgmSource(chosen, node="n1")


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    made = Exporter()
    yield made
    made.close()


def only(source: DcgmSource, ts: int = NOW) -> Reading:
    (reading,) = source.read(ts)
    return reading


def test_numbers_come_in_base_units_with_identity_and_gaps(exporter: Exporter) -> None:
    reading = only(exporter.source())
    assert (reading.node, reading.ts, reading.state) == ("n1", NOW, "ok")
    assert reading.gpus == ("GPU-a0", "GPU-a1")
    assert reading.values["temperature_celsius"] == [40.0, 41.0]
    assert reading.values["power_watts"] == [632.125] * 2
    assert reading.values["sm_clock_hertz"] == [1.98e9] * 2
    assert reading.values["gpu_utilization_ratio"] == [1.0] * 2
    assert reading.values["memory_used_bytes"] == [19818 * MIB] * 2
    assert reading.values["energy_joules_total"] == [pytest.approx(129931554.972)] * 2
    assert reading.values["memory_temperature_celsius"] == [None, None]
    assert reading.status["memory_temperature_celsius"] == {0: "unsupported", 1: "unsupported"}
    first = reading.inventory.gpus[0]
    assert (first.index, first.pci, first.model) == (0, "00000000:40:00.0", "NVIDIA H100 80GB HBM3")
    assert reading.inventory.driver_version == "535.129.03"
    assert reading.inventory.expected_gpus == 2


def unwell(exporter: Exporter, name: str) -> None:
    """Make the exporter behave as named."""
    ways: dict[str, Callable[[], None]] = {
        "error 500": lambda: setattr(exporter, "status", 500),
        "redirect": lambda: setattr(exporter, "status", 302),
        "half answer": lambda: setattr(exporter, "length", len(exporter.body) + 50),
        "cut line": lambda: setattr(exporter, "body", exporter.body[:-30]),
        "dripping": lambda: setattr(exporter, "pause", 0.2),
        "empty": lambda: setattr(exporter, "body", b""),
        "another program": lambda: setattr(exporter, "body", b"<html>\n<p>hello\n"),
        "no GPU": lambda: setattr(exporter, "body", b"go_threads 12\n"),
        "too long": lambda: setattr(exporter, "body", b"# x\n" * 40_000),
    }
    ways[name]()


@pytest.mark.parametrize(
    "name",
    [
        *("error 500", "redirect", "half answer", "cut line", "dripping", "empty"),
        *("another program", "no GPU", "too long"),
    ],
)
def test_an_answer_that_is_not_whole_is_blind_never_a_lost_gpu(
    exporter: Exporter, name: str
) -> None:
    source = exporter.source(timeout_seconds=0.5, max_bytes=2**16)
    assert only(source).state == "ok"
    well = (exporter.body, exporter.status, exporter.length, exporter.pause)
    unwell(exporter, name)
    begin = time.monotonic()
    reading = only(source, NOW + 1000)
    assert (reading.state, reading.gpus, reading.events) == ("blind", (), ())
    assert time.monotonic() - begin < 5.0
    assert reading.inventory.expected_gpus == 2
    exporter.body, exporter.status, exporter.length, exporter.pause = well
    assert only(source, NOW + 2000).gpus == ("GPU-a0", "GPU-a1")


def test_an_exporter_that_is_not_there_is_blind() -> None:
    source = DcgmSource(DcgmSettings.model_validate({"url": "http://127.0.0.1:9/m"}), node="n1")
    assert only(source).state == "blind"


def test_a_gpu_that_the_exporter_no_longer_names_is_missed(exporter: Exporter) -> None:
    source = exporter.source()
    only(source)
    exporter.body = scrape(1).encode()
    reading = only(source, NOW + 1000)
    assert reading.gpus == ("GPU-a0",)
    assert reading.inventory.expected_gpus == 2


def test_a_damaged_line_costs_itself_only(exporter: Exporter) -> None:
    text = scrape().replace('DCGM_FI_DEV_POWER_USAGE{gpu="1"', 'DCGM_FI_DEV_POWER_USAGE{gpu="1')
    exporter.body = text.encode()
    reading = only(exporter.source())
    assert reading.values["power_watts"] == [632.125, None]
    assert reading.values["temperature_celsius"] == [40.0, 41.0]


def test_renamed_metrics_of_a_site_are_known_and_foreign_ones_passed_over(
    exporter: Exporter,
) -> None:
    text = scrape().replace("DCGM_FI_DEV_GPU_TEMP", "site_dcgm_fi_dev_gpu_temp")
    text = text.replace("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_SOMETHING_NEW")
    exporter.body = text.encode()
    reading = only(exporter.source())
    assert reading.values["temperature_celsius"] == [40.0, 41.0]
    assert "power_watts" not in reading.values


def test_without_a_uuid_the_bus_address_and_then_the_index_is_the_gpu(exporter: Exporter) -> None:
    for dropped in (("UUID",), ("UUID", "pci_bus_id")):
        text = scrape()
        for name in dropped:
            for gpu in (0, 1):
                value = {"UUID": f"GPU-a{gpu}", "pci_bus_id": f"00000000:4{gpu}:00.0"}[name]
                text = text.replace(f'{name}="{value}",', "")
        exporter.body = text.encode()
        source = exporter.source()
        first, second = only(source).gpus, only(source, NOW + 1000).gpus
        assert first == second
        assert len(set(first)) == 2
        assert all(gpu.startswith("GPU-") for gpu in first)


def test_mig_instances_are_gpus_of_their_own_beside_their_parent(exporter: Exporter) -> None:
    lines = []
    for number, used in (("1", 100), ("2", 200)):
        at = labels(0, GPU_I_PROFILE="3g.40gb", GPU_I_ID=number)
        lines += [
            f"DCGM_FI_DEV_GPU_TEMP{{{at}}} 51",
            f"DCGM_FI_DEV_FB_USED{{{at}}} {used}",
            f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{at}}} 0.{number}",
        ]
    exporter.body = ("\n".join(lines) + "\n").encode()
    reading = only(exporter.source())
    parent, first, second = reading.gpus
    assert parent == "GPU-a0"
    assert reading.parents == {first: parent, second: parent}
    assert reading.values["temperature_celsius"] == [51.0, None, None]
    assert reading.values["memory_used_bytes"] == [None, 100 * MIB, 200 * MIB]
    assert reading.values["tensor_activity_ratio"] == [None, 0.1, 0.2]
    assert reading.inventory.gpus[1].mig_profile == "3g.40gb"
    assert reading.inventory.expected_gpus == 1


def test_pods_on_a_gpu_are_its_jobs(exporter: Exporter) -> None:
    exporter.body = scrape(1, namespace="ml", pod="trainer-0", container="main").encode()
    (job,) = only(exporter.source()).jobs or ()
    assert (job.job, job.project, job.container) == ("ml/trainer-0", "ml", "main")
    exporter.body = scrape(1).encode()
    assert only(exporter.source()).jobs is None


def test_an_xid_is_an_event_when_it_changes_and_only_then(exporter: Exporter) -> None:
    source = exporter.source()
    told = []
    for step, xid in enumerate((31, 31, 79, 79, 0, 48)):
        exporter.body = scrape(xid=xid).encode()
        told.append([(e.xid, e.gpu) for e in only(source, NOW + 1000 * step).events])
    assert told == [[], [], [(79, "GPU-a1")], [], [], [(48, "GPU-a1")]]


def test_a_token_is_sent(exporter: Exporter) -> None:
    only(exporter.source(token="swordfish"))
    only(exporter.source())
    assert exporter.asked == ["Bearer swordfish", None]


def test_the_agent_publishes_what_the_exporter_says(exporter: Exporter, tmp_path: Path) -> None:
    chosen = CollectorSettings.model_validate(
        {
            "source": "dcgm",
            "node": "n1",
            "dcgm": {"url": exporter.url},
            "spool": {"path": tmp_path / "spool.sqlite"},
        }
    )
    bus = MemoryBus()
    clock = ManualClock(stop_at=2.5)
    CollectorService(open_source(chosen), bus, chosen, clock=clock).run(threading.Event())
    reader = bus.subscriber(group="t", topics=[SAMPLES.full_name()])
    samples = [decode_sample(record.value) for record in reader.poll(100, 0.0)]
    reader.close()
    first = samples[0]
    assert (first.gpu, first.collector.source) == (("GPU-a0", "GPU-a1"), "dcgm")
    assert first.inventory is not None
    assert first.inventory.gpus[1].pci == "00000000:41:00.0"
