"""One fault told by the driver and by the kernel log is one event, whoever speaks first."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from collector.echoes import ECHO_MS, EXPORTER_ECHO_MS, Echoes, Origin, placed_events
from schemas.sample import GpuInventory, Inventory, SampleEvent

KERNEL, DRIVER = Origin.KERNEL, Origin.DRIVER
NOW = 1_790_000_000_000


def xid(code: int = 79, *, gpu: str | None = "GPU-1", count: int = 1) -> SampleEvent:
    return SampleEvent(ts=NOW, kind="xid", gpu=gpu, xid=code, count=count)


def counts(events: Sequence[SampleEvent]) -> list[int]:
    return [event.count for event in events]


@pytest.mark.parametrize(("first", "second"), [(KERNEL, DRIVER), (DRIVER, KERNEL)])
def test_the_second_telling_of_an_xid_is_left_out_in_either_order(
    first: Origin, second: Origin
) -> None:
    echoes = Echoes()
    assert counts(echoes.admit(first, [xid()], NOW)) == [1]
    assert echoes.admit(second, [xid()], NOW + 900) == ()
    assert counts(echoes.admit(first, [xid()], NOW + 1800)) == [1]


def test_a_side_that_speaks_alone_loses_nothing() -> None:
    echoes = Echoes()
    heard = [echoes.admit(KERNEL, [xid()], NOW + 100 * step) for step in range(20)]
    assert sum(len(events) for events in heard) == 20


def test_a_burst_told_by_both_keeps_the_greater_count() -> None:
    echoes = Echoes()
    first = echoes.admit(KERNEL, [xid(13, count=5)], NOW)
    second = echoes.admit(DRIVER, [xid(13, count=8)], NOW + 500)
    assert counts(first) + counts(second) == [5, 3]
    assert echoes.admit(KERNEL, [xid(13, count=3)], NOW + 600) == ()


def test_another_gpu_another_code_and_a_later_time_are_no_echo() -> None:
    echoes = Echoes()
    echoes.admit(KERNEL, [xid()], NOW)
    assert echoes.admit(DRIVER, [xid(gpu="GPU-2")], NOW)
    assert echoes.admit(DRIVER, [xid(48)], NOW)
    assert echoes.admit(DRIVER, [xid()], NOW + ECHO_MS + 1)


def test_what_is_no_xid_passes() -> None:
    echoes = Echoes()
    lost = SampleEvent(ts=NOW, kind="gpu_lost", gpu="GPU-1")
    assert echoes.admit(KERNEL, [lost], NOW) == (lost,)
    assert echoes.admit(DRIVER, [lost], NOW) == (lost,)


def test_an_address_becomes_the_gpu_that_stands_there_and_never_its_instance() -> None:
    inventory = Inventory(
        gpus=(
            GpuInventory(gpu="GPU-1", pci="00000000:41:00.0"),
            GpuInventory(gpu="MIG-1", pci="00000000:41:00.0", parent="GPU-1"),
            GpuInventory(gpu="GPU-2", pci=None),
        )
    )
    here = SampleEvent(ts=NOW, kind="xid", pci="0000:41:00", xid=94)
    away = SampleEvent(ts=NOW, kind="xid", pci="0000:42:00", xid=94)
    assert [event.gpu for event in placed_events([here, away], inventory)] == ["GPU-1", None]


def test_an_exporter_may_tell_half_a_minute_later() -> None:
    late = NOW + 40_000
    assert Echoes().admit(DRIVER, [xid()], NOW)
    for window, told in ((ECHO_MS, 1), (EXPORTER_ECHO_MS, 0)):
        echoes = Echoes(window)
        echoes.admit(KERNEL, [xid()], NOW)
        assert len(echoes.admit(DRIVER, [xid()], late)) == told
