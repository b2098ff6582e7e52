"""Set-up fails with a sentence, not with a traceback of pip."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """As much of a clone as the set-up looks at."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    return tmp_path


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def script(folder: Path, text: str) -> str:
    file = folder / "python-stand-in"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return f"PYTHON={file}"


@pytest.mark.parametrize("target", ["test", "demo"])
def test_a_missing_python_is_named(clone: Path, target: str) -> None:
    result = make(clone, target, "PYTHON=python-of-nowhere")
    assert result.returncode != 0
    assert "there is no 'python-of-nowhere'" in result.stderr


def test_an_old_python_is_named_with_what_to_do(clone: Path) -> None:
    stand_in = script(clone, 'if [ "$1" = -V ]; then echo Python 3.9.1; else exit 1; fi')
    result = make(clone, "test", stand_in)
    assert "needs Python 3.11 or newer" in result.stderr
    assert "Python 3.9.1" in result.stderr
    assert "make PYTHON=python3.12" in result.stderr
    assert not (clone / ".venv").exists()


def test_a_venv_that_cannot_be_made_is_named_and_leaves_nothing(clone: Path) -> None:
    """Debian's python3 has no ensurepip without python3-venv, and leaves half an environment."""
    stand_in = script(clone, '[ "$1" = -c ] && exit 0; mkdir -p .venv/bin; exit 1')
    result = make(clone, "test", stand_in)
    assert result.returncode != 0
    assert "python3-venv" in result.stderr
    assert not (clone / ".venv").exists()


def test_make_alone_shows_help(clone: Path) -> None:
    result = make(clone)
    assert result.returncode == 0
    assert "make demo" in result.stdout


def test_clean_removes_the_environment(clone: Path) -> None:
    (clone / ".venv").mkdir()
    (clone / "bus" / "__pycache__").mkdir(parents=True)
    assert make(clone, "clean").returncode == 0
    assert not (clone / ".venv").exists()
    assert not (clone / "bus" / "__pycache__").exists()


def test_the_ci_script_is_valid_and_requires_everything() -> None:
    path = ROOT / ".ci" / "run"
    assert path.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(path)], timeout=30, check=True)
    text = path.read_text()
    assert "set -euo pipefail" in text
    assert "FORESHOCK_REQUIRE_KAFKA=1" in text
    assert "FORESHOCK_SHARED" in text
