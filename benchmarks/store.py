"""``python -m benchmarks.store``: how fast the alert store lists, acknowledges and takes events.

A store is filled with resolved and open alerts of real size, through SQL; what is measured then
goes the way of a request or of the ingest loop. ``--write`` puts the table into docs/benchmarks.md,
in a section of its own for each kind of store.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry

from api.app import create_app
from api.database import Database
from api.feed import Feed
from api.health import Readiness
from api.ledger import Ledger, Route
from api.metrics import ApiMetrics
from api.settings import ApiSettings
from api.tables import alert
from schemas.alert import (
    AlertEvent,
    DetectorRef,
    Evidence,
    Severity,
    Subject,
    alert_id_of,
    fingerprint_of,
    rfc3339,
)

__all__ = ["Timed", "events", "fill", "main", "measure"]

START_MS = 1_758_684_003_007
_BATCH = 500
#: Alerts that are written through the ledger; the others are their copies.
_BASE = 1000
_AT_ONCE = 50
#: What the start of those that stay open leaves, divided by ten times the share.
_LEFT_OPEN = START_MS % 1000
#: What is said of PostgreSQL's numbers.
_SERVER = (
    "CPU time is that of the api and its client; the server's own is not in it. A server that was\n"
    "started for this (`--postgresql`) writes without waiting for its disk."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One measurement: median and 95th percentile in ms, or a rate a second (of CPU time)."""

    what: str
    p50_ms: float | None = None
    p95_ms: float | None = None
    cpu_p95_ms: float | None = None
    rate: float | None = None
    cpu_rate: float | None = None


def events(number: int, first: int = 0) -> Iterator[AlertEvent]:
    """Give alert events of the size that the detector writes, each of another GPU."""
    for n in range(first, first + number):
        subject = Subject(
            scope="gpu",
            node=f"node-{n % 1250:04d}",
            gpu_uuid=f"GPU-{n:012d}",
            gpu_index=n % 8,
            model="NVIDIA H100 80GB HBM3",
            job=f"job-{n % 500}",
        )
        fingerprint = fingerprint_of("thermal_fault", "peer_outlier", subject)
        started = START_MS + n * 10
        yield AlertEvent(
            alert_id=alert_id_of(fingerprint, started),
            fingerprint=fingerprint,
            seq=1,
            state="firing",
            family="thermal_fault",
            kind="peer_outlier",
            severity=("info", "warning", "critical")[n % 3],
            subject=subject,
            started_at=rfc3339(started),
            observed_at=rfc3339(started + 60_000),
            score=0.8,
            summary=f"node-{n % 1250:04d} GPU {n % 8} runs at 75 °C, 32 °C above the median.",
            evidence=tuple(
                Evidence(metric=name, value=75.0, unit="°C", expected_high=60.0, peers=43.0)
                for name in ("temperature_celsius", "memory_temperature_celsius", "power_watts")
            ),
            likely_cause="The cooler of this GPU, its fan, its paste, or the air in this slot.",
            action="check_cooling",
            next_steps=("Compare the fans.", "Look for dust.", "Reseat the cooler."),
            detector=DetectorRef(name="peer_outlier", version="1"),
            labels={"cluster": "a", "rack": f"r{n % 40}"},
        )


def fill(database: Database, number: int, open_share: int = 100) -> None:
    """Put a thousand alerts into the store through the ledger, and copies of their rows.

    Parameters
    ----------
    number
        How many alerts, in thousands of them.
    open_share
        Every how manieth stays open; the others are resolved.
    """
    with database.write() as connection:
        Ledger().record_all(connection, list(events(_BASE)), START_MS)
        resolved = sa.update(alert).where(alert.c.started_ms % (10 * open_share) != _LEFT_OPEN)
        ended = {"state": "resolved", "ended_ms": alert.c.started_ms + 120_000}
        connection.execute(resolved.values(ended))
    for first in range(1, number // _BASE, _AT_ONCE):
        with database.write() as connection:
            for copy in range(first, min(first + _AT_ONCE, number // _BASE)):
                connection.execute(_copies(copy))
    with database.write() as connection:
        connection.exec_driver_sql("ANALYZE")


def _copies(number: int) -> sa.Insert:
    """Return a statement that copies the first alerts as others, later ones of other GPUs."""
    prefix = sa.literal(f"{0xF0000000 + number:08x}")
    changed: dict[str, sa.ColumnElement[Any]] = {  # of any type
        "alert_id": prefix + sa.func.substr(alert.c.alert_id, 9),
        "fingerprint": prefix + sa.func.substr(alert.c.fingerprint, 9),
        "gpu_uuid": sa.literal("GPU-") + prefix + sa.func.substr(alert.c.gpu_uuid, 13),
        "started_ms": alert.c.started_ms + number * 10 * _BASE,
    }
    columns = [changed.get(column.name, column) for column in alert.columns]
    first = alert.c.started_ms < START_MS + 10 * _BASE
    chosen = sa.select(*columns).where(first)
    return sa.insert(alert).from_select([column.name for column in alert.columns], chosen)


def client_of(database: Database) -> TestClient:
    """Make a client of the whole application in process: routes, guard, store, encoding."""
    app = create_app(
        ApiSettings(requests_per_second=1e6),
        database,
        metrics=ApiMetrics(CollectorRegistry()),
        feed=Feed(),
        readiness=Readiness(database, {}),
    )
    return TestClient(app, base_url="http://localhost")


def measure(database: Database, rounds: int) -> list[Timed]:
    """Measure lists, acknowledgements and ingest."""
    client = client_of(database)
    found = [
        _timed(f"list of 100, {what}", lambda p=params: _get(client, p), rounds)  # type: ignore[misc]  # bound now
        for what, params in _LISTS.items()
    ]
    found.append(_timed("list of 100, tenth page", _paging(client), rounds))
    query = sa.select(alert.c.alert_id).where(alert.c.state == "firing").limit(rounds)
    with database.read() as connection:
        ids = iter(list(connection.execute(query).scalars()))
    found.append(_timed("acknowledge", lambda: _ack(client, next(ids)), rounds))
    found += [_ingest(database, 5_000, routes) for routes in (0, 2)]
    return found


_LISTS: dict[str, dict[str, str]] = {
    "newest first": {},
    "open ones": {"state": "open"},
    "one node, warning and above": {"node": "node-0117", "severity_min": "warning"},
    "one GPU": {"gpu": "GPU-000000001234"},
}


def _get(client: TestClient, params: dict[str, str]) -> None:
    answer = client.get("/v1/alerts", params=params)
    assert answer.status_code == 200, answer.text


def _paging(client: TestClient) -> Callable[[], None]:
    cursor: str | None = None
    for _ in range(9):
        params = {} if cursor is None else {"cursor": cursor}
        cursor = client.get("/v1/alerts", params=params).json()["next_cursor"]
    return lambda: _get(client, {"cursor": cursor or ""})


def _ack(client: TestClient, alert_id: str) -> None:
    answer = client.post(f"/v1/alerts/{alert_id}/ack")
    assert answer.status_code == 200, answer.text


def _timed(what: str, work: Callable[[], None], rounds: int) -> Timed:
    work_ms, cpu_ms = [], []
    for _ in range(rounds):
        began, worked = time.perf_counter(), time.process_time()
        work()
        work_ms.append((time.perf_counter() - began) * 1000)
        cpu_ms.append((time.process_time() - worked) * 1000)
    return Timed(
        what=what, p50_ms=statistics.median(work_ms), p95_ms=_p95(work_ms), cpu_p95_ms=_p95(cpu_ms)
    )


def _p95(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, round(0.95 * len(values)))]


def _ingest(database: Database, number: int, routes: int) -> Timed:
    """Take events as the ingest loop does: batches of 500, one transaction each."""
    ledger = Ledger([Route(endpoint=f"e{n}", severity_min=Severity.INFO) for n in range(routes)])
    first = 10_000_000 * (routes + 1)
    fresh = [replace(one, seq=1) for one in events(number, first)]
    began, worked = time.perf_counter(), time.process_time()
    for begin in range(0, number, _BATCH):
        with database.write() as connection:
            ledger.record_all(connection, fresh[begin : begin + _BATCH], START_MS)
    rate = number / (time.perf_counter() - began)
    cpu_rate = number / (time.process_time() - worked)
    return Timed(what=f"new alerts stored, {routes} endpoints each", rate=rate, cpu_rate=cpu_rate)


def report(kind: str, number: int, rows: list[Timed]) -> str:
    """Lay out the results as Markdown."""
    lines = [
        f"{kind}, {number:,} alerts stored, one client; load of the machine "
        f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.",
        "",
        "| what | median ms | p95 ms | p95 ms of CPU, client included | per second "
        "| per second of CPU |",
        "|---|---:|---:|---:|---:|---:|",
    ]

    def cell(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    lines += [
        f"| {row.what} | {cell(row.p50_ms, '.1f')} | {cell(row.p95_ms, '.1f')} "
        f"| {cell(row.cpu_p95_ms, '.1f')} "
        f"| {cell(row.rate, ',.0f')} | {cell(row.cpu_rate, ',.0f')} |"
        for row in rows
    ]
    return "\n".join([*lines, ""])


def main(arguments: list[str] | None = None) -> None:
    """Fill, measure, print."""
    from benchmarks.__main__ import PAGE, machine  # noqa: PLC0415 - it knows this module too

    parser = argparse.ArgumentParser(prog="python -m benchmarks.store", description=__doc__)
    parser.add_argument("--alerts", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--database", help="URL of an empty PostgreSQL database; else SQLite")
    parser.add_argument(
        "--postgresql", action="store_true", help="start the PostgreSQL of this machine for it"
    )
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args(arguments)
    with ExitStack() as held:
        url = held.enter_context(_server()) if args.postgresql else args.database
        folder = held.enter_context(tempfile.TemporaryDirectory())
        database = Database.open(url, Path(folder))
        held.callback(database.close)
        fill(database, args.alerts)
        rows = measure(database, args.rounds)
    kind = "SQLite" if url is None else "PostgreSQL"
    text = report(kind, args.alerts, rows)
    if url is not None:
        text += f"\n{_SERVER}\n"
    sys.stdout.write(text)
    if args.write:
        option = " --postgresql" if args.postgresql else ""
        head = f"Machine: {machine()}\n\nMade by `python -m benchmarks.store{option} --write`.\n\n"
        write_section(PAGE, f"## The alert store on {kind}", head + text)


@contextmanager
def _server() -> Iterator[str]:
    """Start the PostgreSQL of this machine, as the tests do; give the URL of a fresh database."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from postgres_server import open_postgres  # noqa: PLC0415 - only here, and from the tests

    with open_postgres() as server:
        url = server.create()
        yield url
        server.drop(url)


def write_section(page: Path, title: str, text: str) -> None:
    """Put a section into a page, in the place of the one with the same title."""
    old = page.read_text() if page.exists() else ""
    before, found, after = old.partition(f"{title}\n")
    _, heading, rest = after.partition("\n## ")
    later = f"\n## {rest}" if found and heading else ""
    page.write_text(f"{before.rstrip()}\n\n{title}\n\n{text.rstrip()}\n{later}")


if __name__ == "__main__":
    main()
