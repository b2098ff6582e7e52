"""Groups of GPUs that do the same work."""

from __future__ import annotations

import numpy as np
import pytest

from detector.frame import Frame
from detector.stats.groups import groups_of

EVERYBODY = np.ones(4, dtype=bool)


def frame_of(**metrics: list[float]) -> Frame:
    return Frame.of(metrics=metrics, ts=[0] * 4)


def test_a_job_is_a_group_whatever_its_members_hold() -> None:
    frame = frame_of(memory_used_bytes=[70e9, 20e9, 3e6, np.nan])
    frame.job[:] = 7
    assert len(set(groups_of(frame, EVERYBODY).number.tolist())) == 1


@pytest.mark.parametrize("what", ["model", "job", "limit", "node"])
def test_another_model_job_limit_or_node_is_another_group(what: str) -> None:
    limits = [700.0, 700.0, 500.0, 500.0] if what == "limit" else [700.0] * 4
    frame = frame_of(power_limit_watts=limits)
    frame.job[:] = 7
    if what == "node":
        frame.blocks = np.array([[0, 1], [2, 3]])
    elif what != "limit":
        getattr(frame, what)[2:] = 9
    number = groups_of(frame, EVERYBODY).number.tolist()
    assert number[0] == number[1] != number[2] == number[3]


def test_without_a_name_nothing_known_is_no_group() -> None:
    """Not all GPUs of a host: what holds no memory, or is not known to, stands alone."""
    used = [np.nan, 3e6, 500e6, np.nan]
    assert groups_of(frame_of(memory_used_bytes=used), EVERYBODY).number.tolist() == [-1] * 4


def test_medians_leave_out_what_is_missing_or_not_in_use() -> None:
    frame = frame_of()
    frame.job[:] = 7
    groups = groups_of(frame, EVERYBODY)
    use = np.array([True, True, True, False])
    median, count = groups.median(np.array([1.0, 3.0, np.nan, 50.0]), use)
    assert median.tolist() == [2.0] * 4
    assert count.tolist() == [2] * 4
    nothing, none = groups.median(np.full(4, np.nan), use)
    assert np.isnan(nothing).all()
    assert none.tolist() == [0] * 4
