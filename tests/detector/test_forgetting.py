"""Nodes, partitions and jobs that are gone for good leave nothing behind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import orjson
from telemetry import T0

from detector.engine import Engine
from detector.registry import build
from schemas.sample import GpuInventory, Inventory, JobRef, NodeSample

HOUR_MS = 3_600_000


def sample(node: str, seq: int, ts: int, *gpus: str, job: str = "j") -> NodeSample:
    return NodeSample(
        node=node,
        boot_id="boot",
        seq=seq,
        ts=(ts,),
        gpu=gpus,
        m={"power_watts": [400.0] * len(gpus)},
        jobs=(JobRef(gpus=gpus, job=job),) if gpus else (),
        inventory=Inventory(
            gpus=tuple(
                GpuInventory(gpu=g, model="H100", parent="GPU-1" if g.startswith("MIG-") else None)
                for g in gpus
            )
        ),
    )


def engine() -> Engine:
    chosen = [d for d in build() if d.family in {"gpu_lost", "telemetry", "load_imbalance"}]
    return Engine(chosen, topic="t", partition=0, series_minutes=1.0)


def restarted(subject: Engine) -> Engine:
    facts, arrays = subject.dump()
    fresh = engine()
    assert (
        fresh.load(orjson.loads(orjson.dumps(facts, option=orjson.OPT_NON_STR_KEYS)), arrays) == []
    )
    return fresh


def test_a_node_that_is_gone_ends_what_is_open_and_its_rows_go_to_others() -> None:
    subject = engine()
    for number in range(3):
        at = T0 + number * 1000
        subject.process([sample("old", number, at, "GPU-1", "GPU-2", job="first")], [at])
    (silent,) = subject.silence(T0 + 200_000)
    assert silent.kind == "node_silent"
    assert subject.forget(T0 + HOUR_MS, hours=2.0) == []
    ended = subject.forget(T0 + 3 * HOUR_MS, hours=2.0)
    assert [(one.kind, one.state, one.end_reason) for one in ended] == [
        ("node_silent", "resolved", "forgotten")
    ]
    assert ended[0].alert_id == silent.alert_id
    assert subject.silence(T0 + 4 * HOUR_MS) == []
    subject = restarted(subject)
    at = T0 + 5 * HOUR_MS
    subject.process([sample("new", 0, at, "GPU-3", "GPU-4", job="second")], [at])
    assert (len(subject.fleet.nodes), len(subject.fleet.gpus)) == (1, 2)
    assert "first" not in str(subject.dump()[0])
    assert subject.fleet.find("GPU-1", 0, None) is None


def test_a_node_that_comes_back_after_all_is_a_new_one() -> None:
    subject = engine()
    subject.process([sample("n", 7, T0, "GPU-1")], [T0])
    subject.forget(T0 + 3 * HOUR_MS, hours=2.0)
    at = T0 + 4 * HOUR_MS
    outcome = subject.process([sample("n", 3, at, "GPU-1")], [at])
    assert outcome.counts["accepted"] == 1
    assert outcome.alerts == []


def test_partitions_that_are_made_anew_every_day_do_not_fill_the_tables() -> None:
    subject, seq = engine(), 0
    for day in range(40):
        made = tuple(f"MIG-{day}-{part}" for part in range(7))
        for minute in range(3):
            at = T0 + day * 24 * HOUR_MS + minute * 60_000
            one = sample("n", seq, at, "GPU-1", *made, job=f"job-{day}")
            subject.process([replace(one, parents=dict.fromkeys(made, "GPU-1"))], [at])
            seq += 1
        subject.forget(at, hours=30.0)
    assert len(subject.fleet.gpus) < 30
    assert len(subject.fleet.jobs) < 5
    known = subject.dump()[0]
    assert "job-2" not in str(known["jobs"])
    whole = subject.fleet.find("GPU-1", 0, None)
    assert whole is not None
    assert subject.fleet.gpus[whole].node == "n"


def test_forgetting_changes_nothing_of_the_others() -> None:
    plain, forgetful = engine(), engine()
    said: dict[str, list[object]] = {"plain": [], "forgetful": []}
    for subject, name in ((plain, "plain"), (forgetful, "forgetful")):
        subject.process([sample("gone", 0, T0, "GPU-a", "GPU-b")], [T0])
        for number in range(60):
            at = T0 + 10 * HOUR_MS + number * 1000
            lost = {"power_watts": {"0": "error:15"}} if number > 30 else {}
            one = replace(sample("here", number, at, "GPU-1", "GPU-2"), status=lost)
            outcome = subject.process([one], [at])
            said[name] += [*outcome.alerts, *outcome.windows]
            if subject is forgetful:
                said[name] += subject.forget(at, hours=5.0)
    assert said["plain"] == said["forgetful"]
    assert len(forgetful.fleet.nodes) == 2
    assert np.isfinite(forgetful.dump()[1]["windows/sum"]).all()
