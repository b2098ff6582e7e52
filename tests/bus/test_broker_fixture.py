"""The broker that the workers of a test run share: its end must not depend on whose child it is."""

from __future__ import annotations

import subprocess
import sys
import time

import kafka_broker
import pytest


def test_a_process_that_has_ended_is_over_though_its_parent_does_not_look_after_it() -> None:
    """The worker that started the broker may be idle when another one ends it."""
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'pass'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as parent:
        try:
            assert parent.stdout is not None
            pid = int(parent.stdout.readline())
            end = time.monotonic() + 20.0
            while kafka_broker._alive(pid):
                if time.monotonic() > end:
                    pytest.fail("a process that has ended is waited for for ever")
                time.sleep(0.02)
        finally:
            parent.kill()
