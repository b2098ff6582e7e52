"""The commands for people."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from api.database import Database
from api.security.keys import KeyStore
from api.security.principal import Role
from foreshock.cli import app

SECRET = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[str]]]:
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(self.rfile.read(int(self.headers["content-length"])).decode())
            self.send_response(204 if self.path == "/good" else 404)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", seen
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def config(tmp_path: Path, receiver: tuple[str, list[str]]) -> Path:
    path = tmp_path / "foreshock.toml"
    tables = "".join(
        f'[[api.endpoints]]\nname = "{name}"\nurl = "{receiver[0]}/{name}"\n'
        f'secret = "{SECRET}"\nallow_private = true\n'
        for name in ("good", "bad")
    )
    path.write_text(f'data_dir = "{tmp_path / "data"}"\n{tables}')
    return path


def test_a_test_message_goes_by_the_way_of_real_ones(
    config: Path, receiver: tuple[str, list[str]]
) -> None:
    result = CliRunner().invoke(app, ["endpoints", "test", "good", "--config", str(config)])
    assert result.exit_code == 0, result.output
    assert "good took the test message" in result.output
    assert "test message of foreshock" in receiver[1][0]


def test_an_endpoint_that_refuses_says_so_without_its_address(config: Path) -> None:
    result = CliRunner().invoke(app, ["endpoints", "test", "bad", "--config", str(config)])
    assert result.exit_code == 1
    assert "HTTP 404" in result.output
    assert "/bad" not in result.output


def test_a_key_is_shown_once_and_opens_the_store(config: Path, tmp_path: Path) -> None:
    arguments = ["keys", "create", "--name", "ci", "--role", "operator", "--config", str(config)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    key = next(line for line in result.output.splitlines() if line.startswith("fsk_"))
    database = Database.open(None, tmp_path / "data")
    found = KeyStore(database).find(key)
    database.close()
    assert found is not None
    assert found.name == "ci"
    assert Role.OPERATOR in set(Role)


def test_replay_counts_what_it_queues(config: Path) -> None:
    result = CliRunner().invoke(app, ["endpoints", "replay", "good", "--config", str(config)])
    assert result.exit_code == 0, result.output
    assert "0 notifications" in result.output
