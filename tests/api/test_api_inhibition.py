"""Looking a cause up among near alerts finds the one that asking every alert would."""

from __future__ import annotations

import random

import pytest

from api.inhibition import AlertFacts, Inhibition, explains

FAULTS = (
    ("gpu", "gpu_lost", "lost"),
    ("gpu", "thermal_fault", "peer_outlier"),
    ("gpu", "throttling", "hw_thermal"),
    ("node", "thermal_fault", "node_airflow"),
    ("node", "telemetry", "node_silent"),
    ("node", "telemetry", "collector_blind"),
    ("rack", "throttling", "power_brake"),
    ("node", "throttling", "power_brake"),
    ("job", "load_imbalance", "straggler"),
    ("gpu", "inefficiency", "idle_allocated"),
)


def alerts(seed: int, number: int = 80) -> list[AlertFacts]:
    chance = random.Random(seed)
    found: list[AlertFacts] = []
    for place in range(number):
        scope, family, kind = chance.choice(FAULTS)
        node = f"n{chance.randrange(4)}"
        found.append(
            AlertFacts(
                alert_id=f"a{place}",
                fingerprint=f"f{place}",
                state="firing",
                rank=chance.randint(1, 3),
                family=family,
                kind=kind,
                scope=scope,
                node=node if scope in {"gpu", "node"} else None,
                gpu_uuid=f"{node}-g{chance.randrange(3)}" if scope == "gpu" else None,
                job=chance.choice([None, "j1", "j2"]),
                rack=chance.choice([None, "r1", "r2"]),
                caused_by=f"f{chance.randrange(number)}" if chance.random() < 0.2 else None,
                started_ms=chance.randrange(1000),
            )
        )
    return found


@pytest.mark.parametrize("seed", range(20))
def test_a_cause_is_found_as_if_every_alert_were_asked(seed: int) -> None:
    everything = alerts(seed)
    gravest_first = sorted(everything, key=lambda a: (-a.rank, a.started_ms, a.alert_id))
    index = Inhibition(everything)
    explained = 0
    for symptom in everything:
        asked = (root.alert_id for root in gravest_first if explains(root, symptom))
        expected = next(asked, None)
        assert index.root_of(symptom) == expected
        explained += expected is not None
    assert explained > 5
