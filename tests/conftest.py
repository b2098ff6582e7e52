"""Fixtures that every test may use."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))  # tests are no package; benchmarks import it this way too

from kafka_broker import (  # noqa: E402, F401 - fixtures that every test may ask for
    _broker,
    kafka,
    kafka_is_real,
    real_kafka,
    topic_prefix,
)
from postgres_server import postgres  # noqa: E402, F401 - a fixture that every test may ask for


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of recordings and cases; missing is a failure where FORESHOCK_SHARED is set."""
    named = os.environ.get("FORESHOCK_SHARED")
    folder = Path(named) if named else ROOT.parent / "shared"
    if (folder / "recordings").is_dir() and (folder / "cases").is_dir():
        return folder
    if named:
        pytest.fail(f"FORESHOCK_SHARED={named} has no recordings and cases")
    pytest.skip(f"no shared recordings at {folder}; set FORESHOCK_SHARED to test with them")
