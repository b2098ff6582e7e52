"""Documents that are generated, or that list things, keep up with the code."""

from __future__ import annotations

import re
import socket
import subprocess
import tomllib
from pathlib import Path

import pytest
from pydantic import BaseModel

from detector.registry import build, build_cohort
from foreshock.config import Settings, load
from foreshock.configtext import markdown_table, sample_toml
from foreshock.docs import PAGES, with_generated
from foreshock.settingstree import FOUND, item_models, model_of

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("schemas", "bus", "collector", "detector", "api", "foreshock")


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
        for package in PACKAGES
        for file in (ROOT / package).rglob("*.py")
        if re.search(r"\bos\.(environ|getenv)\b", file.read_text(encoding="utf-8"))
    ]
    assert readers == ["foreshock/config.py"]


PAGES_OF_TEXT = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")])


@pytest.mark.parametrize("page", PAGES_OF_TEXT, ids=lambda page: page.name)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)", text)
    dead = [
        link
        for link in links
        if not re.match(r"[a-z]+:", link) and not (page.parent / link).exists()
    ]
    assert dead == []


def test_every_page_that_the_code_names_exists() -> None:
    """Messages send people to these."""
    sources = [ROOT / "pyproject.toml", ROOT / "Makefile", ROOT / "CONTRIBUTING.md"]
    for package in (*PACKAGES, "benchmarks"):
        sources += [file for kind in ("*.py", "*.html") for file in (ROOT / package).rglob(kind)]
    named = {
        (str(source.relative_to(ROOT)), path)
        for source in sources
        for path in re.findall(r"\bdocs/[\w/-]+\.\w+", source.read_text(encoding="utf-8"))
    }
    assert named
    assert [(source, path) for source, path in sorted(named) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES_OF_TEXT, ids=lambda page: page.name)
def test_settings_shown_in_the_documents_can_be_used(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for number, block in enumerate(
        re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    ):
        table = tomllib.loads(block)
        if table.keys() <= Settings.model_fields.keys():  # column maps are TOML too
            file = tmp_path / f"{number}.toml"
            file.write_text(block)
            load(file, environ={}, cwd=tmp_path)


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


def test_the_readme_lists_the_kinds_that_are_found() -> None:
    """No more and no less than the detectors that are there."""
    judged = [*build(), *build_cohort()]
    found = {f"{one.family}/{spec.kind}" for one in judged for spec in one.kinds}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.split("## What it finds today")[1]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", section, flags=re.MULTILINE)
    listed = {
        f"{family}/{kind}" for family, kinds in rows for kind in re.findall(r"`(\w+)`", kinds)
    }
    assert listed == found
