"""No case about values, lifecycle or kernel lines may be without a test that names it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest


@pytest.mark.parametrize("name", ["values", "lifecycle", "kernel"])
def test_every_case_with_words_for_the_collector_is_named_by_a_test(
    name: str, shared: Path
) -> None:
    here = Path(__file__)
    tests = "\n".join(
        line
        for path in here.parent.glob("test_*.py")
        if path != here
        for line in path.read_text().splitlines()
        if line.startswith("def test_") or "parametrize" in line
    )
    cases = json.loads((shared / "cases" / f"{name}.json").read_text())
    ids = [case["id"] for case in cases if "collector" in case["expect"]]
    assert ids
    unnamed = [case for case in ids if not re.search(rf"test_{case.lower()}_|\b{case}\b", tests)]
    assert unnamed == []
