"""docs/alerts.md holds what is true: its examples are settings, its tables match the code."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from api.endpoints import EndpointType
from api.settings import ApiSettings

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "alerts.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_every_example_is_a_valid_endpoint(number: int) -> None:
    settings = ApiSettings(**tomllib.loads(EXAMPLES[number])["api"])
    assert settings.endpoints


def test_every_kind_of_receiver_has_an_example_and_a_row() -> None:
    shown = {
        endpoint.type
        for text in EXAMPLES
        for endpoint in ApiSettings(**tomllib.loads(text)["api"]).endpoints
    }
    assert shown == set(get_args(EndpointType))
    for kind in shown:
        assert f"| `{kind}` |" in PAGE
