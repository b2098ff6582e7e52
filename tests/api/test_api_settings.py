"""Settings refuse what cannot work, and never print a secret."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from api.settings import ApiSettings, EndpointSettings
from schemas.errors import ConfigError


def endpoint(**changes: Any) -> EndpointSettings:
    fields = {"name": "noc", "url": "https://hooks.example/planted", "secret": None}
    return EndpointSettings(**(fields | changes))


@pytest.mark.parametrize(
    "fault",
    [
        {"secret": "planted"},
        {"secret": "whsec_planted!"},
        {"secret": "whsec_" + base64.b64encode(b"planted").decode()},
        {"secret": None},
        {"url": "ftp://planted.example"},
        {"url": "planted"},
        {"url": "https://user:planted@hooks.example/"},
        {"type": "planted"},
        {"unknown": "planted"},
        {"name": "No Spaces"},
    ],
)
def test_a_faulty_endpoint_is_refused_without_repeating_it(
    secret: str, fault: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError) as caught:
        endpoint(**({"secret": secret} | fault))
    assert "planted" not in str(caught.value)


def test_a_secret_can_lie_in_a_file(tmp_path: Path, secret: str) -> None:
    path = tmp_path / "secret"
    path.write_text(secret + "\n")
    assert endpoint(secret_file=path).signing_secret() == secret


def test_a_secret_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    with pytest.raises(ConfigError, match="No such file"):
        endpoint(secret_file=path).signing_secret()
    path.write_text("planted")
    with pytest.raises(ConfigError, match="no whsec_ secret") as caught:
        endpoint(secret_file=path).signing_secret()
    assert "planted" not in str(caught.value)


def test_printing_the_settings_shows_no_secret(secret: str) -> None:
    settings = ApiSettings(api_key="planted-planted-planted", endpoints=(endpoint(secret=secret),))
    for text in (repr(settings), str(settings), settings.model_dump_json()):
        assert "planted" not in text
        assert secret not in text


def test_two_endpoints_cannot_share_a_name(secret: str) -> None:
    with pytest.raises(ValidationError, match="same name"):
        ApiSettings(endpoints=(endpoint(secret=secret), endpoint(secret=secret)))


def test_the_bound_address_may_be_called_by_its_name() -> None:
    settings = ApiSettings(host="10.0.0.5", allowed_hosts=("Alerts.Example",))
    assert settings.host_names() == {"10.0.0.5", "alerts.example"}
    assert ApiSettings(host="::", allowed_hosts=("a",)).host_names() == {"a"}
