"""The rivals of the detection benchmark do what their names say, and all get the same budget."""

from __future__ import annotations

import numpy as np
import pytest

from foreshock.bench import physics
from foreshock.bench.compare import all_rivals, tune
from foreshock.bench.faults import FAULTS
from foreshock.bench.happenings import Placed, Truth
from foreshock.bench.memory import hold
from foreshock.bench.ranges import TUNE
from foreshock.bench.rivals.base import onsets
from foreshock.bench.rivals.chance import Null, Random
from foreshock.bench.rivals.clusters import KMeans
from foreshock.bench.rivals.ewma import Ewma
from foreshock.bench.rivals.forecast import PredictLinear
from foreshock.bench.rivals.static import StaticThresholds
from foreshock.bench.scoring import Score, judge
from foreshock.bench.workloads import fill
from foreshock.bench.world import CAPACITY, GIB, World

SECONDS = 900


def world(fault: str | None = None, magnitude: float = 1.0) -> World:
    """One node that trains; GPU 3 is hit after ten minutes."""
    made = World(side=TUNE, seed=3, first_node=0, nodes=1, ticks=SECONDS, dt=1.0)
    rng = TUNE.rng(3, 1)
    fill(made, 0, "train", rng)
    hold(made, 0, "plateau", rng)
    if fault is not None:
        placed = Placed(name=fault, node=0, gpu=3, start=600, end=890, magnitude=magnitude)
        FAULTS[fault].inject(made, placed, rng)
    physics.run(made)
    return made


def test_everybody_may_try_as_many_settings() -> None:
    sizes = {rival.name: len(rival.settings) for rival in all_rivals() if rival.name != "null"}
    assert set(sizes.values()) == {12}


def test_tuning_takes_the_best_recall_among_the_quiet_settings_and_logs_all() -> None:
    hit = Truth(
        name="hang", magnitude=1.0, node=0, gpus=(3,), start=600.0, end=890.0, spec=FAULTS["hang"]
    )
    said = Random().alarms(world(), None, {"per_gpu_day": 3000.0})
    assert said
    loud = judge(said, [hit], 100.0)
    rival = Random()
    parts = [[[loud] + [Score(gpu_days=100.0) for _ in rival.settings[1:]]]]
    tuned, log = tune([rival], parts)
    assert len(log) == len(rival.settings)
    assert tuned[0].setting == rival.settings[0 if loud.false_rate <= 0.1 else 1]


def test_null_says_nothing_and_random_says_the_same_twice() -> None:
    made = world()
    assert Null().alarms(made, None, {}) == []
    setting = {"per_gpu_day": 500.0}
    assert Random().alarms(made, None, setting) == Random().alarms(made, None, setting)


@pytest.mark.parametrize(
    ("fault", "magnitude", "family"),
    [
        ("gpu_lost", 1.0, "gpu_lost"),
        ("xid_fatal", 79.0, "hardware_error"),
        ("pcie_width", 4.0, "hardware_error"),
        ("ecc_uncorrected", 1.0, "hardware_error"),
    ],
)
def test_static_thresholds_find_the_facts(fault: str, magnitude: float, family: str) -> None:
    rival, made = StaticThresholds(), world(fault, magnitude)
    found = rival.alarms(made, rival.prepare(made), rival.settings[0])
    assert (family, 3) in {(alarm.family, alarm.gpu) for alarm in found}


def test_ewma_sees_a_hang_and_not_steady_work() -> None:
    rival, made = Ewma(6.0), world("hang")
    found = rival.alarms(made, rival.prepare(made), rival.settings[0])
    assert any(alarm.gpu == 3 and 600.0 <= alarm.first(2) <= 620.0 for alarm in found)


def test_predict_linear_forecasts_a_leak_and_is_silent_on_a_plateau() -> None:
    rival, made = PredictLinear(), world()
    setting = {"window": 300.0, "hold": 0.0}
    assert rival.alarms(made, rival.prepare(made), setting) == []
    used = made.readings["memory_used_bytes"]
    used[:, 3] = CAPACITY - 12 * GIB + np.arange(SECONDS) * 20 * GIB / 3600.0
    found = rival.alarms(made, rival.prepare(made), setting)
    assert {alarm.gpu for alarm in found} == {3}


def test_k_means_finds_a_restless_metric_odd() -> None:
    rival, made = KMeans(), world()
    quiet = rival.prepare(made)[500:].mean()
    for name in ("power_watts", "sm_clock_hertz", "temperature_celsius"):
        made.readings[name][600:, 3] *= 1.0 + 0.3 * (np.arange(SECONDS - 600) % 2)
    odd = rival.prepare(made)[620:, 3].mean()
    assert quiet < 0.05
    assert odd > 0.3


def test_a_flag_must_hold_and_must_have_gone_before_it_counts_again() -> None:
    flags = np.zeros((200, 1), dtype=bool)
    flags[10:13] = flags[40:60] = flags[65:70] = flags[150:160] = True
    assert [onset.tick for onset in onsets(flags, 1.0, hold=5.0)] == [44, 154]
