"""When a kernel line was written, in every form in which logs are kept."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from collector.kernel.stamps import Prefixes

NOW_MS = round(datetime(2025, 1, 6, 12, tzinfo=UTC).timestamp() * 1000)
TEN_MS = round(datetime(2025, 1, 6, 10, tzinfo=UTC).timestamp() * 1000)
BOOT_MS = TEN_MS - 100_000
TEXT = "NVRM: Xid (PCI:0000:41:00): 43, Ch 00000004"


@pytest.mark.parametrize(
    "prefix",
    [
        "[  100.000000] ",
        "[Mon Jan  6 10:00:00 2025] ",
        "kern  :warn  : 2025-01-06T10:00:00,000000+00:00 ",
        "kern  :warn  : [  100.000000] ",
        "2025-01-06T10:00:00.000000+00:00 node7 kernel: [  100.000000] ",
        "2025-01-06T11:00:00+0100 node7 kernel: ",
        "2025-01-06 10:00:00 node7 kernel: ",
        "2025-01-06T10:00:00Z ",
        "Jan  6 10:00:00 node7 kernel: [  100.000000] ",
        "Jan  6 10:00:00 node7 kernel: ",
        "Jan 06 10:00:00.000000 node7 kernel: ",
        "1736157600.000000 node7 kernel: ",
        "<4>[  100.000000] ",
        "[  100.000000] node7 kernel: ",
        "4,1200,100000000,-;",
        "4,1200,100000000,-,caller=T17;",
    ],
)
def test_every_form_gives_the_moment_and_the_bare_message(prefix: str) -> None:
    prefixes = Prefixes(zone=ZoneInfo("UTC"))
    stamped = prefixes.take(prefix + TEXT, now_ms=NOW_MS, boot_ms=BOOT_MS)
    assert stamped is not None
    assert (stamped.ts, stamped.message) == (TEN_MS, TEXT)


def test_a_time_without_a_zone_is_read_in_the_zone_of_the_settings() -> None:
    prefixes = Prefixes(zone=ZoneInfo("Europe/Berlin"))
    line = f"Jan  6 11:00:00 node7 kernel: {TEXT}"
    stamped = prefixes.take(line, now_ms=NOW_MS, boot_ms=None)
    assert stamped is not None
    assert stamped.ts == TEN_MS


def test_a_month_ahead_without_a_year_is_of_last_year() -> None:
    prefixes = Prefixes(zone=ZoneInfo("UTC"))
    line = f"Dec 31 23:59:59 node7 kernel: {TEXT}"
    stamped = prefixes.take(line, now_ms=NOW_MS, boot_ms=None)
    assert stamped is not None
    assert stamped.ts == round(datetime(2024, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp() * 1000)


def test_a_time_since_boot_means_nothing_where_the_boot_is_not_known() -> None:
    stamped = Prefixes().take(f"[100.0] {TEXT}", now_ms=NOW_MS, boot_ms=None)
    assert stamped is not None
    assert (stamped.ts, stamped.message) == (None, TEXT)


def test_a_record_loses_its_dictionary_and_its_escapes() -> None:
    record = "4,7,100000000,-;NVRM: one\\x0aNVRM: two\n SUBSYSTEM=pci\n DEVICE=+pci:0000:41:00.0"
    stamped = Prefixes().take(record, now_ms=NOW_MS, boot_ms=BOOT_MS)
    assert stamped is not None
    assert (stamped.message, stamped.seq) == ("NVRM: one\nNVRM: two", 7)


def test_an_entry_of_the_journal_counts_if_the_kernel_wrote_it() -> None:
    entry = {"MESSAGE": TEXT, "__REALTIME_TIMESTAMP": f"{TEN_MS}000", "_TRANSPORT": "kernel"}
    stamped = Prefixes().take(json.dumps(entry), now_ms=NOW_MS, boot_ms=None)
    assert stamped is not None
    assert (stamped.ts, stamped.message) == (TEN_MS, TEXT)
    for other in ({**entry, "_TRANSPORT": "syslog"}, {**entry, "MESSAGE": [1, 2]}):
        assert Prefixes().take(json.dumps(other), now_ms=NOW_MS, boot_ms=None) is None
    assert Prefixes().take(json.dumps(entry)[:-5], now_ms=NOW_MS, boot_ms=None) is None
    untimed = {**entry, "__REALTIME_TIMESTAMP": None}
    found = Prefixes().take(json.dumps(untimed), now_ms=NOW_MS, boot_ms=None)
    assert found is not None
    assert found.ts is None


def test_the_part_of_a_second_is_kept() -> None:
    prefixes = Prefixes(zone=ZoneInfo("UTC"))
    for line in (
        f"Jan 06 10:00:00.250 node7 kernel: {TEXT}",
        f"1736157600.250000 n kernel: {TEXT}",
    ):
        stamped = prefixes.take(line, now_ms=NOW_MS, boot_ms=None)
        assert stamped is not None
        assert stamped.ts == TEN_MS + 250
