"""Running services: signals, failures and the end."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from foreshock.run import run_services
from schemas.errors import StoreError


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


CHILD = """
import sys, threading
from prometheus_client import CollectorRegistry
from foreshock.run import run_services

class Waiting:
    name, registry = "collector", CollectorRegistry()
    def run(self, stop):
        print("running", flush=True)
        stop.wait(60)
        print("ended", flush=True)
    def health(self):
        return {"ok": True}

sys.exit(run_services([Waiting()], threading.Event()).exit_code)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_cleanly(number: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        began = time.monotonic()
        process.send_signal(number)
        assert process.wait(timeout=10) == 0
        assert time.monotonic() - began < 10
        assert "ended" in process.stdout.read()
