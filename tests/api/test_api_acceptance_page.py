"""docs/acceptance.md names tests that exist, and every number but the dashboard's."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "acceptance.md").read_text(encoding="utf-8").splitlines()
    if re.match(r"\| \d+ ", line)
]


def test_every_number_has_a_row_with_tests_that_exist() -> None:
    written = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "api").rglob("test_*.py")
    )
    assert [int(row[0]) for row in ROWS] == [n for n in range(1, 23) if n != 20]
    for row in ROWS:
        named = re.findall(r"`(test_\w+)`", row[3])
        assert named, row
        for name in named:
            assert f"def {name}(" in written, name


def test_a_promise_of_both_stores_has_a_test_that_runs_on_both() -> None:
    """By its fixtures: those that give both kinds of store."""
    both = {"database", "store_url", "each_api", "amtool", "told", "server"}
    written = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "api").rglob("test_*.py")
    )
    for row in ROWS:
        if row[2] != "both":
            continue
        asked: set[str] = set()
        for name in re.findall(r"`(test_\w+)`", row[3]):
            found = re.search(rf"def {name}\((.*?)\) -> None:", written, re.DOTALL)
            assert found is not None, name
            asked |= set(re.findall(r"(\w+):", found[1]))
        assert asked & both, row
