"""Commands of foreshock as processes that share one data directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest

DEADLINE_SECONDS = 300.0  # a recording of 4 514 readings, on two busy cores


class Processes:
    """Commands of foreshock that share one data directory."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self._running: list[subprocess.Popen[bytes]] = []
        kept = {name: text for name, text in os.environ.items() if "FORESHOCK" not in name}
        self._environment = kept | {
            "FORESHOCK_DATA_DIR": str(folder / "data"),
            "FORESHOCK_LOG_FORMAT": "json",
            "FORESHOCK_COLLECTOR__PORT": "0",
            "FORESHOCK_DETECTOR__PORT": "0",
            "FORESHOCK_DETECTOR__CHECKPOINT_SECONDS": "0.5",
            "FORESHOCK_API__PORT": "0",
            **(settings or {}),
        }

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with self.log(arguments[0]).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "foreshock", *arguments],
                cwd=self.folder,
                env=self._environment,
                stdout=log,
                stderr=log,
            )
        self._running.append(process)
        return process

    def log(self, command: str) -> Path:
        return self.folder / f"{command}.log"

    def wait_for(self, what: str, look: Callable[[], Any]) -> Any:
        """Look until there is something; a process that ends meanwhile fails the test."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            found = look()
            if found:
                return found
            time.sleep(0.1)
        logs = "\n".join(f"{file}:\n{file.read_text()[-2000:]}" for file in self._logs())
        return pytest.fail(f"{what} did not come within {DEADLINE_SECONDS:.0f} s\n{logs}")

    def _logs(self) -> list[Path]:
        return sorted(self.folder.glob("*.log"))

    def end(self) -> None:
        for process in self._running:
            process.kill()
            process.wait(timeout=10)


def api_url(processes: Processes) -> str | None:
    """Where the api listens, from its own log."""
    for line in processes.log("serve").read_text().splitlines():
        fields = json.loads(line) if line.startswith("{") else {}
        if fields.get("event") == "api_listening":
            return f"http://{fields['host']}:{fields['port']}"
    return None


def alerts(url: str) -> dict[str, str]:
    """Alert id to family and kind, of warning and above."""
    answer = httpx2.get(f"{url}/v1/alerts?limit=100", timeout=10)
    found = answer.raise_for_status().json()["alerts"]
    return {one["alert_id"]: f"{one['family']}/{one['kind']}" for one in found}
