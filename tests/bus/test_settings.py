"""The settings refuse what they do not know, and explain every field."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from bus import BusSettings, KafkaSettings, SqliteSettings, open_bus
from bus.memory import MemoryBus
from schemas.errors import BusUnavailableError


@pytest.mark.parametrize("model", [BusSettings, KafkaSettings, SqliteSettings])
def test_every_field_says_what_it_is(model: type[BusSettings]) -> None:
    for name, field in model.model_fields.items():
        assert field.description, name
        assert not field.is_required(), name


def test_unknown_keys_and_bad_prefixes_are_refused() -> None:
    with pytest.raises(ValidationError, match="brokers"):
        BusSettings.model_validate({"kafka": {"brokers": "a:1"}})
    with pytest.raises(ValidationError, match="prefix"):
        BusSettings(prefix="a b/")


def test_memory_is_chosen_by_name_and_can_be_told_to_fail() -> None:
    bus = open_bus(BusSettings(transport="memory", prefix="p."))
    assert isinstance(bus, MemoryBus)
    bus.outage = "the broker is away"
    with pytest.raises(BusUnavailableError, match="the broker is away"):
        bus.check(1.0)
    reports = []
    writer = bus.publisher(client_id="w")
    writer.send("t", key=b"k", value=b"v", on_delivery=reports.append)
    writer.poll()
    assert [(r.value, r.error) for r in reports] == [(b"v", "the broker is away")]
