"""Documents that are generated, or that list things, keep up with the code."""

from __future__ import annotations

import re
import socket
import subprocess
from pathlib import Path

import pytest
from pydantic import BaseModel

from foreshock.config import Settings
from foreshock.configtext import markdown_table, sample_toml
from foreshock.docs import PAGES, with_generated
from foreshock.settingstree import FOUND, item_models, model_of

ROOT = Path(__file__).resolve().parents[2]


def settings_classes(model: type[BaseModel]) -> list[type[BaseModel]]:
    found = [model]
    for field in model.model_fields.values():
        inner = model_of(field.annotation)
        for one in [*([inner] if inner else []), *item_models(field.annotation)]:
            found += settings_classes(one)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_generated_parts_are_up_to_date(page: Path) -> None:
    """Run ``make docs`` after a change of settings, detectors or metrics."""
    text = page.read_text(encoding="utf-8")
    assert text == with_generated(text, PAGES[page]())


@pytest.mark.parametrize("one", settings_classes(Settings), ids=lambda one: one.__name__)
def test_settings_are_frozen_strict_and_described(one: type[BaseModel]) -> None:
    assert one.model_config.get("frozen") is True
    assert one.model_config.get("extra") == "forbid"
    silent = [name for name, field in one.model_fields.items() if not field.description]
    assert silent == []


def test_no_default_in_the_documents_differs_between_machines() -> None:
    """A default that is made by a call is empty, a class of settings, or named in words."""
    made = [
        (one.__name__, name)
        for one in settings_classes(Settings)
        for name, field in one.model_fields.items()
        if field.default_factory not in {None, dict, *FOUND} and model_of(field.annotation) is None
    ]
    assert made == []
    assert "| the host name |" in markdown_table()
    assert f'"{socket.gethostname()}"' not in markdown_table() + sample_toml()


def test_only_the_front_door_reads_the_environment() -> None:
    readers = [
        str(file.relative_to(ROOT))
        for package in ("schemas", "bus", "collector", "detector", "api", "foreshock")
        for file in (ROOT / package).rglob("*.py")
        if re.search(r"\bos\.(environ|getenv)\b", file.read_text(encoding="utf-8"))
    ]
    assert readers == ["foreshock/config.py"]


def test_make_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    shown = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    ).stdout
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    for target in phony.group(1).split():
        assert f"make {target} " in shown
