"""Logs: one format, and no secrets in it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from foreshock.logs import set_up_logging


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:] = before
    root.setLevel(level)
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_stream_that_is_no_terminal_gets_json(stream: io.StringIO) -> None:
    set_up_logging("info", "auto", stream)
    structlog.get_logger().info("bus_opened", path="/x")
    (line,) = lines(stream)
    assert (line["event"], line["path"], line["level"]) == ("bus_opened", "/x", "info")
    assert line["timestamp"].endswith("Z")


def test_the_console_style_is_for_people(stream: io.StringIO) -> None:
    set_up_logging("info", "console", stream)
    structlog.get_logger().info("bus_opened", path="/x")
    assert "bus_opened" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_lines_below_the_level_are_not_written(stream: io.StringIO) -> None:
    set_up_logging("warning", "json", stream)
    structlog.get_logger().info("quiet")
    logging.getLogger("uvicorn").info("quiet too")
    assert stream.getvalue() == ""


def test_the_standard_library_writes_in_the_same_format(stream: io.StringIO) -> None:
    set_up_logging("info", "json", stream)
    logging.getLogger("uvicorn.error").warning("port %d is taken", 8600)
    assert lines(stream)[0]["event"] == "port 8600 is taken"


@pytest.mark.parametrize("style", ["json", "console"])
def test_secrets_are_never_written(stream: io.StringIO, style: str) -> None:
    set_up_logging("info", style, stream)
    structlog.get_logger().info(
        "endpoint_added",
        api_key="k3y",
        headers={"Authorization": "Bearer t0ken"},
        properties={"sasl.password": "hunter2"},
        url="https://me:pa55@host/x",
        note="signed with whsec_c2VjcmV0",
    )
    for secret in ("k3y", "t0ken", "hunter2", "pa55", "c2VjcmV0"):
        assert secret not in stream.getvalue()


def test_secrets_in_a_traceback_are_hidden(stream: io.StringIO) -> None:
    set_up_logging("info", "json", stream)
    try:
        int("https://me:pa55@host/x")
    except ValueError:
        structlog.get_logger().exception("delivery_failed")
    assert "pa55" not in stream.getvalue()
    assert "ValueError" in lines(stream)[0]["exception"]


@pytest.mark.parametrize("name", ["httpx2", "httpcore2.connection", "httpx", "urllib3"])
def test_http_clients_do_not_log_addresses(stream: io.StringIO, name: str) -> None:
    set_up_logging("debug", "json", stream)
    logging.getLogger(name).info("HTTP Request: POST https://hooks.example/planted 200")
    logging.getLogger(name).warning("told")
    assert [line["event"] for line in lines(stream)] == ["told"]
