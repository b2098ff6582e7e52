"""Settings: what wins, what is refused, and in which words."""

from __future__ import annotations

import os
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from foreshock.config import Settings, find_file, load
from foreshock.configtext import sample_toml, show_toml
from foreshock.settingstree import rows
from schemas.errors import ConfigError

SIGNING = "whsec_" + "A" * 32


def test_without_a_file_or_environment_everything_has_its_default(tmp_path: Path) -> None:
    loaded = load(environ={}, cwd=tmp_path)
    assert loaded.settings.bus.transport == "sqlite"
    assert loaded.settings.api.port == 8600
    assert loaded.settings.collector.port == 8601
    assert loaded.settings.detector.port == 8602
    assert loaded.settings.data_dir == Path.home() / ".local/share/foreshock"


def test_the_environment_overrides_the_file_and_the_file_the_default(
    toml: Callable[[str], Path], tmp_path: Path
) -> None:
    file = toml('log_level = "debug"\n[api]\nport = 1111\nbatch_size = 7\n')
    loaded = load(file, environ={"FORESHOCK_API__PORT": "2222"}, cwd=tmp_path)
    assert (loaded.settings.api.port, loaded.settings.api.batch_size) == (2222, 7)
    assert loaded.origins["api.port"] == "environment FORESHOCK_API__PORT"
    assert loaded.origins["api.batch_size"] == str(file)


def test_the_file_is_searched_in_a_fixed_order(tmp_path: Path) -> None:
    here, named, given = (tmp_path / name for name in ("foreshock.toml", "named.toml", "given"))
    for file in (here, named, given):
        file.touch()
    environ = {"FORESHOCK_CONFIG": str(named)}
    assert find_file(given, environ, tmp_path) == given
    assert find_file(None, environ, tmp_path) == named
    assert find_file(None, {}, tmp_path) == here


@pytest.mark.parametrize("by", ["--config", "FORESHOCK_CONFIG"])
def test_a_named_file_that_is_missing_is_an_error(tmp_path: Path, by: str) -> None:
    missing = tmp_path / "missing.toml"
    environ = {"FORESHOCK_CONFIG": str(missing)} if by == "FORESHOCK_CONFIG" else {}
    with pytest.raises(ConfigError, match=f"{by} names .*missing.toml"):
        load(missing if by == "--config" else None, environ=environ, cwd=tmp_path)


@pytest.mark.parametrize("by", ["--config", "FORESHOCK_CONFIG", "search"])
def test_a_folder_in_place_of_the_file_is_an_error(tmp_path: Path, by: str) -> None:
    folder = tmp_path / "foreshock.toml"
    folder.mkdir()
    environ = {"FORESHOCK_CONFIG": str(folder)} if by == "FORESHOCK_CONFIG" else {}
    with pytest.raises(ConfigError, match=r"foreshock.toml is a folder"):
        load(folder if by == "--config" else None, environ=environ, cwd=tmp_path)


def test_the_file_may_be_a_pipe(tmp_path: Path) -> None:
    """That is how a shell passes settings that shall not lie on a disk."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("[api]\nport = 1111\n",))
    writer.start()
    assert load(pipe, environ={}, cwd=tmp_path).settings.api.port == 1111
    writer.join()


def test_the_log_level_may_be_written_in_capitals(tmp_path: Path) -> None:
    assert (
        load(environ={"FORESHOCK_LOG_LEVEL": "DEBUG"}, cwd=tmp_path).settings.log_level == "debug"
    )


@pytest.mark.parametrize(
    ("text", "key", "near"),
    [
        ("[bus]\ntranspot = 'kafka'\n", "bus.transpot", "bus.transport"),
        ("[buss]\n", "buss", "bus"),
        ("[bus.kafka]\nbootsrap = 'x:1'\n", "bus.kafka.bootsrap", "bus.kafka.bootstrap"),
        ("transport = 'kafka'\n", "transport", "bus.transport"),
        (
            "[[api.endpoints]]\nname = 'a'\nurll = 'x'\n",
            "urll in entry 1 of [[api.endpoints]]",
            "url",
        ),
    ],
)
def test_an_unknown_key_in_the_file_is_named_with_the_nearest(
    toml: Callable[[str], Path], tmp_path: Path, text: str, key: str, near: str
) -> None:
    file = toml(text)
    with pytest.raises(ConfigError) as caught:
        load(file, environ={}, cwd=tmp_path)
    assert f"Unknown setting {key} in {file}" in str(caught.value)
    assert near in str(caught.value).split("Did you mean")[1]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("FORESHOCK_BUS__TRANSPOT", "FORESHOCK_BUS__TRANSPORT"),
        ("FORESHOCK_LOG_LEVL", "FORESHOCK_LOG_LEVEL"),
        ("FORESHOCK_TRANSPORT", "FORESHOCK_BUS__TRANSPORT"),
        ("FORESHOCK_API_PORT", "FORESHOCK_API__PORT"),
        ("FORESHOCK_BUS_KAFKA__BOOTSTRAP", "FORESHOCK_BUS__KAFKA__BOOTSTRAP"),
        ("FORESHOCK_API_PROT", "FORESHOCK_API__PORT"),
        ("FORESHOCK_PORT", "FORESHOCK_COLLECTOR__PORT or FORESHOCK_DETECTOR__PORT or"),
        ("FORESHOCK_API__DELIVERY__TOTAL_SECOND", "FORESHOCK_API__DELIVERY__TOTAL_SECONDS"),
    ],
)
def test_an_unknown_variable_is_named_with_the_nearest(
    tmp_path: Path, name: str, near: str
) -> None:
    with pytest.raises(ConfigError, match=f"{name} is no setting. Did you mean {near}"):
        load(environ={name: "x"}, cwd=tmp_path)


def test_variables_of_tests_and_of_kubernetes_are_no_settings(tmp_path: Path) -> None:
    """Kubernetes adds its own for a service that is called foreshock."""
    environ = {
        "FORESHOCK_TEST_KAFKA": "h:1",
        "FORESHOCK_REQUIRE_KAFKA": "1",
        "FORESHOCK_SHARED": "/x",
        "FORESHOCK_SERVICE_HOST": "10.0.0.1",
        "FORESHOCK_SERVICE_PORT_HTTP": "8600",
        "FORESHOCK_PORT": "tcp://10.0.0.1:8600",
        "FORESHOCK_API_SERVICE_PORT": "8600",
        "FORESHOCK_API_PORT": "tcp://10.0.0.1:8600",
        "FORESHOCK_PORT_8600_TCP_ADDR": "10.0.0.1",
        "FORESHOCK_LOG_LEVEL": "",
        "OTHER": "x",
    }
    assert load(environ=environ, cwd=tmp_path).origins == {}


def test_tables_and_lists_come_from_the_environment(tmp_path: Path) -> None:
    loaded = load(
        environ={
            "FORESHOCK_BUS__KAFKA__PROPERTIES__SASL_PASSWORD": "s3cret",
            "FORESHOCK_COLLECTOR__LABELS__RACK": "r1",
            "FORESHOCK_DETECTOR__DISABLED": "leak, peer_outlier",
            "FORESHOCK_API__ALLOWED_HOSTS": '["gpu01", "gpu02"]',
            "FORESHOCK_API__ENDPOINTS": '[{"name":"chat","url":"https://chat.example/x",'
            f'"secret":"{SIGNING}"}}]',
        },
        cwd=tmp_path,
    ).settings
    assert loaded.bus.kafka.properties == {"sasl.password": "s3cret"}
    assert loaded.collector.labels == {"rack": "r1"}
    assert loaded.detector.disabled == ("leak", "peer_outlier")
    assert loaded.api.allowed_hosts == ("gpu01", "gpu02")
    assert loaded.api.endpoints[0].name == "chat"


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"FORESHOCK_COLLECTOR__LABELS": "rack"}, "FORESHOCK_COLLECTOR__LABELS holds a table"),
        ({"FORESHOCK_COLLECTOR__LABELS": "{x"}, "FORESHOCK_COLLECTOR__LABELS is not valid JSON"),
        ({"FORESHOCK_API__PORT__X": "1"}, "goes deeper than the setting api.port"),
        ({"FORESHOCK_API__PORT": "much"}, "api.port in environment FORESHOCK_API__PORT"),
        ({"FORESHOCK_BUS": "kafka"}, "FORESHOCK_BUS holds a table"),
    ],
)
def test_a_wrong_variable_is_named(tmp_path: Path, environ: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(environ=environ, cwd=tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[bus\n", "not valid TOML"),
        ("bus = 1\n", "The setting bus in .* must be a table"),
        ("[api]\nport = 'x'\n", "api.port in .* must be a whole number"),
        ("[api]\nport = 70000\n", "api.port in .* must be at most 65535"),
        ("[api]\nport = 1.5\n", "api.port in .* must be a whole number"),
        ("[api]\nbatch_size = 0\n", "api.batch_size in .* must be at least 1"),
        ("[api]\napi_key = 'short'\n", "api.api_key .* 5 characters, it must have at least 16"),
        ("[bus]\ntransport = 'carrier pigeon'\n", "must be 'memory', 'sqlite' or 'kafka'"),
        (
            "[collector]\nsource = 'x'\n",
            "must be 'nvml', 'simulated', 'replay', 'dcgm' or 'amdsmi'",
        ),
        ("[api.endpoints]\nname = 'a'\n", r"a list of tables: write \[\[api.endpoints\]\]"),
        (
            "[[api.endpoints]]\nname = 'a'\n",
            r"url in entry 1 of \[\[api.endpoints\]\] .* of type webhook needs url",
        ),
        (
            "[[api.endpoints]]\nname='a'\nurl='http://a'\nsecret='x'\n",
            r"secret in entry 1 of \[\[api.endpoints\]\] .*: a webhook secret is whsec_",
        ),
        ("[bus.kafka.properties]\n'sasl.password' = 1\n", 'properties."sasl.password" in .* text'),
        ("[detector]\ndisabled = 'leak'\n", "detector.disabled .* must be a list"),
        ("[detector]\nforget_hours = inf\n", "detector.forget_hours .* must be a finite number"),
        ("[collector]\ninterval_seconds = nan\n", "collector.interval_seconds .* a finite number"),
    ],
)
def test_a_wrong_file_is_named_with_key_and_place(
    toml: Callable[[str], Path], tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        load(toml(text), environ={}, cwd=tmp_path)


def test_a_fault_of_several_values_together_says_where_they_came_from(tmp_path: Path) -> None:
    endpoint = f'{{"name":"a","url":"https://a.example/x","secret":"{SIGNING}"}}'
    environ = {"FORESHOCK_API__ENDPOINTS": f"[{endpoint},{endpoint}]"}
    with pytest.raises(ConfigError, match=r"api in environment FORESHOCK_API__ENDPOINTS .*same"):
        load(environ=environ, cwd=tmp_path)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "foreshock.toml"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(file, environ={}, cwd=tmp_path)


def test_an_error_never_shows_a_secret(toml: Callable[[str], Path], tmp_path: Path) -> None:
    file = toml("[api]\napi_key = 'tooshort'\n")
    with pytest.raises(ConfigError) as caught:
        load(file, environ={}, cwd=tmp_path)
    assert "api.api_key" in str(caught.value)
    assert "tooshort" not in str(caught.value)


def test_the_data_dir_follows_xdg(tmp_path: Path) -> None:
    loaded = load(environ={"XDG_DATA_HOME": "/data"}, cwd=tmp_path)
    assert loaded.settings.data_dir == Path("/data/foreshock")
    assert loaded.origins["data_dir"] == "environment XDG_DATA_HOME"


def test_show_masks_every_secret_and_says_where_values_came_from(
    toml: Callable[[str], Path], tmp_path: Path
) -> None:
    file = toml(f"""
[bus.kafka.properties]
"sasl.password" = "hunter2"
"sasl.username" = "fore"
[api]
api_key = "0123456789abcdef"
[[api.endpoints]]
name = "chat"
url = "https://chat.example/hooks/T0KEN"
secret = "{SIGNING}"
""")
    environ = {"FORESHOCK_LOG_LEVEL": "debug"}
    shown = show_toml(load(file, environ=environ, cwd=tmp_path))
    for secret in ("hunter2", "0123456789abcdef", "T0KEN", SIGNING):
        assert secret not in shown
    table = tomllib.loads(shown)
    assert table["bus"]["kafka"]["properties"]["sasl.username"] == "fore"
    assert table["api"]["endpoints"][0]["name"] == "chat"
    assert 'log_level = "debug"  # environment FORESHOCK_LOG_LEVEL' in shown
    assert 'log_format = "auto"  # default' in shown
    assert f"[[api.endpoints]]  # {file}" in shown


def test_a_database_address_shows_no_password(tmp_path: Path) -> None:
    environ = {"FORESHOCK_API__DATABASE": "postgresql://me:hunter2@db/alerts"}
    assert "hunter2" not in show_toml(load(environ=environ, cwd=tmp_path))


def test_the_sample_is_toml_and_changes_nothing(
    toml: Callable[[str], Path], tmp_path: Path
) -> None:
    loaded = load(toml(sample_toml()), environ={}, cwd=tmp_path)
    assert loaded.settings == load(environ={}, cwd=tmp_path).settings


def test_every_line_of_the_sample_can_be_uncommented(
    toml: Callable[[str], Path], tmp_path: Path
) -> None:
    """The defaults written in the sample are the defaults in force."""
    lines = [
        line[1:] if line.startswith("#") and not line.startswith("# ") and line[-1] != "=" else line
        for line in sample_toml().splitlines()
    ]
    loaded = load(toml("\n".join(lines)), environ={}, cwd=tmp_path)
    assert loaded.settings == load(environ={}, cwd=tmp_path).settings
    assert len(loaded.origins) > 40


def test_every_setting_says_what_it_is() -> None:
    silent = [f"{row.section}.{row.name}" for row in rows(Settings) if len(row.description) < 10]
    assert silent == []


def test_a_property_of_the_client_that_nobody_knows_is_hidden(tmp_path: Path) -> None:
    file = tmp_path / "foreshock.toml"
    file.write_text(
        """
[bus.kafka.properties]
"sasl.oauthbearer.config" = "principal=x planted"
"bogus.prop" = "planted"
"linger.ms" = "5"
"ssl.ca.location" = "/etc/ca.pem"
"""
    )
    shown = show_toml(load(file, environ={}, cwd=tmp_path))
    assert "planted" not in shown
    assert '"linger.ms" = "5"' in shown
    assert "/etc/ca.pem" in shown
