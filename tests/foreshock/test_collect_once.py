"""``foreshock collect --once``: one reading for a person or a script, without a bus."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from foreshock.cli import app
from schemas.codec import decode_sample


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_once_as_json_is_a_message_and_the_numbers_of_the_machine() -> None:
    result = CliRunner().invoke(app, ["collect", "--once", "--json", "--source", "simulated"])
    assert result.exit_code == 0, result.output
    whole = json.loads(result.stdout)
    sample = decode_sample(json.dumps(whole["samples"][0]).encode())
    assert len(sample.gpu) == 8
    assert whole["node"]["memory_total_bytes"] > 0


def test_once_for_a_person_is_a_table() -> None:
    result = CliRunner().invoke(app, ["collect", "--once", "--source", "simulated"])
    assert result.exit_code == 0, result.output
    assert result.stdout.count("power_watts") >= 8
    assert "not offered here" in result.stdout


def test_where_no_gpu_can_be_read_the_reason_stands_there_and_the_code_is_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORESHOCK_COLLECTOR__DCGM__URL", "http://127.0.0.1:9/metrics")
    result = CliRunner().invoke(app, ["collect", "--once", "--source", "dcgm"])
    assert result.exit_code == 1
    assert "No GPU answers" in result.stdout


def test_json_without_once_is_refused() -> None:
    result = CliRunner().invoke(app, ["collect", "--json"])
    assert result.exit_code == 2
    assert "--once" in result.output
