"""``foreshock bench detection``: its options, and what it says of a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from foreshock.bench.command import bench_detection
from foreshock.cli import app
from schemas.errors import ConfigError


def test_the_command_lists_its_options() -> None:
    shown = CliRunner().invoke(app, ["bench", "detection", "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    for option in ("--quick", "--seed", "--json", "--gpu-days", "--trials", "--recordings"):
        assert option in shown.output


def test_a_folder_without_recordings_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no folder timeseries"):
        bench_detection(
            quick=True,
            seed=1,
            trials=None,
            gpu_days=None,
            rivals=False,
            recordings=tmp_path,
            jobs=1,
            json_out=None,
            page_out=None,
        )
