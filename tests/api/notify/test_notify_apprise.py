"""The type apprise: the real package to a real receiver, and what it cannot give away."""

from __future__ import annotations

import logging
import sys
from typing import Any

import orjson
import pytest

from api.endpointediting import EndpointInvalidError, _settings
from api.endpoints import EndpointSettings
from api.notify.adapters.apprise import AppriseChannel
from api.notify.base import Notice
from api.notify.channel import channel_of
from api.notify.retry import Verdict
from api.notify.sender import HttpSender
from api.roster import Entry
from api.routes.endpointviews import endpoint_json
from api.security.principal import LOCAL
from api.settings import DeliverySettings
from schemas.codec import encode
from schemas.errors import ConfigError

# The package imports a module that Python is about to drop; it has a stand-in for it.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")
TOKEN = "very-secret-path"


def channel_to(url: str) -> AppriseChannel:
    endpoint = EndpointSettings(name="rest", type="apprise", url=url)
    sender = HttpSender(connect_seconds=2, total_seconds=2)
    found = channel_of(endpoint, sender, DeliverySettings(connect_seconds=2, total_seconds=2))
    assert isinstance(found, AppriseChannel)
    return found


def test_a_receiver_is_told_by_the_package_itself(receiver: Any, make_event: Any) -> None:
    address = receiver.url.replace("http://", "json://")
    event = orjson.loads(encode(make_event(severity="critical")))
    outcome = channel_to(address).deliver(Notice(webhook_id="w", attempt=1, event=event))
    assert outcome.verdict is Verdict.DELIVERED
    (request,) = receiver.received
    said = orjson.loads(request.body)
    assert said["title"].startswith("[CRITICAL]")
    assert "hotter than its 7 peers" in said["message"]
    assert said["type"] == "failure"
    assert request.path.endswith(TOKEN)


@pytest.mark.parametrize("answer", [500, 403, (302, {"location": "/elsewhere"}), "close"])
def test_a_no_of_whatever_kind_is_tried_again_and_nothing_is_followed(
    receiver: Any, make_event: Any, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.script.append(answer)
    event = orjson.loads(encode(make_event()))
    with caplog.at_level(logging.DEBUG):
        outcome = channel_to(receiver.url.replace("http://", "json://")).deliver(
            Notice(webhook_id="w", attempt=1, event=event)
        )
    assert outcome.verdict is Verdict.TRANSIENT
    assert outcome.error == "apprise says that it could not be sent"
    assert len(receiver.received) == 1
    assert not [one for one in caplog.records if one.name.startswith("apprise")]


def test_an_address_that_it_does_not_know_is_refused_without_being_shown() -> None:
    with pytest.raises(ConfigError, match="cannot read the address of endpoint 'rest'") as caught:
        channel_to(f"unheard-of://{TOKEN}/x")
    assert TOKEN not in str(caught.value)
    for wrong in ("no-address", "json://a,json://b", "json://a b"):
        with pytest.raises(ValueError, match="is one, such as") as refused:
            EndpointSettings(name="rest", type="apprise", url=wrong)
        assert wrong not in str(refused.value)


def test_not_even_what_stands_where_the_host_does_is_shown() -> None:
    endpoint = EndpointSettings(name="rest", type="apprise", url=f"tgram://{TOKEN}/1")
    assert TOKEN not in str(endpoint_json(Entry(settings=endpoint), {}, {}, LOCAL))


def test_none_is_made_over_rest() -> None:
    with pytest.raises(EndpointInvalidError, match="settings file only"):
        _settings({"name": "rest", "type": "apprise", "url": "json://127.0.0.1"})


def test_without_the_package_the_settings_are_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)  # as if it were not installed
    with pytest.raises(ConfigError, match="not installed: pip install"):
        channel_to("json://127.0.0.1/x")
