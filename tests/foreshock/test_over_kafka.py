"""Collect, detect and serve as three processes over real Kafka, with a crash and a receiver."""

from __future__ import annotations

import base64
import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from processes import DEADLINE_SECONDS, Processes, alerts, api_url
from standardwebhooks import Webhook

from bus import open_bus
from foreshock.config import load
from schemas.topics import STATE

ROOT = Path(__file__).resolve().parents[2]
MAP = str(ROOT / "maps" / "hopper_sxm_x8.toml")
SECRET = "whsec_" + base64.b64encode(b"a secret of thirty-two characters").decode()


class Receiver:
    """A webhook receiver that believes only what the independent package verifies."""

    def __init__(self) -> None:
        self.verified: list[dict[str, object]] = []
        self.refused: list[str] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                names = {name.lower(): value for name, value in self.headers.items()}
                try:
                    receiver.verified.append(Webhook(SECRET).verify(body, names))
                    self.send_response(204)
                except Exception as exc:  # noqa: BLE001 - whatever it is, it was not verified
                    receiver.refused.append(f"{type(exc).__name__}: {exc}")
                    self.send_response(400)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                del args

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def processes(
    tmp_path: Path, real_kafka: str, topic_prefix: str, receiver: Receiver
) -> Iterator[Processes]:
    (tmp_path / "foreshock.toml").write_text(
        f"""
[bus]
transport = "kafka"
prefix = "{topic_prefix}"

[bus.kafka]
bootstrap = "{real_kafka}"
partitions = 3
replication_factor = 1

[[api.endpoints]]
name = "noc"
type = "webhook"
url = "{receiver.url}"
secret = "{SECRET}"
severity_min = "warning"
allow_private = true
"""
    )
    made = Processes(tmp_path)
    yield made
    made.end()


def replayed_in_process(recording: str, folder: Path) -> set[str]:
    """Alert ids that the same file gives in one process."""
    out = folder / "alerts.jsonl"
    command = ["replay", recording, "--map", MAP, "--alerts", str(out)]
    subprocess.run(
        [sys.executable, "-m", "foreshock", *command],
        cwd=folder,
        stderr=subprocess.DEVNULL,
        timeout=DEADLINE_SECONDS,
        check=True,
    )
    return {json.loads(line)["alert_id"] for line in out.read_text().splitlines()}


@pytest.mark.kafka
@pytest.mark.real_kafka
@pytest.mark.timeout(900)  # six starts of Python and a recording, on two busy cores
def test_three_processes_over_kafka_give_the_alerts_of_a_replay(
    processes: Processes, receiver: Receiver, shared: Path, tmp_path: Path
) -> None:
    """Kill -9 of the detector, and its return on another disk, change nothing in the alert ids."""
    recording = str(shared / "recordings/timeseries/hopper_sxm_x8_run_0317_0339.csv.gz")
    expected = replayed_in_process(recording, tmp_path)
    assert expected
    assert processes.start("topics", "create").wait(timeout=60) == 0
    serve, detect = processes.start("serve"), processes.start("detect")
    url = processes.wait_for("the api", lambda: api_url(processes))
    collect = processes.start("collect", "--replay", recording, "--map", MAP)
    processes.wait_for("a snapshot", lambda: saved_states(processes))
    detect.kill()
    detect.wait(timeout=10)
    # As on another machine: the state comes from the topic, not from the disk.
    shutil.rmtree(processes.folder / "data" / "detector")
    detect = processes.start("detect")
    assert collect.wait(timeout=DEADLINE_SECONDS) == 0, processes.log("collect").read_text()
    processes.wait_for("the alerts", lambda: alerts(url).keys() >= expected)
    processes.wait_for("the webhook", lambda: receiver.verified)
    for process in (detect, serve):
        process.send_signal(signal.SIGTERM)
    assert [process.wait(timeout=15) for process in (detect, serve)] == [0, 0]
    assert receiver.refused == []
    told = {str(_field(body, "alert_id")) for body in receiver.verified}
    assert told <= expected
    # The outlier is a warning, so it was told; after SIGTERM nothing more was said.
    processes.log("serve").unlink()
    processes.start("serve")
    url = processes.wait_for(
        "the api", lambda: processes.log("serve").exists() and api_url(processes)
    )
    assert alerts(url).keys() == expected


def saved_states(processes: Processes) -> int:
    """Count the records on the topic of states."""
    settings = load(environ={}, cwd=processes.folder).settings.bus
    bus = open_bus(settings)
    try:
        return len(list(bus.read_all(STATE.full_name(settings.prefix))))
    finally:
        bus.close()


def _field(body: dict[str, object], name: str) -> object:
    """A field of the alert inside a delivery."""
    data = body.get("data", body)
    assert isinstance(data, dict), body
    return data[name] if name in data else data["alert"][name]
