"""docs/api.md holds what is true: its example runs, its tables match the code."""

from __future__ import annotations

import re
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from api.notify.base import Notice
from api.notify.retry import Verdict, classify_status
from api.notify.webhook import WebhookAdapter
from api.settings import ApiSettings, DeliverySettings, secret_bytes
from schemas.alert import AlertEvent
from schemas.codec import encode

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found.group(1)


def test_the_verification_example_accepts_ours_and_refuses_others(
    make_event: Callable[..., AlertEvent], secret: str
) -> None:
    names: dict[str, Any] = {}
    exec(block("python"), names)  # noqa: S102 - our own page
    event = orjson.loads(encode(make_event()))
    now = time.time()
    adapter = WebhookAdapter(url="https://x.example/", keys=(secret_bytes(secret),))
    request = adapter.request(Notice(webhook_id="w", attempt=1, event=event), now_seconds=int(now))
    headers = dict(request.headers)
    assert names["accept"](secret, headers, request.body.decode())["data"] == event
    assert names["accept"](secret, headers, request.body.decode() + " ") is None
    assert names["accept"](secret, headers | {"webhook-signature": "junk"}, "{}") is None


def test_the_sample_settings_are_accepted() -> None:
    settings = ApiSettings(**tomllib.loads(block("toml"))["api"])
    assert settings.endpoints[0].name == "noc"


def test_the_schedule_in_words_is_the_schedule_in_force() -> None:
    waits = DeliverySettings().schedule_seconds[1:]
    units = {"s": 1, "min": 60, "h": 3600}
    text = re.search(r"again after (.*?) \(±", PAGE)
    assert text is not None
    said = [re.split(r"\s", part) for part in text.group(1).split(", ")]
    assert tuple(float(n) * units[u] for n, u in said) == waits


@pytest.mark.parametrize("code", [400, 401, 403, 404, 405, 413, 415, 422])
def test_the_permanent_answers_named_are_permanent(code: int) -> None:
    assert str(code) in PAGE
    assert classify_status(code) is Verdict.PERMANENT


def test_every_address_is_named(api: Any) -> None:
    for path in api.client.get("/openapi.json").json()["paths"]:
        assert path.replace("{alert_id}", "{id}") in PAGE


def test_every_sample_of_settings_is_accepted() -> None:
    samples = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert len(samples) > 1
    for sample in samples:
        ApiSettings(**tomllib.loads(sample)["api"])
