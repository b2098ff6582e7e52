"""The running api: reading from the bus, HTTP, event streams, start and stop."""

from __future__ import annotations

import base64
import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import orjson
import pytest
import sqlalchemy as sa

from api.service import ApiService
from api.settings import ApiSettings
from bus.memory import MemoryBus
from schemas.alert import Subject
from schemas.errors import BusUnavailableError, ConfigError
from schemas.topics import ALERTS, DEAD_LETTERS

START_MS = 1_758_684_003_007
KEY = "a-key-of-some-length"


def test_an_alert_on_the_bus_is_in_the_list(api: Any, make_event: Any, wait_until: Any) -> None:
    event = make_event()
    api.send(event)
    (shown,) = wait_until(api.alerts)
    assert shown["alert_id"] == event.alert_id
    assert shown["evidence"][1]["value"] is None
    one = api.client.get(f"/v1/alerts/{event.alert_id}").json()
    assert one["subject"]["gpu_uuid"] == "GPU-1"
    timeline = api.client.get(f"/v1/alerts/{event.alert_id}/timeline").json()
    assert [e["seq"] for e in timeline["events"]] == [1]


def test_an_undecodable_message_is_set_aside_and_stops_nothing(
    api: Any, bus: MemoryBus, make_event: Any, wait_until: Any
) -> None:
    publisher = bus.publisher(client_id="test")
    for junk in (b"not json", b'{"schema":"gpu.alert/1"}', b""):
        publisher.send(ALERTS.full_name(""), key=b"k", value=junk)
    publisher.flush(5.0)
    api.send(make_event(), replace(make_event(gpu="GPU-2"), seq=2**60), make_event(gpu="GPU-3"))
    wait_until(lambda: len(api.alerts()) == 2)
    reader = bus.subscriber(group="look", topics=[DEAD_LETTERS.full_name("")])
    letters: list[Any] = []
    wait_until(lambda: letters.extend(reader.poll(10, 0.1)) or len(letters) == 4)
    reader.close()
    reasons = {dict(letter.headers)["dlq_reason"] for letter in letters}
    assert reasons == {b"not_json", b"missing_field", b"bad_field"}
    assert 'alert_events_total{outcome="dead_letter"} 4.0' in api.client.get("/metrics").text


def test_a_restart_resumes_and_neither_loses_nor_repeats(
    tmp_path: Path, bus: MemoryBus, make_event: Any, wait_until: Any, running_api: Any
) -> None:
    with running_api(tmp_path, bus) as first:
        first.send(*(make_event(gpu=f"GPU-{n}") for n in range(5)))
        wait_until(lambda: len(first.alerts()) == 5)
        publish = first.send
    publish(*(make_event(gpu=f"GPU-{n}") for n in range(3, 8)))
    with running_api(tmp_path, bus) as second:
        wait_until(lambda: len(second.alerts()) == 8)
        events = second.client.get("/v1/events", params={"limit": 500}).json()["events"]
    assert len(events) == 8


def test_the_store_decides_where_reading_resumes_not_the_bus(
    tmp_path: Path, bus: MemoryBus, make_event: Any, wait_until: Any, running_api: Any
) -> None:
    """A store lost with its offsets is filled again from the bus."""
    with running_api(tmp_path / "one", bus) as first:
        first.send(make_event())
        wait_until(first.alerts)
    with running_api(tmp_path / "two", bus) as second:
        wait_until(second.alerts)


def test_a_full_disk_is_named_and_reading_goes_on_afterwards(
    tmp_path: Path, bus: MemoryBus, make_event: Any, wait_until: Any, running_api: Any
) -> None:
    with running_api(tmp_path, bus) as running:
        database = wait_until(lambda: running.service.store)
        limits = [3]

        def limit(connection: Any, _record: Any, _proxy: Any) -> None:
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {pages + limits[0]}")

        sa.event.listen(database.engine, "checkout", limit)
        running.send(*(make_event(gpu=f"GPU-{n}") for n in range(300)))
        answer = wait_until(
            lambda: (a := running.client.get("/readyz")).status_code == 503 and a, 20
        )
        assert "is full. Free some space" in answer.json()["detail"]
        assert running.client.get("/healthz").status_code == 200
        limits[0] = 1_000_000
        wait_until(lambda: len(running.alerts(limit=500)) == 300, 20)
        assert running.client.get("/readyz").status_code == 200


def test_filters_narrow_the_list(api: Any, make_event: Any, wait_until: Any) -> None:
    hour = 3_600_000
    api.send(
        make_event(gpu="GPU-1", severity="critical"),
        make_event(gpu="GPU-2", node="node-2", started_ms=START_MS + hour),
        make_event(gpu="GPU-3", severity="info", subject=Subject(scope="job", job="j%1_x")),
        make_event(gpu="GPU-4", started_ms=START_MS - hour),
        make_event(gpu="GPU-4", started_ms=START_MS - hour, seq=2, state="resolved"),
    )
    wait_until(lambda: len(api.alerts()) == 4 and len(api.alerts(state="resolved")) == 1)

    def gpus(**params: Any) -> set[str | None]:
        return {a["subject"]["gpu_uuid"] for a in api.alerts(**params)}

    assert gpus(state="resolved") == {"GPU-4"}
    assert gpus(severity_min="critical") == {"GPU-1"}
    assert gpus(node="node-2") == {"GPU-2"}
    assert gpus(gpu="GPU-1") == {"GPU-1"}
    assert gpus(job="j%1_x") == {None}
    assert gpus(family="throttling") == set()
    assert gpus(kind="peer_outlier", severity_min="warning") == {"GPU-1", "GPU-2", "GPU-4"}
    assert gpus(q="NODE-2") == {"GPU-2"}
    assert gpus(q="j%1_") == {None}
    assert gpus(q="%") == {None}, "a wildcard of SQL is an ordinary character"
    assert gpus(since="2025-09-24T04:00:00Z", severity_min="warning") == {"GPU-1", "GPU-2"}
    assert gpus(until="2025-09-24T03:00:00Z") == {"GPU-4"}


def test_pages_show_each_older_alert_once_while_new_ones_arrive(
    api: Any, make_event: Any, wait_until: Any
) -> None:
    api.send(*(make_event(gpu=f"GPU-{n}", started_ms=START_MS + n // 2) for n in range(20)))
    wait_until(lambda: len(api.alerts()) == 20)
    old = {a["alert_id"] for a in api.alerts()}
    seen: list[str] = []
    answer = api.client.get("/v1/alerts", params={"limit": 3})
    for number in range(20):
        seen += [a["alert_id"] for a in answer.json()["alerts"]]
        link = answer.headers.get("link")
        if link is None:
            break
        # A new alert, and new evidence on one that has not been seen yet.
        api.send(make_event(gpu=f"new-{number}", started_ms=START_MS + 1000))
        api.send(make_event(gpu="GPU-0", started_ms=START_MS, seq=number + 2))
        wait_until(lambda: len(api.alerts(limit=500)) == 21 + number)  # noqa: B023 - used at once
        target = re.match(r'<(.+)>; rel="next"', link)
        assert target is not None
        answer = api.client.get(target.group(1))
    assert sorted(seen) == sorted(old)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/alerts?limit=501",
        "/v1/alerts?limit=99999999999999999999",
        "/v1/alerts?cursor=planted",
        "/v1/alerts?cursor=WzEsMl0",
        "/v1/alerts?cursor=W10",
        "/v1/alerts?since=yesterday",
        "/v1/alerts?since=2025-01-01T00:00:00",
        "/v1/alerts?state=planted",
        "/v1/alerts/planted",
        "/v1/events?after=99999999999999999999",
        "/v1/events?after=-1",
        "/v1/deliveries?state=planted",
        "/v1/deliveries?cursor=WyJhIl0",
    ],
)
def test_a_bad_request_is_a_problem_document_that_repeats_nothing(api: Any, path: str) -> None:
    answer = api.client.get(path)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["status"] == 422
    assert body["request_id"]
    assert "planted" not in answer.text


def test_what_is_not_there_is_a_404_problem(api: Any) -> None:
    unknown = "7f3c2b1e-0000-4000-8000-000000000000"
    for path in (f"/v1/alerts/{unknown}", f"/v1/alerts/{unknown}/timeline", "/v1/nothing"):
        answer = api.client.get(path)
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8600", 200),
        ("LOCALHOST", 200),
        ("[::1]:8600", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 400),
        ("[localhost].evil.com", 400),
        ("localhost:x.evil.com", 400),
        ("localhost:99999999", 400),
        ("user@localhost", 400),
    ],
)
def test_the_host_header_is_checked(api: Any, host: str, status: int) -> None:
    """Against DNS rebinding: a page of another site must not read alerts through the browser."""
    assert api.client.get("/v1/alerts", headers={"host": host}).status_code == status


def test_with_an_api_key_alerts_are_shown_only_to_those_who_have_it(
    tmp_path: Path, bus: MemoryBus, running_api: Any
) -> None:
    with running_api(tmp_path, bus, api_key=KEY) as running:
        basic = base64.b64encode(f"anyone:{KEY}".encode()).decode()
        right = [
            {"authorization": f"Bearer {KEY}"},
            {"x-api-key": KEY},
            {"authorization": f"Basic {basic}"},
        ]
        wrong = [
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "Basic !"},
            {"authorization": KEY},
            {"x-api-key": KEY + "x"},
            {"x-api-key": ""},
        ]
        for path in ("/v1/alerts", "/", "/metrics", "/v1/stream", "/v1/endpoints"):
            for headers in wrong:
                answer = running.client.get(path, headers=headers)
                assert answer.status_code == 401, (path, headers)
                assert "www-authenticate" in answer.headers
        for headers in right:
            assert running.client.get("/v1/alerts", headers=headers).status_code == 200
        for path in ("/healthz", "/readyz", "/version", "/docs", "/openapi.json"):
            assert running.client.get(path).status_code == 200


def test_every_answer_carries_the_security_headers(api: Any) -> None:
    for path in ("/", "/docs", "/v1/alerts", "/v1/nothing", "/healthz", "/static/foreshock.css"):
        headers = api.client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert "server" not in headers


def test_pages_ask_nothing_of_other_machines_and_run_no_script(
    api: Any, make_event: Any, wait_until: Any
) -> None:
    event = make_event()
    api.send(event, make_event(gpu="GPU-2"), make_event(gpu="GPU-2", seq=2, state="resolved"))
    wait_until(lambda: api.alerts(state="resolved"))
    for path in ("/", "/docs", f"/alerts/{event.alert_id}", "/static/foreshock.css"):
        text = api.client.get(path).text
        assert not re.search(r"https?://", text), path
        assert "<script" not in text
        assert " style=" not in text


def test_the_pages_say_what_where_since_when_why_and_what_to_do(
    api: Any, make_event: Any, wait_until: Any
) -> None:
    assert "No alert is open" in api.client.get("/").text
    event = make_event()
    api.send(event)
    wait_until(api.alerts)
    front = api.client.get("/").text
    assert "node-1 · GPU 1" in front
    assert "13 °C hotter than its 7 peers &lt;script&gt;" in front
    assert f'href="/alerts/{event.alert_id}"' in front
    page = api.client.get(f"/alerts/{event.alert_id}").text
    for expected in (
        "The cooler of this GPU.",
        "Look at the fan.",
        "87 °C",
        "at most 78 °C",
        "2025-09-24",
    ):
        assert expected in page


def test_the_reference_page_names_every_operation(api: Any) -> None:
    spec = api.client.get("/openapi.json").json()
    page = api.client.get("/docs").text
    assert "/v1/stream" in spec["paths"]
    for path, methods in spec["paths"].items():
        for method in methods:
            assert f"{method.upper()} {path}" in page


def test_metrics_count_alerts_by_state_severity_and_family(
    api: Any, make_event: Any, wait_until: Any
) -> None:
    api.send(make_event())
    wait_until(api.alerts)
    line = 'foreshock_alerts{family="thermal_fault",severity="warning",state="firing"} 1.0'
    assert line in api.client.get("/metrics").text


def read_stream(lines: Any, wanted: int) -> list[dict[str, Any]]:
    """Read ``wanted`` events of a stream, comments left out."""
    found: list[dict[str, Any]] = []
    current: dict[str, Any] = {}
    for line in lines:
        if line == "" and "event" in current:
            found.append(current)
            if len(found) == wanted:
                return found
        if line == "":
            current = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            current[name] = value
    return found


def test_a_stream_replays_after_the_last_id_and_then_follows(
    api: Any, make_event: Any, wait_until: Any
) -> None:
    api.send(*(make_event(gpu=f"GPU-{n}") for n in range(3)))
    wait_until(lambda: len(api.alerts()) == 3)
    first = api.client.get("/v1/events").json()["events"][0]["id"]
    with api.client.stream("GET", "/v1/stream", headers={"last-event-id": str(first)}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        replayed = read_stream(lines, 2)
        api.send(make_event(gpu="GPU-9"))
        (live,) = read_stream(lines, 1)
    assert [int(e["id"]) for e in replayed] == [first + 1, first + 2]
    assert live["event"] == "alert"
    assert orjson.loads(live["data"])["event"]["subject"]["gpu_uuid"] == "GPU-9"


def test_a_stream_without_last_id_begins_now(api: Any, make_event: Any, wait_until: Any) -> None:
    api.send(make_event())
    wait_until(api.alerts)
    with api.client.stream("GET", "/v1/stream") as answer:
        lines = answer.iter_lines()
        assert next(lines) == ": connected"
        api.send(make_event(gpu="GPU-2"))
        (live,) = read_stream(lines, 1)
    assert orjson.loads(live["data"])["event"]["subject"]["gpu_uuid"] == "GPU-2"


def test_a_client_that_knows_more_than_the_store_is_told_to_read_again(api: Any) -> None:
    """The store was replaced: its ids begin anew."""
    with api.client.stream("GET", "/v1/stream", headers={"last-event-id": "12345"}) as answer:
        (event,) = read_stream(answer.iter_lines(), 1)
    assert (event["event"], event["id"]) == ("resync", "0")


def test_a_silent_stream_sends_comments(tmp_path: Path, bus: MemoryBus, running_api: Any) -> None:
    with (
        running_api(tmp_path, bus, heartbeat_seconds=0.05) as running,
        running.client.stream("GET", "/v1/stream") as answer,
    ):
        lines = answer.iter_lines()
        comments = [line for line in (next(lines) for _ in range(6)) if line]
    assert comments[1:] == [": alive", ": alive"]


@pytest.mark.parametrize("streams", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_acceptance_21_open_streams_do_not_hold_up_the_end(
    each_api: Any, wait_until: Any, streams: int
) -> None:
    api = each_api
    base = str(api.client.base_url)
    ended = [threading.Event() for _ in range(streams)]

    def follow(done: threading.Event) -> None:
        with (
            httpx2.Client(base_url=base, trust_env=False, timeout=30) as client,
            client.stream("GET", "/v1/stream") as answer,
        ):
            for _ in answer.iter_lines():
                pass
        done.set()

    threads = [threading.Thread(target=follow, args=(done,)) for done in ended]
    for thread in threads:
        thread.start()
    wait_until(lambda: f"foreshock_api_streams {streams}.0" in api.client.get("/metrics").text)
    begun = time.monotonic()
    api.stop.set()
    api.thread.join(10)
    assert not api.thread.is_alive()
    assert time.monotonic() - begun < 5
    for thread in threads:
        thread.join(5)
    assert all(done.is_set() for done in ended), "the streams ended cleanly"


def test_health_says_whether_all_parts_work(api: Any) -> None:
    report = api.service.health()
    assert report["ok"] is True
    assert set(report["checks"]) == {"store", "schema", "ingest", "delivery", "clockwork"}
    assert api.service.name == "api"


class _BrokenBus(MemoryBus):
    def subscriber(self, **_options: Any) -> Any:
        raise BusUnavailableError("The bus is gone. Start it.")


def test_a_bus_that_fails_for_good_ends_the_service_with_its_words(tmp_path: Path) -> None:
    service = ApiService(_BrokenBus(), ApiSettings(port=0), data_dir=tmp_path)
    with pytest.raises(BusUnavailableError, match="Start it"):
        service.run(threading.Event())
    assert service.health()["ok"] is False


def test_listening_beyond_loopback_needs_a_key(tmp_path: Path, bus: MemoryBus) -> None:
    with pytest.raises(ConfigError, match=r"api\.api_key"):
        ApiService(bus, ApiSettings(host="0.0.0.0"), data_dir=tmp_path)
    ApiService(bus, ApiSettings(host="0.0.0.0", api_key=KEY), data_dir=tmp_path)


def test_a_taken_port_is_a_sentence(api: Any, bus: MemoryBus, tmp_path: Path) -> None:
    port = urlsplit(str(api.client.base_url)).port
    second = ApiService(bus, ApiSettings(port=port), data_dir=tmp_path / "second")
    with pytest.raises(ConfigError, match=r"choose another api\.port"):
        second.run(threading.Event())
