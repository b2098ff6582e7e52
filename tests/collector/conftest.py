"""Fixtures of the collector's tests: an imitated driver, loaded by the real binding."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from collector.host import HostFiles
from collector.nvmlparent import NvmlChildSource
from collector.nvmlwire import ChildSettings
from collector.source import Reading
from tests.nvml_standin.standin import Standin, build, h100

T0 = 1_790_000_000_000


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Folder of the stand-in library of a driver branch, compiled once per session."""
    if shutil.which("gcc") is None and shutil.which("cc") is None:
        reason = "no C compiler for the stand-in of libnvidia-ml.so.1; install gcc"
        if os.environ.get("FORESHOCK_REQUIRE_SERVICES"):
            pytest.fail(reason)
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("nvml")
    return lambda driver: build(folder, driver)


@pytest.fixture
def standin(nvml_library: Callable[[int], Path], tmp_path: Path) -> Standin:
    """Eight healthy H100s on a driver of branch 580."""
    driver = Standin(nvml_library(580), tmp_path)
    driver.say(h100(8))
    return driver


@pytest.fixture
def no_host() -> HostFiles:
    """A node of which the kernel says nothing."""
    nowhere = Path("/nonexistent")
    return HostFiles(boot_id=nowhere, uptime=nowhere, driver_version=nowhere, pci_devices=nowhere)


@pytest.fixture
def watch(no_host: HostFiles) -> Iterator[Callable[..., NvmlChildSource]]:
    """Make a source that reads an imitated driver in a real child process."""
    made: list[NvmlChildSource] = []

    def make(
        driver: Standin,
        *,
        host: HostFiles = no_host,
        deadline_seconds: float = 10.0,
        environment: dict[str, str] | None = None,
        **settings: object,
    ) -> NvmlChildSource:
        # On a machine that is fully used a healthy GPU may wait for the processor, too.
        options = {"slow_seconds": 0.0, "device_deadline_seconds": 10.0, **settings}
        source = NvmlChildSource(
            ChildSettings(node="n1", host=host, **options),  # type: ignore[arg-type]  # by name
            deadline_seconds=deadline_seconds,
            environment={**os.environ, **driver.environment, **(environment or {})},
        )
        made.append(source)
        return source

    yield make
    for source in made:
        source.close()


def read(source: NvmlChildSource, tick: int = 0) -> Reading:
    """Read once, at a tick of one second."""
    (reading,) = source.read(T0 + tick * 1000)
    return reading
