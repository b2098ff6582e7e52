"""The kernel log as it lives: it grows, is cut, moved, refused, overwritten and read again."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import pytest

from collector.host import HostFiles
from collector.kernel.feed import FeedState, Place, load_place, save_place
from collector.kernel.kmsg import KmsgFeed
from collector.kernel.log import KernelLog, open_kernel_log
from collector.kernel.settings import KernelLogSettings
from collector.kernel.tail import FileFeed

NOW = 1_790_000_000_000
UPTIME = 1000.0


def line(code: int, bus: str = "41") -> str:
    return f"NVRM: Xid (PCI:0000:{bus}:00): {code}, pid=7, name=trainer, Ch 4\n"


def dated(code: int, age_seconds: float) -> str:
    return f"[{UPTIME - age_seconds:.6f}] {line(code)}"


@pytest.fixture
def host(tmp_path: Path) -> HostFiles:
    uptime = tmp_path / "uptime"
    uptime.write_text(f"{UPTIME} 1.0\n")
    boot = tmp_path / "boot_id"
    boot.write_text("boot-1\n")
    return HostFiles(uptime=uptime, boot_id=boot)


@dataclass
class Bench:
    """A log file and its reader, which may be ended and begun anew."""

    log: Path
    host: HostFiles
    settings: KernelLogSettings
    now: int = NOW
    opened: list[KernelLog] = field(default_factory=list)

    def start(self) -> KernelLog:
        self.opened.append(open_kernel_log(self.settings, self.host))
        return self.opened[-1]

    def write(self, text: str) -> None:
        with self.log.open("a") as file:
            file.write(text)

    def hear(self, source: KernelLog, polls: int = 3) -> list[int | None]:
        """Poll some times, as the agent does, and return the codes."""
        found = []
        for _ in range(polls):
            self.now += 250
            found += source.poll(self.now)
            source.settle()
        return [event.xid for event in found for _ in range(event.count)]


@pytest.fixture
def bench(tmp_path: Path, host: HostFiles) -> Iterator[Bench]:
    log = tmp_path / "kern.log"
    settings = KernelLogSettings(path=log, place=tmp_path / "kernel.json", timezone="UTC")
    made = Bench(log, host, settings)
    yield made
    for source in made.opened:
        source.close()


def test_new_lines_are_heard_and_foreign_ones_passed_over(bench: Bench) -> None:
    bench.log.write_text("Jan  6 10:00:00 node7 systemd[1]: Started.\n")
    source = bench.start()
    assert bench.hear(source) == []
    bench.write("hello\n" + line(79) + "\x00\xff\n" + line(43))
    assert bench.hear(source) == [79, 43]
    assert source.health()["state"] == "reading"


def test_a_line_without_its_end_waits_for_the_rest(bench: Bench) -> None:
    bench.log.touch()
    source = bench.start()
    bench.hear(source)
    whole = line(119)
    bench.write(whole[:40])
    assert bench.hear(source) == []
    bench.write(whole[40:])
    assert bench.hear(source) == [119]


def test_at_first_sight_only_what_is_recent_counts(bench: Bench) -> None:
    bench.log.write_text(dated(48, 900) + line(62) + dated(79, 30))
    source = bench.start()
    assert bench.hear(source) == [79]


def test_what_is_written_after_the_opening_is_new_though_nothing_was_read_yet(
    bench: Bench,
) -> None:
    bench.log.write_text(line(62))  # without a time, and older than the reader
    source = bench.start()
    bench.write(line(79))
    assert bench.hear(source) == [79]


def test_a_line_half_written_at_the_opening_is_new(bench: Bench) -> None:
    whole = line(79)
    bench.log.write_text(line(62) + whole[:30])
    source = bench.start()
    assert bench.hear(source) == []
    bench.write(whole[30:])
    assert bench.hear(source) == [79]


def test_a_log_begun_anew_before_the_first_reading_is_new(bench: Bench) -> None:
    bench.log.write_text(line(62) * 3)
    source = bench.start()
    bench.log.unlink()
    bench.log.write_text(line(79))
    assert bench.hear(source) == [79]


def test_a_restart_goes_on_where_it_stopped(bench: Bench) -> None:
    bench.log.touch()
    first = bench.start()
    bench.hear(first)
    bench.write(line(79))
    assert bench.hear(first) == [79]
    first.close()
    bench.write(line(48))  # while nobody read, and without a time
    assert bench.hear(bench.start()) == [48]


def test_an_end_without_goodbye_repeats_no_event(bench: Bench) -> None:
    bench.log.touch()
    first = bench.start()
    bench.hear(first)
    bench.write(line(79))
    assert bench.hear(first) == [79]
    bench.write(line(48))
    assert bench.hear(bench.start()) == [48]  # the first one was never closed


def test_rotation_loses_no_line(bench: Bench) -> None:
    bench.log.touch()
    source = bench.start()
    bench.hear(source)
    bench.write(line(79))
    bench.log.rename(bench.log.with_name("kern.log.1"))
    with bench.log.with_name("kern.log.1").open("a") as old:
        old.write(line(48))
    assert bench.hear(source) == [79, 48]  # and no new file as yet
    bench.log.write_text(line(62))
    assert bench.hear(source) == [62]


def test_rotation_between_two_starts_loses_no_line(bench: Bench) -> None:
    bench.log.touch()
    first = bench.start()
    bench.hear(first)
    bench.write(line(79))
    bench.hear(first)
    first.close()
    bench.write(line(48))
    bench.log.rename(bench.log.with_name("kern.log.1"))
    bench.log.write_text(line(62))
    assert bench.hear(bench.start(), polls=4) == [48, 62]


def test_a_file_cut_in_place_is_read_from_its_beginning(bench: Bench) -> None:
    bench.log.write_text(dated(79, 5) * 3)
    source = bench.start()
    assert bench.hear(source) == [79] * 3
    bench.log.write_text(line(48))
    assert bench.hear(source) == [48]


def test_a_log_that_comes_later_is_read_from_its_beginning(bench: Bench) -> None:
    source = bench.start()
    assert bench.hear(source) == []
    health = source.health()
    assert health["state"] == "missing"
    assert "collector.kernel.path" in str(health["detail"])
    bench.log.write_text(line(79))
    assert bench.hear(source, polls=25) == [79]
    assert source.health()["state"] == "reading"


def test_an_endless_line_is_passed_over_and_counted(bench: Bench) -> None:
    bench.log.touch()
    source = bench.start()
    bench.hear(source)
    bench.write("x" * 200_000)
    bench.hear(source)
    bench.write("NVRM: Xid (PCI:0000:41:00): 79\n" + line(48))
    assert bench.hear(source) == [48]
    assert source.health()["lost"] == 1


def test_a_cut_line_is_counted_and_the_next_one_heard(bench: Bench) -> None:
    bench.log.touch()
    source = bench.start()
    bench.hear(source)
    bench.write("NVRM: Xid (PCI:0000:4\n" + line(48))
    assert bench.hear(source) == [48]
    assert source.health()["malformed"] == 1


def test_the_message_without_a_number_beside_xid_79_is_the_same_fall(bench: Bench) -> None:
    bench.log.touch()
    source = bench.start()
    bench.hear(source)
    bench.write(line(79) + "NVRM: GPU 0000:41:00.0: GPU has fallen off the bus.\n")
    assert [event.kind for event in source.poll(NOW)] == ["xid"]
    bench.write("NVRM: GPU 0000:42:00.0: GPU has fallen off the bus.\n")
    (event,) = source.poll(NOW)
    assert (event.kind, event.pci) == ("kernel", "0000:42:00")


def test_link_errors_that_differ_in_gravity_are_not_joined(bench: Bench) -> None:
    bench.log.touch()
    source = bench.start()
    bench.hear(source)
    text = "NVRM: Xid (PCI:0000:04:00): 145, RLW_REMAP {} XC0 i0 Link 00 (0x4)\n"
    bench.write(text.format("Nonfatal") * 3 + text.format("Fatal"))
    assert [event.count for event in source.poll(NOW)] == [3, 1]


def test_a_file_that_may_not_be_read_is_a_state_with_words_and_is_tried_again(
    bench: Bench,
) -> None:
    refusing = True

    def open_log(path: Path) -> BinaryIO:
        if refusing:
            raise PermissionError(13, "denied")
        return path.open("rb", buffering=0)

    bench.log.write_text(dated(79, 5))
    source = KernelLog(FileFeed(bench.log, open_log=open_log), host=bench.host)
    bench.opened.append(source)
    assert bench.hear(source) == []
    health = source.health()
    assert health["state"] == "no_permission"
    assert "group" in str(health["detail"])
    refusing = False
    assert bench.hear(source, polls=25) == [79]
    assert source.health()["state"] == "reading"


def test_a_place_that_makes_no_sense_is_no_place(tmp_path: Path) -> None:
    path = tmp_path / "kernel.json"
    assert load_place(path) is None
    for text in ("", "{", "[]", '{"path": 1}', "\x00"):
        path.write_text(text)
        assert load_place(path) is None
    kept = Place(path="/dev/kmsg", boot="b", seq=7)
    save_place(path, kept)
    assert load_place(path) == kept


def test_a_place_that_cannot_be_kept_stops_nothing(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "full").write_text("a file, no folder")
    bench.settings = bench.settings.model_copy(update={"place": tmp_path / "full" / "kernel.json"})
    bench.log.touch()
    source = bench.start()
    bench.hear(source)
    bench.write(line(79))
    assert bench.hear(source) == [79]


# -- the device -------------------------------------------------------------------------------


class Ring:
    """A stand-in for /dev/kmsg: one datagram per record, as one read gives one record."""

    def __init__(self) -> None:
        self.kernel, self.reader = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.reader.setblocking(False)

    def open(self) -> int:
        return os.dup(self.reader.fileno())

    def say(self, seq: int, text: str, *, priority: int = 4, at: float = UPTIME) -> None:
        self.kernel.send(f"{priority},{seq},{round(at * 1e6)},-;{text.rstrip()}\n".encode())

    def close(self) -> None:
        self.kernel.close()
        self.reader.close()


@pytest.fixture
def ring() -> Iterator[Ring]:
    made = Ring()
    yield made
    made.close()


KMSG = Path("/dev/kmsg")


def device_log(ring: Ring, host: HostFiles, place: Place | None = None) -> KernelLog:
    feed = KmsgFeed(KMSG, boot_id="boot-1", place=place, open_log=ring.open)
    return KernelLog(feed, host=host)


def test_records_carry_the_time_of_the_kernel(ring: Ring, host: HostFiles) -> None:
    ring.say(1, line(48), at=UPTIME - 700)  # older than what counts at first sight
    ring.say(2, line(79), at=UPTIME - 5)
    source = device_log(ring, host)
    (event,) = source.poll(NOW)
    assert (event.xid, event.ts) == (79, NOW - 5000)
    ring.say(3, line(62))
    assert [event.xid for event in source.poll(NOW + 250)] == [62]
    source.close()


def test_what_a_user_writes_into_the_ring_is_foreign(ring: Ring, host: HostFiles) -> None:
    source = device_log(ring, host)
    ring.say(1, line(79), priority=12)
    assert source.poll(NOW) == []
    source.close()


def test_after_a_restart_in_the_same_boot_the_ring_is_not_heard_twice(
    ring: Ring, host: HostFiles
) -> None:
    kept = Place(path=str(KMSG), boot="boot-1", seq=5)
    for seq, code in ((4, 48), (5, 79), (6, 62)):
        ring.say(seq, line(code), at=UPTIME - 900)
    source = device_log(ring, host, kept)
    assert [event.xid for event in source.poll(NOW)] == [62]
    source.close()


def test_after_a_reboot_the_numbers_begin_anew(ring: Ring, host: HostFiles) -> None:
    kept = Place(path=str(KMSG), boot="boot-0", seq=900)
    ring.say(3, line(79), at=UPTIME - 5)
    source = device_log(ring, host, kept)
    assert [event.xid for event in source.poll(NOW)] == [79]
    source.close()


@pytest.mark.parametrize(
    ("error", "state", "words"),
    [
        (PermissionError(1, "denied"), FeedState.NO_PERMISSION, "CAP_SYSLOG"),
        (FileNotFoundError(2, "none"), FeedState.MISSING, "collector.kernel.path"),
        (OSError(5, "input/output error"), FeedState.FAILED, "cannot be opened"),
    ],
)
def test_a_device_that_cannot_be_opened_is_a_state_with_words(
    ring: Ring, host: HostFiles, error: OSError, state: FeedState, words: str
) -> None:
    refusing = [error]

    def open_log() -> int:
        if refusing:
            raise refusing[0]
        return ring.open()

    source = KernelLog(KmsgFeed(KMSG, boot_id="b", open_log=open_log), host=host)
    assert source.poll(NOW) == []
    assert source.health()["state"] == state
    assert words in str(source.health()["detail"])
    refusing.clear()
    ring.say(1, line(79))
    heard = [event.xid for _ in range(300) for event in source.poll(NOW)]
    assert heard == [79]
    assert source.health()["state"] == "reading"
    source.close()
