"""Imports go one way, and whoever breaks that is named."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("schemas", "bus", "collector", "detector", "api", "foreshock")


@pytest.mark.parametrize("package", PACKAGES)
def test_the_package_is_ours(package: str) -> None:
    """The names are common words: another distribution could bring one of them too."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).is_relative_to(ROOT)
    assert (ROOT / package / "py.typed").exists()


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    # The folder comes first on the path, so that the copy is examined and not the installation.
    code = "import sys; sys.path.insert(0, '.'); from importlinter.cli import lint_imports_command"
    return subprocess.run(
        [sys.executable, "-c", f"{code}; lint_imports_command(['--no-cache'])"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def copy_of_the_product(folder: Path) -> Path:
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def test_the_import_rules_hold() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


def test_planted_violations_are_named(tmp_path: Path) -> None:
    copy_of_the_product(tmp_path)
    planted = {
        "schemas/planted.py": "import bus",
        "bus/planted.py": "import collector",
        "detector/planted.py": "import api",
        "api/planted.py": "import pynvml",
        "collector/planted.py": "import confluent_kafka",
        "foreshock/planted.py": "import fastapi",
    }
    for name, code in planted.items():
        (tmp_path / name).write_text(f"{code}\n")
    result = lint_imports(tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    for name in planted:
        assert name.replace("/", ".").removesuffix(".py") in result.stdout, name
