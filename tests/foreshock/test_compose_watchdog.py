"""The api's signs of life depend on whatever runs beside it in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.service import ApiService
from foreshock.compose import SERVICES, composed
from foreshock.config import Settings


@pytest.mark.parametrize(
    ("names", "others"), [(tuple(SERVICES), {"collector", "detector"}), (("api",), set())]
)
def test_all_that_runs_beside_the_api_must_be_well_for_it_to_give_a_sign_of_life(
    tmp_path: Path, names: tuple[str, ...], others: set[str]
) -> None:
    settings = Settings.model_validate(
        {
            "data_dir": tmp_path,
            "collector": {"source": "simulated", "port": 0},
            "detector": {"port": 0},
            "api": {"port": 0},
        }
    )
    with composed(settings, names) as services:
        (api,) = (one for one in services if isinstance(one, ApiService))
        asked = {one.name: one.health for one in services}
        assert set(api._others) == {asked[name] for name in others}
        assert api._all_health()["ok"] is False, "nothing runs yet"
