"""Requirements and metadata."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "requirements").glob("*.txt"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def pins(file: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for line in file.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            requirement = Requirement(line)
            name = canonicalize_name(requirement.name)
            found.setdefault(name, set()).add(str(requirement.specifier))
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_requirements_are_pins_without_addresses(file: Path) -> None:
    text = file.read_text()
    assert "://" not in text
    assert not re.search(r"^\s*-", text, re.MULTILINE), "an option such as --index-url"
    for name, specifiers in pins(file).items():
        assert all(one.startswith("==") for one in specifiers), name


def test_development_uses_the_versions_that_run() -> None:
    """What is tested is what is installed."""
    runtime = pins(ROOT / "requirements" / "runtime.txt")
    dev = pins(ROOT / "requirements" / "dev.txt")
    assert {name: dev.get(name) for name in runtime} == runtime


def test_every_dependency_is_pinned_and_explained() -> None:
    runtime = pins(ROOT / "requirements" / "runtime.txt")
    explained = (ROOT / "docs" / "libraries.md").read_text().lower()
    for text in PROJECT["project"]["dependencies"]:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        assert name in runtime, name
        assert all(one[2:] in requirement.specifier for one in runtime[name]), name
        assert name in explained, f"docs/libraries.md does not say why there is {name}"


def test_the_required_libraries_are_dependencies() -> None:
    names = {canonicalize_name(Requirement(one).name) for one in PROJECT["project"]["dependencies"]}
    required = {"nvidia-ml-py", "confluent-kafka", "river", "fastapi", "uvicorn", "orjson"}
    assert required <= names


@pytest.mark.parametrize("name", ["Makefile", ".ci/run", "pyproject.toml", "CONTRIBUTING.md"])
def test_no_file_of_the_set_up_names_a_registry(name: str) -> None:
    """Where packages come from is the machine's own business."""
    text = (ROOT / name).read_text()
    assert not re.search(r"(?<!no-emit-)index-url", text)
    assert "https://" not in text
