"""kill -9 in the middle of everything: nothing is lost, nothing is stored or counted twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from api.database import Database
from api.tables import alert, delivery, event
from bus import BusSettings, open_bus
from schemas.alert import AlertEvent
from schemas.codec import encode
from schemas.topics import ALERTS

ROOT = Path(__file__).resolve().parents[2]
ALERT_COUNT = 120

_CHILD = """
    import sys, threading
    from pathlib import Path
    from api.service import ApiService
    from api.settings import (
        ApiSettings, DeliverySettings, EndpointSettings, LifecycleSettings
    )
    from bus import BusSettings, open_bus

    folder, url, secret = sys.argv[1:]
    bus = open_bus(BusSettings(transport="sqlite", path=Path(folder) / "bus.sqlite"))
    endpoint = EndpointSettings(name="noc", url=url, secret=secret, allow_private=True)
    settings = ApiSettings(
        port=0, batch_size=7, endpoints=(endpoint,), delivery=DeliverySettings(lease_seconds=1.0),
        lifecycle=LifecycleSettings(settle_seconds=0),
    )
    ApiService(bus, settings, data_dir=Path(folder)).run(threading.Event())
"""


def start(folder: Path, url: str, secret: str) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-c", textwrap.dedent(_CHILD), str(folder), url, secret]
    return subprocess.Popen(program, cwd=ROOT, stdout=subprocess.DEVNULL)


def kill(child: subprocess.Popen[bytes]) -> None:
    os.kill(child.pid, signal.SIGKILL)
    child.wait()


def test_killing_the_api_again_and_again_loses_and_doubles_nothing(
    tmp_path: Path,
    receiver: Any,
    make_event: Callable[..., AlertEvent],
    wait_until: Callable[..., Any],
    secret: str,
) -> None:
    bus = open_bus(BusSettings(transport="sqlite", path=tmp_path / "bus.sqlite"))
    publisher = bus.publisher(client_id="test", durable=True)
    for number in range(ALERT_COUNT):
        new = make_event(gpu=f"GPU-{number}")
        publisher.send(ALERTS.full_name(""), key=new.fingerprint.encode(), value=encode(new))
    assert publisher.flush(10.0) == 0
    publisher.close()
    for share in (1, 30, 60):
        child = start(tmp_path, receiver.url, secret)
        try:
            wait_until(lambda: len(set(receiver.ids)) >= share, 30)  # noqa: B023 - used at once
        finally:
            kill(child)
    child = start(tmp_path, receiver.url, secret)
    database = Database.open(None, tmp_path)
    done = sa.select(sa.func.count()).where(delivery.c.state == "done")

    def count(query: Any) -> Any:
        with database.read() as connection:
            return connection.execute(query).scalar()

    try:
        wait_until(lambda: count(done) == ALERT_COUNT, 60)
    finally:
        kill(child)
    assert count(sa.select(sa.func.count()).select_from(alert)) == ALERT_COUNT
    assert count(sa.select(sa.func.count()).select_from(event)) == ALERT_COUNT
    assert count(sa.select(sa.func.count()).select_from(delivery)) == ALERT_COUNT
    assert len(set(receiver.ids)) == ALERT_COUNT
    database.close()
    bus.close()
