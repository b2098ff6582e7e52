"""kill -9 at random moments while notices are sent: none is lost, a repetition has the same id."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from api.database import Database
from api.ledger import Ledger, Route
from api.tables import delivery
from schemas.alert import AlertEvent, Severity

ROOT = Path(__file__).resolve().parents[3]

#: Loads everything once and forks a sender for each line that it reads: a kill costs no start.
_SENDERS = """
    import os, signal, sys, threading
    from pathlib import Path
    from prometheus_client import CollectorRegistry
    from api.database import Database
    from api.metrics import ApiMetrics
    from api.notify.channel import target_of
    from api.notify.outbox import Outbox
    from api.notify.sender import HttpSender
    from api.notify.worker import DeliveryWorker
    from api.settings import DeliverySettings, EndpointSettings

    folder, url, secret, store = sys.argv[1:]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for _ in sys.stdin:
        pid = os.fork()
        if pid:
            print(pid, flush=True)
            continue
        settings = DeliverySettings(lease_seconds=0.3, schedule_seconds=(0, 0.1, 0.1, 0.1, 60))
        sender = HttpSender(connect_seconds=5, total_seconds=5)
        endpoint = EndpointSettings(name="noc", url=url, secret=secret, allow_private=True)
        DeliveryWorker(
            outbox=Outbox(Database.open(store or None, Path(folder)), owner=str(os.getpid()),
                          lease_seconds=0.3),
            targets={"noc": target_of(endpoint, sender, settings)},
            settings=settings,
            metrics=ApiMetrics(CollectorRegistry()),
        ).run(threading.Event())
"""


@pytest.mark.parametrize("kills", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_killing_senders_at_random_loses_nothing_and_repeats_under_the_same_id(
    kills: int,
    tmp_path: Path,
    store_url: str | None,
    receiver: Any,
    make_event: Callable[..., AlertEvent],
    wait_until: Callable[..., Any],
    secret: str,
) -> None:
    database = Database.open(store_url, tmp_path)
    ledger = Ledger([Route(endpoint="noc", severity_min=Severity.WARNING)])
    chance = random.Random(kills)
    words = (str(tmp_path), receiver.url, secret, store_url or "")
    program = [sys.executable, "-c", textwrap.dedent(_SENDERS), *words]
    senders = subprocess.Popen(
        program, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert senders.stdin is not None
    assert senders.stdout is not None

    def start() -> int:
        senders.stdin.write("go\n")
        senders.stdin.flush()
        return int(senders.stdout.readline())

    def states() -> Counter[str]:
        with database.read() as connection:
            return Counter(connection.execute(sa.select(delivery.c.state)).scalars())

    alive = None
    try:
        for number in range(kills):
            with database.write() as connection:
                for one in range(5):
                    ledger.record(connection, make_event(gpu=f"GPU-{number}-{one}"), 0)
            alive = start()
            time.sleep(chance.uniform(0.0, 0.2))  # the moment of the kill is the point
            os.kill(alive, signal.SIGKILL)
        alive = start()
        wait_until(lambda: states() == {"done": kills * 5}, 60)
    finally:
        if alive is not None:
            os.kill(alive, signal.SIGKILL)
        senders.stdin.close()
        senders.wait()
        senders.stdout.close()
    with database.read() as connection:
        known = set(connection.execute(sa.select(delivery.c.webhook_id)).scalars())
    database.close()
    assert set(receiver.ids) == known, "every notice arrived, and under no other id"
