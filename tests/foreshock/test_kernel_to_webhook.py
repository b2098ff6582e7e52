"""From a line in the kernel log to a signed webhook, through all three services."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from collector.settings import CollectorSettings
from collector.source import Reading
from foreshock.compose import SERVICES, run_composed
from foreshock.config import Settings
from foreshock.demo.receiver import Delivery, WebhookReceiver
from foreshock.demo.stack import demo_settings
from foreshock.run import Outcome
from schemas.sample import GpuInventory, Inventory

#: Onset to webhook, of hard facts at one reading a second.
BOUND_SECONDS = 2.0
GPUS = tuple(
    GpuInventory(gpu=f"GPU-a{n}", index=n, pci=f"00000000:{0x20 + n:02X}:00.0", model="NVIDIA H100")
    for n in range(8)
)


class EightGpus:
    """Healthy GPUs without a driver of this machine."""

    kind = "simulated"
    exhausted = False

    def __init__(self) -> None:
        self.ready = threading.Event()

    def read(self, ts_ms: int) -> list[Reading]:
        self.ready.set()
        return [
            Reading(
                node="n1",
                ts=ts_ms,
                gpus=tuple(one.gpu for one in GPUS),
                values={"power_watts": [400.0] * 8, "temperature_celsius": [50.0] * 8},
                inventory=Inventory(gpus=GPUS, expected_gpus=8),
            )
        ]

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with WebhookReceiver() as made:
        yield made


def settings_for(tmp_path: Path, receiver: WebhookReceiver) -> Settings:
    log = tmp_path / "kern.log"
    log.touch()
    settings = demo_settings(data_dir=tmp_path / "data", port=0, receiver=receiver)
    collector = CollectorSettings.model_validate(
        {
            "source": "simulated",
            "node": "n1",
            "port": 0,
            "flush_seconds": 10.0,
            "kernel": {"use": "on", "path": log},
        }
    )
    detector = settings.detector.model_copy(update={"port": 0})
    return settings.model_copy(update={"collector": collector, "detector": detector})


def test_a_kernel_line_is_a_signed_webhook_within_two_seconds(
    tmp_path: Path, receiver: WebhookReceiver
) -> None:
    settings, source, stop = settings_for(tmp_path, receiver), EightGpus(), threading.Event()
    outcome: list[Outcome] = []
    thread = threading.Thread(
        target=lambda: outcome.append(
            run_composed(settings, tuple(SERVICES), source=source, stop=stop)
        )
    )
    thread.start()
    took: list[float] = []
    try:
        assert source.ready.wait(60)
        for gpu in GPUS:
            begin = time.time()
            written = datetime.fromtimestamp(begin, UTC).isoformat()
            with (tmp_path / "kern.log").open("a") as file:
                xid = f"NVRM: Xid (PCI:{gpu.pci}): 79, GPU has fallen off the bus."
                file.write(f"{written} n1 kernel: [  100.000000] {xid}\n")
            delivery = wait_for(receiver, begin)
            assert delivery.verified
            assert delivery.severity == "critical"
            assert "Xid 79" in delivery.summary
            took.append(delivery.received - begin)
    finally:
        stop.set()
        thread.join(60)
    assert outcome[0].problems == ()
    # The first one finds every service still warming up.
    assert max(took[1:]) < BOUND_SECONDS, took


def wait_for(receiver: WebhookReceiver, begin: float) -> Delivery:
    deadline = time.monotonic() + 30.0
    while time.monotonic() < deadline:
        for found in receiver.take():
            if found.received >= begin:
                return found
        time.sleep(0.01)
    pytest.fail("no webhook came")
