"""Services that do what a test wants, and a place for settings."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter

sys.path.insert(0, str(Path(__file__).parent))


class ScriptedService:
    """Runs what it is given; by default it waits for the stop."""

    def __init__(
        self,
        name: str = "collector",
        act: Callable[[threading.Event], object] | None = None,
        *,
        ok: bool = True,
    ) -> None:
        self.name = name
        self.ok = ok
        self.registry = CollectorRegistry()
        Counter("foreshock_scripted_total", "Runs.", registry=self.registry).inc()
        self.ended = threading.Event()
        self._act = act

    def run(self, stop: threading.Event) -> None:
        if self._act is None:
            stop.wait(60)
        else:
            self._act(stop)
        self.ended.set()

    def health(self) -> Mapping[str, object]:
        return {"ok": self.ok, "detail": "as scripted"}


@pytest.fixture
def service() -> Callable[..., ScriptedService]:
    return ScriptedService


@pytest.fixture
def toml(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a settings file."""

    def write(text: str) -> Path:
        file = tmp_path / "foreshock.toml"
        file.write_text(text)
        return file

    return write
