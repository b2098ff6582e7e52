"""Certificates of an authority of our own, for receivers that speak TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trustme


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="session")
def tls_material(authority: trustme.CA) -> Any:
    """A certificate for localhost and 127.0.0.1."""
    return authority.issue_cert("localhost", "127.0.0.1")


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return path
