"""The commands for people, against a running api: what they print, do, and how they end."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from api.client import ApiClient, RestError, StreamEvent, Waits
from api.security.keys import KeyStore
from api.security.principal import Role
from api.service import ApiService
from api.settings import ApiSettings, DeliverySettings, LifecycleSettings
from bus.memory import MemoryBus
from foreshock.alertsview import alert_table, console_of, event_line
from foreshock.cli import main
from schemas.alert import (
    AlertEvent,
    DetectorRef,
    Evidence,
    Subject,
    alert_id_of,
    fingerprint_of,
    rfc3339,
)
from schemas.codec import alert_headers, encode
from schemas.topics import ALERTS

START_MS = 1_758_684_003_007
KEY = "settings-key-of-some-length"
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "alerts.md").read_text(encoding="utf-8")
Run = Callable[..., tuple[int, str, str]]


def event(
    gpu: str = "GPU-1", severity: str = "warning", node: str = "n1", index: int = 3
) -> AlertEvent:
    subject = Subject(scope="gpu", node=node, gpu_uuid=gpu, gpu_index=index)
    fingerprint = fingerprint_of("thermal_fault", "peer_outlier", subject)
    return AlertEvent(
        alert_id=alert_id_of(fingerprint, START_MS),
        fingerprint=fingerprint,
        seq=1,
        state="firing",
        family="thermal_fault",
        kind="peer_outlier",
        severity=severity,
        subject=subject,
        started_at=rfc3339(START_MS),
        observed_at=rfc3339(START_MS + 1000),
        score=0.8,
        summary=f"{node} runs 13 °C hotter [bold]than\x1b[31m its peers",
        evidence=(
            Evidence(metric="temperature_celsius", value=87.0, unit="°C", expected_high=78.0),
            Evidence(metric="fan_speed_ratio", value=None, unit="ratio"),
        ),
        likely_cause="The cooler.",
        action="check_cooling",
        next_steps=("Look at the fan.",),
        detector=DetectorRef(name="peer_outlier", version="1"),
    )


class Server:
    """A running api, and events for it."""

    def __init__(self, service: ApiService, bus: MemoryBus, key: str | None) -> None:
        host, port = service.address or ("", 0)
        self.url = f"http://{host}:{port}"
        self.port = port
        self.service = service
        self._bus = bus
        self._key = key

    def send(self, *events: AlertEvent) -> None:
        publisher = self._bus.publisher(client_id="test")
        for one in events:
            publisher.send(
                ALERTS.full_name(""),
                key=one.fingerprint.encode(),
                value=encode(one),
                headers=alert_headers(one),
            )
        assert publisher.flush(5.0) == 0
        publisher.close()

    def wait_for(self, number: int) -> None:
        deadline = time.monotonic() + 60
        with ApiClient(self.url, self._key) as client:
            while len(client.get("/v1/alerts")["alerts"]) < number:
                assert time.monotonic() < deadline
                time.sleep(0.02)


@contextmanager
def serving(folder: Path, bus: MemoryBus, **settings: Any) -> Iterator[Server]:
    service = ApiService(
        bus,
        ApiSettings(
            **{
                "port": 0,
                "lifecycle": LifecycleSettings(settle_seconds=0),
                "delivery": DeliverySettings(allow_cidrs=("127.0.0.0/8",)),
            }
            | settings
        ),
        data_dir=folder,
    )
    stop = threading.Event()
    thread = threading.Thread(target=service.run, args=(stop,))
    thread.start()
    try:
        assert service.wait_until_listening(60)
        yield Server(service, bus, settings.get("api_key"))
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An api with a key and three alerts."""
    bus = MemoryBus()
    with serving(tmp_path_factory.mktemp("api"), bus, api_key=KEY) as found:
        found.send(event(), event("GPU-2", "critical", "n2", 0), event("GPU-3", "info", "n1", 5))
        found.wait_for(3)
        yield found
    bus.close()


@pytest.fixture
def run(server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command as a shell would, told of the api by the environment."""
    monkeypatch.setenv("FORESHOCK_URL", server.url)
    monkeypatch.setenv("FORESHOCK_KEY", KEY)

    def invoke(*arguments: str) -> tuple[int, str, str]:
        code = 0
        try:
            main(arguments)
        except SystemExit as exc:
            code = int(exc.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return invoke


def test_a_list_shows_what_matches_and_reads_no_markup(run: Run) -> None:
    code, out, _ = run("alerts", "list", "--severity", "warning")
    assert code == 0
    rows = [line for line in out.splitlines() if "peer_outlier" in line]
    assert len(rows) == 2
    assert "n1 GPU 3" in out
    assert "[bold]than[31m its peers" in out
    assert "\x1b" not in out
    _, out, _ = run("alerts", "list", "--gpu", "5", "--json")
    assert [one["subject"]["gpu_uuid"] for one in json.loads(out)] == ["GPU-3"]
    _, out, _ = run("alerts", "list", "--match", 'node=~"n2|n9"', "--json")
    assert [one["subject"]["node"] for one in json.loads(out)] == ["n2"]
    assert run("alerts", "list", "--node", "nowhere") == (
        0,
        "No alert is open that matches.\n",
        "",
    )
    _, _, err = run("alerts", "list", "--limit", "1")
    assert "Only the newest 1" in err


def test_a_table_fits_the_terminal(tmp_path: Path) -> None:
    shown = {
        "alert_id": "7f3c2b1e-0000-4000-8000-000000000000",
        "severity": "warning",
        "state": "acknowledged",
        "kind": "peer_outlier",
        "started_at": "2025-09-24T03:20:03.007Z",
        "subject": {"scope": "gpu", "node": "a-node-with-a-long-name", "gpu_index": 3},
        "summary": "word " * 50,
    }
    for width in (80, 100, 160):
        with (tmp_path / "out").open("w+") as file:
            console = console_of(file)
            console.width = width
            console.print(alert_table([shown], START_MS + 7_200_000))
            file.seek(0)
            lines = file.read().splitlines()
        assert max(len(line) for line in lines) <= width
        (row,) = [line for line in lines if "7f3c2b1e" in line]
        for word in ("warning", "acknowledged", "2 h", "word"):
            assert word in row


def test_one_alert_is_shown_by_the_beginning_of_its_id(run: Run) -> None:
    alert_id = event().alert_id
    code, out, _ = run("alerts", "show", alert_id[:8].upper())
    assert code == 0
    for words in (
        "WARNING n1 GPU 3",
        "87 °C",
        "at most 78 °C",
        "The cooler.",
        "1. Look at the fan",
    ):
        assert words in out
    assert "Fan" not in out, "evidence without a number is not shown"
    assert "fired by detector" in out
    _, out, _ = run("alerts", "show", alert_id, "--json")
    assert json.loads(out)["alert_id"] == alert_id


def test_an_alert_is_acknowledged_and_given_back(run: Run) -> None:
    alert_id = event("GPU-2").alert_id
    told = ("alerts", "ack", alert_id[:6], "--until", "90m", "--comment", "Mine.")
    code, out, _ = run(*told)
    assert code == 0
    assert "is acknowledged by settings-key until" in out
    _, out, _ = run("alerts", "show", alert_id)
    assert "acknowledged by settings-key: Mine." in out
    _, out, _ = run("alerts", "ack", alert_id, "--undo")
    assert out == f"{alert_id} is firing\n"


def test_a_silence_takes_what_is_like_an_alert_or_what_matches(run: Run, server: Server) -> None:
    alert_id = event("GPU-3").alert_id
    words = 'alertname="thermal_fault/peer_outlier", gpu="GPU-3", node="n1"'
    tried = run("alerts", "silence", alert_id, "--comment", "Burn-in", "--dry-run")
    assert tried[:2] == (
        0,
        f"{words} would hide 1 open alerts now, 1 in the last seven days\n",
    )
    made = run("alerts", "silence", "--match", "gpu=GPU-3", "--for", "1d", "--comment", "Burn-in")
    assert made[0] == 0
    with ApiClient(server.url, KEY) as client:
        silences = client.get("/v1/silences")["silences"]
    (silence,) = [one for one in silences if one["id"] in made[1]]
    assert silence["matchers"] == [{"name": "gpu", "op": "=", "value": "GPU-3"}]
    code, _, err = run("alerts", "silence", "--comment", "Burn-in")
    assert code == 2
    assert "either the ID" in err


def test_a_watch_gives_lines_or_json_and_ends_when_told(run: Run) -> None:
    code, out, _ = run("alerts", "watch", "--after", "0", "--count", "2")
    assert code == 0
    assert len(out.splitlines()) == 2
    told = ("--after", "0", "--severity", "critical", "--count", "1", "--json")
    _, out, _ = run("alerts", "watch", *told)
    assert json.loads(out)["event"]["subject"]["node"] == "n2"


def test_what_is_not_utf_8_is_refused_in_words(run: Run) -> None:
    code, _, err = run("alerts", "list", "--match", 'node="a\udcffb"')
    assert (code, err) == (
        2,
        "foreshock: An argument, or what came on standard input, is not UTF-8.\n",
    )


def test_every_refusal_is_a_sentence_and_an_exit_code(
    run: Run, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unknown = "7f3c2b1e-0000-4000-8000-000000000000"
    assert run("alerts", "show", unknown) == (
        3,
        "",
        "foreshock: There is no alert with this id.\n",
    )
    assert run("alerts", "show", "0000")[0] == 3
    assert run("alerts", "show", "xyz!")[0] == 2
    assert run("alerts", "list", "--family", "planted-word")[0] in {0, 2}
    assert run("alerts", "list", "--severity", "loud")[0] == 2
    assert run("alerts", "ack", unknown, "--until", "soon")[0] == 2
    assert server.service.store is not None
    with server.service.store.write() as connection:
        viewer = KeyStore(server.service.store).create(
            connection, name="viewer", role=Role.VIEWER, actor="test"
        )
    key_file = tmp_path / "key"
    key_file.write_text(viewer.key + "\n")
    code, _, err = run("alerts", "ack", event().alert_id, "--key-file", str(key_file))
    assert (code, err) == (4, "foreshock: This key lacks the scope alerts:write.\n")
    monkeypatch.setenv("FORESHOCK_KEY", "planted-wrong-key")
    code, _, err = run("alerts", "list")
    assert code == 4
    assert "FORESHOCK_KEY" in err
    assert "planted" not in err
    code, _, err = run("alerts", "list", "--url", "http://127.0.0.1:9")
    assert code == 1
    assert err.startswith("foreshock: Nothing answers at http://127.0.0.1:9: is foreshock running")
    assert run("alerts", "list", "--url", "ftp://planted")[0] == 2


def test_without_an_address_the_settings_say_where_the_api_is(
    run: Run, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("FORESHOCK_URL")
    monkeypatch.delenv("FORESHOCK_KEY")
    config = tmp_path / "foreshock.toml"
    config.write_text(f'[api]\nhost = "0.0.0.0"\nport = {server.port}\napi_key = "{KEY}"\n')
    assert run("alerts", "list", "--config", str(config))[0] == 0
    # The key of the settings goes to no other place.
    assert run("alerts", "list", "--config", str(config), "--url", server.url)[0] == 4


def test_a_receiver_is_made_tried_listed_and_removed(run: Run, tmp_path: Path) -> None:
    address = tmp_path / "address"
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and nobody listens
        port = closed.getsockname()[1]
    address.write_text(f"http://127.0.0.1:{port}/very-secret-path\n")
    code, out, err = run("endpoints", "add", "noc", "--to-file", str(address))
    assert code == 0
    assert "noc (webhook, 127.0.0.1/****) is told from warning on" in out
    assert "whsec_" in out
    assert "very-secret-path" not in out + err
    code, out, _ = run("endpoints", "list")
    assert "127.0.0.1/****" in out
    assert [one["name"] for one in json.loads(run("endpoints", "list", "--json")[1])] == ["noc"]
    code, _, err = run("endpoints", "test", "noc")
    assert code == 1
    assert err == "foreshock: noc did not take it: no answer from 127.0.0.1: ConnectError\n"
    assert run("endpoints", "replay", "noc")[1] == "0 notifications are queued again for noc\n"
    assert run("endpoints", "remove", "noc")[:2] == (0, "noc is removed\n")
    assert run("endpoints", "remove", "noc")[0] == 3
    assert run("endpoints", "test", "noc")[0] == 3
    mail = ("--mail-server", "127.0.0.1:2525", "--mail-from", "a@b.org", "--mail-to", "c@d.org")
    code, out, _ = run("endpoints", "add", "post", "--type", "email", *mail)
    assert (code, out) == (0, "post (email, 127.0.0.1) is told from warning on\n")
    code, _, err = run("endpoints", "add", "x", "--to-file", str(tmp_path / "none"))
    assert (code, err) == (2, "foreshock: The file of --to-file cannot be read.\n")
    assert run("endpoints", "remove", "post")[0] == 0


def test_the_commands_of_the_page_work_as_they_stand_there(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = PAGE.partition("## On the command line")[2].partition("\n## ")[0]
    blocks = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    lines = [line.partition("  #")[0] for block in blocks for line in block.splitlines()]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("foreshock ")]
    assert {tuple(command[:2]) for command in commands} == {
        *(("alerts", word) for word in ("list", "show", "ack", "silence", "watch")),
        *(("endpoints", word) for word in ("add", "list", "test", "replay", "remove")),
    }
    monkeypatch.chdir(tmp_path)
    Path("teams.url").write_text("http://127.0.0.1:1234/workflows/0\n")
    for command in commands:
        told = [event().alert_id if word == "3f2a91c0" else word for word in command]
        if told[1] == "watch":
            told += ["--after", "0", "--count", "1"]
        code, _, err = run(*told)
        # Nobody listens at that address: the test message alone does not get through.
        assert code == (1 if told[:2] == ["endpoints", "test"] else 0), (told, err)


def test_a_lost_line_is_taken_up_again_and_nothing_is_missed(tmp_path: Path) -> None:
    """The api ends, comes back at the same port, and tells what came meanwhile."""
    bus = MemoryBus()
    got: list[StreamEvent] = []
    said: list[str] = []
    enough = threading.Event()

    def follow(url: str) -> None:
        with ApiClient(url) as client:
            for one in client.follow(0, said.append, Waits(first_seconds=0.05)):
                got.append(one)
                if len(got) == 2:
                    enough.set()
                    return

    with serving(tmp_path, bus) as first:
        first.send(event())
        first.wait_for(1)
        thread = threading.Thread(target=follow, args=(first.url,))
        thread.start()
        deadline = time.monotonic() + 60
        while not got:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    while not said:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    with serving(tmp_path, bus, port=first.port) as second:
        second.send(event("GPU-2"))
        assert enough.wait(60)
    thread.join(60)
    bus.close()
    assert [one.data["event"]["subject"]["gpu_uuid"] for one in got] == ["GPU-1", "GPU-2"]
    assert said[0].endswith("trying again until it answers.")
    assert said[-1].endswith("answers again.")


def test_a_watch_ends_when_it_may_not_see(server: Server) -> None:
    with ApiClient(server.url, "wrong") as client, pytest.raises(RestError) as caught:
        next(iter(client.follow(None, print)))
    assert caught.value.exit_code == 4


def test_an_entry_without_a_word_of_the_detector_is_said_too() -> None:
    entry = {
        "received_at": "2025-09-24T03:20:03.007Z",
        "type": "commented",
        "actor": "li.wei",
        "alert_id": "7f3c2b1e-0000-4000-8000-000000000000",
        "state": "firing",
        "event": None,
        "detail": {"comment": "Seen."},
    }
    assert event_line(entry) == (
        "2025-09-24T03:20:03.007Z commented by li.wei 7f3c2b1e firing: Seen."
    )


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"<html>planted</html>", 200, "did not answer as foreshock does"),
        (b"[1]", 200, "did not answer as foreshock does"),
        (b"<html>planted</html>", 502, "answered 502, and not as foreshock does"),
        (b'{"detail": "The alert store cannot answer now."}', 503, "The alert store cannot answer"),
    ],
)
def test_whatever_answers_there_a_sentence_comes_of_it(
    run: Run, body: bytes, status: int, words: str
) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as other:
        thread = threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        code, out, err = run("alerts", "list", "--url", f"http://127.0.0.1:{other.server_port}")
        other.shutdown()
        thread.join()
    assert (code, out) == (1, "")
    assert words in err
    assert "planted" not in err


def test_a_watch_is_ended_by_ctrl_c_without_a_word(server: Server) -> None:
    command = [sys.executable, "-m", "foreshock", "alerts", "watch", "--after", "0"]
    environ = os.environ | {"FORESHOCK_URL": server.url, "FORESHOCK_KEY": KEY}
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert " fired " in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
