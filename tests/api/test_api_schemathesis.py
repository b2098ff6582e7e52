"""Acceptance 19: whatever is sent to any address, alone or in sequence, the server never fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis.checks import positive_data_acceptance

from bus.memory import MemoryBus

#: Answers that never end are tested by hand.
_ENDLESS = "/v1/stream"
_FEW = hypothesis.settings(
    max_examples=6,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
    database=None,
)


@pytest.fixture(params=["sqlite", "postgresql"])
def server(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    running_api: Any,
    make_event: Any,
    wait_until: Any,
) -> Iterator[Any]:
    """A running api with some alerts, whose rate limit is out of the way."""
    url = None
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres").create()
    bus = MemoryBus()
    with running_api(tmp_path, bus, database=url, requests_per_second=1e6) as running:
        running.send(*(make_event(gpu=f"GPU-{n}") for n in range(3)))
        wait_until(lambda: len(running.alerts()) == 3)
        yield running
    bus.close()
    if url is not None:
        request.getfixturevalue("postgres").drop(url)


def schema_of(server: Any) -> Any:
    address = str(server.client.base_url).rstrip("/")
    return schemathesis.openapi.from_url(f"{address}/openapi.json").exclude(path=_ENDLESS)


def test_acceptance_19_no_address_answers_with_a_server_error(server: Any) -> None:
    schema = schema_of(server)
    tried = 0
    for result in schema.get_all_operations():
        operation = result.ok()

        @_FEW
        @hypothesis.given(case=operation.as_strategy())
        def probe(case: Any) -> None:
            answer = case.call()
            assert answer.status_code < 500, (case.method, case.path, answer.text)

        probe()
        tried += 1
    assert tried > 30


@pytest.mark.slow
def test_acceptance_19_no_sequence_of_requests_makes_the_server_fail(server: Any) -> None:
    class Machine(schema_of(server).as_state_machine()):  # type: ignore[misc]  # made at run time
        def validate_response(self, response: Any, case: Any, **more: Any) -> None:
            # No description can say which cursor, expression or routing tree makes sense: that such
            # words are refused is meant.
            case.validate_response(response, excluded_checks=[positive_data_acceptance])

    Machine.run(
        settings=hypothesis.settings(
            max_examples=25,
            stateful_step_count=12,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        )
    )
