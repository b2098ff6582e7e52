"""The page on adding a detector works as it stands: its code is taken from it and run."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import detector.detectors
from detector.registry import available

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-detector.md"
_BLOCK = re.compile(r'```python title="([^"]+)"\n(.*?)```', re.DOTALL)
_MODULE = "detector.detectors.idle_power"


def blocks() -> dict[str, str]:
    return dict(_BLOCK.findall(PAGE.read_text(encoding="utf-8")))


@pytest.fixture
def dropped_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The file of the page, in a folder where detectors are found."""
    (tmp_path / "idle_power.py").write_text(blocks()["detector/detectors/idle_power.py"])
    folders = [*detector.detectors.__path__, str(tmp_path)]
    monkeypatch.setattr(detector.detectors, "__path__", folders)
    yield
    sys.modules.pop(_MODULE, None)


@pytest.mark.usefixtures("dropped_in")
def test_the_page_is_a_detector_that_is_found_checked_and_replayed() -> None:
    assert "idle_power" in available()
    space: dict[str, Any] = {}  # what the code of the page defines
    exec(blocks()["check.py"], space)  # noqa: S102 - the page's own code
    exec(blocks()["replay.py"], space)  # noqa: S102 - the page's own code
    (alert,) = space["mine"]
    assert (alert.family, alert.kind, alert.severity) == ("novelty", "drift", "info")
    assert alert.subject.gpu_uuid == "GPU-1-2"
    assert alert.shadow
    assert "rests at 105 W, 35 W above its usual 70 W" in alert.summary


@pytest.mark.usefixtures("dropped_in")
def test_the_example_of_the_page_is_true() -> None:
    import doctest
    import importlib

    module = importlib.import_module(_MODULE)
    flags = doctest.NUMBER if hasattr(doctest, "NUMBER") else 0
    assert doctest.testmod(module, optionflags=flags).failed == 0
    assert module.DETECTOR is available()["idle_power"]


def test_without_the_file_nothing_of_it_is_left() -> None:
    assert "idle_power" not in available()
