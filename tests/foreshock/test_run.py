"""Running services: signals, failures and the end."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog

from foreshock.run import run_services
from schemas.errors import ConfigError, StoreError


def test_all_services_end_when_stop_is_set(service: Callable[..., Any]) -> None:
    stop = threading.Event()
    services = [service("collector"), service("api", lambda _: stop.set())]
    outcome = run_services(services, stop)
    assert outcome.exit_code == 0
    assert all(one.ended.is_set() for one in services)


def test_a_service_that_fails_stops_the_others_and_is_named(service: Callable[..., Any]) -> None:
    def fail(_stop: object) -> None:
        raise StoreError("the store is damaged")

    steady = service("collector")
    outcome = run_services([steady, service("api", fail)], threading.Event())
    assert outcome.problems == ("The api stopped: the store is damaged",)
    assert outcome.exit_code == 1
    assert steady.ended.is_set()


def test_settings_that_a_service_refuses_end_with_2(service: Callable[..., Any]) -> None:
    def refuse(_stop: object) -> None:
        raise ConfigError("the port is taken")

    with structlog.testing.capture_logs() as lines:
        outcome = run_services([service("api", refuse)], threading.Event())
    assert outcome.exit_code == 2
    events = [line["event"] for line in lines]
    assert events.index("service_running") < events.index("service_failed")


def test_an_unexpected_error_is_told_as_one(service: Callable[..., Any]) -> None:
    def fail(_stop: object) -> None:
        raise KeyError("x")

    (problem,) = run_services([service("detector", fail)], threading.Event()).problems
    assert "detector stopped by an unexpected error, KeyError" in problem


def test_a_full_disk_is_named(service: Callable[..., Any]) -> None:
    def fail(_stop: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    (problem,) = run_services([service("api", fail)], threading.Event()).problems
    assert "the disk is full" in problem


def test_a_service_that_hangs_is_named_and_not_waited_for(service: Callable[..., Any]) -> None:
    release = threading.Event()
    stop = threading.Event()
    stop.set()
    outcome = run_services(
        [service("detector", lambda _: release.wait(30)), service("api")], stop, grace_seconds=0.2
    )
    release.set()
    assert outcome.hung == ("detector",)
    assert outcome.exit_code == 1
    assert "detector did not end" in outcome.problems[0]


def test_a_service_that_ends_by_itself_leaves_the_others_running(
    service: Callable[..., Any],
) -> None:
    stop = threading.Event()
    recording = service("collector", lambda _: None)

    def wait_for_recording(_stop: object) -> None:
        assert recording.ended.wait(10)
        assert not stop.is_set()
        stop.set()

    assert run_services([recording, service("api", wait_for_recording)], stop).exit_code == 0


def test_the_run_ends_when_the_last_service_has_ended(service: Callable[..., Any]) -> None:
    assert run_services([service("collector", lambda _: None)], threading.Event()).exit_code == 0


HEAD = """
import sys, threading, time
from prometheus_client import CollectorRegistry
from foreshock.logs import set_up_logging
from foreshock.run import abandon, run_services

class One:
    name, registry = "detector", CollectorRegistry()
    def health(self):
        return {"ok": True}
    def run(self, stop):
        print("running", flush=True)
        WORK

set_up_logging("info", "json")
outcome = run_services([One()], threading.Event(), grace_seconds=GRACE)
abandon(outcome)
"""
WAITS = "stop.wait(60); print('ended', flush=True)"
# A thread that is no daemon keeps an interpreter alive.
HANGS = "helper = threading.Thread(target=time.sleep, args=(60,)); helper.start(); helper.join()"

Child = subprocess.Popen[str]


@pytest.fixture
def child() -> Iterator[Callable[[str, float], Child]]:
    """Starts a process with one service that is running when this returns."""
    started: list[Child] = []

    def start(work: str, grace: float) -> Child:
        process = subprocess.Popen(
            [sys.executable, "-c", HEAD.replace("WORK", work).replace("GRACE", str(grace))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=10)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_cleanly(
    child: Callable[[str, float], Child], number: int
) -> None:
    process = child(WAITS, 9.0)
    process.send_signal(number)
    output, _ = process.communicate(timeout=10)
    assert process.returncode == 0
    assert output == "ended\n"


def test_a_process_with_a_service_that_hangs_ends_all_the_same(
    child: Callable[[str, float], Child],
) -> None:
    process = child(HANGS, 0.2)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 1
    assert "foreshock: The detector did not end" in errors


def test_a_second_interrupt_ends_at_once(child: Callable[[str, float], Child]) -> None:
    process = child(HANGS, 30.0)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    for line in process.stderr:  # the first one was heard: two in a row could be taken as one
        if "stop_requested" in line:
            break
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == 130


def test_an_end_is_noticed_without_looking_for_it(
    service: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foreshock.run._POLL_SECONDS", 300.0)  # nothing but the queue may wake it
    services = [service("collector", lambda _stop: None), service("api", lambda _stop: None)]
    begun = time.monotonic()
    assert run_services(services, threading.Event()).exit_code == 0
    assert time.monotonic() - begun < 100.0


def test_a_signal_is_noticed_without_looking_for_it(
    service: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foreshock.run._POLL_SECONDS", 300.0)

    def wait(stop: threading.Event) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(200.0)

    assert run_services([service("collector", wait)], threading.Event()).exit_code == 0
