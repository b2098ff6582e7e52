"""How many nodes at once are a fault of the fleet depends on how many there are."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from api.database import Database
from api.fleetsize import FleetSize
from api.grouping import Group, group_alerts
from api.inhibition import AlertFacts
from api.ledger import Ledger
from schemas.alert import AlertEvent


def hot(number: int) -> AlertFacts:
    """One of many nodes, each in a rack of its own, that grow hot in the same minute."""
    return AlertFacts(
        alert_id=f"a{number:03d}",
        fingerprint=f"f{number:03d}",
        state="firing",
        rank=2,
        family="thermal_fault",
        kind="node_airflow",
        scope="node",
        node=f"n{number}",
        rack=f"r{number}",
        started_ms=number * 100,
    )


def of_the_fleet(nodes: int, known_nodes: int) -> list[Group]:
    groups = group_alerts([hot(n) for n in range(nodes)], known_nodes)
    return [one for one in groups if one.by == "fleet"]


@pytest.mark.parametrize(
    ("known_nodes", "fewest"), [(0, 10), (20, 3), (50, 5), (100, 10), (995, 100)]
)
def test_a_tenth_of_the_nodes_is_the_fleet_and_three_at_least(
    known_nodes: int, fewest: int
) -> None:
    assert of_the_fleet(fewest - 1, known_nodes) == []
    (group,) = of_the_fleet(fewest, known_nodes)
    assert len(group.nodes) == fewest


def test_nodes_that_alerts_have_named_make_a_fleet_larger_never_smaller(
    database: Database, make_event: Callable[..., AlertEvent]
) -> None:
    def store(first: int, number: int) -> None:
        events = [make_event(node=f"n{n}", gpu=f"GPU-{n}") for n in range(first, first + number)]
        with database.write() as connection:
            Ledger().record_all(connection, events, 0)

    now_ms = [0]
    size = FleetSize(database, None, lambda: now_ms[0])
    store(0, 7)
    assert size.nodes() == 100, "three of seven are not all of a fleet of which nobody knows"
    store(7, 150)
    assert size.nodes() == 100, "counted once in five minutes"
    now_ms[0] = 300_000
    assert size.nodes() == 157
    assert FleetSize(database, 24, lambda: 0).nodes() == 24, "what the operator says holds"
