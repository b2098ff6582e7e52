"""The settings: one ``foreshock.toml``, overridden by the environment.

The only module that reads either. Every value remembers where it came from, and an unknown key
is an error that names it, because a misspelt threshold that is silently ignored is a page that
never comes.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from api.settings import ApiSettings
from bus.settings import BusSettings
from collector.settings import CollectorSettings
from detector.settings import DetectorSettings
from foreshock.settingstree import (
    is_mapping,
    is_structured,
    model_at,
    model_of,
    setting_names,
    strip_optional,
)
from foreshock.wrongsettings import (
    ENV_PREFIX,
    did_you_mean,
    explain,
    meant_variables,
)
from schemas.errors import ConfigError

__all__ = ["ENV_PREFIX", "FILE_NAME", "Loaded", "Settings", "find_file", "load", "rest_place"]

FILE_NAME = "foreshock.toml"
SYSTEM_FILE = Path("/etc/foreshock") / FILE_NAME

#: Variables that steer the search, the commands for people or the tests and are not settings.
_NOT_SETTINGS = frozenset(
    {"FORESHOCK_CONFIG", "FORESHOCK_SHARED", "FORESHOCK_URL", "FORESHOCK_KEY"}
)
_NOT_SETTINGS_PREFIXES = ("FORESHOCK_TEST_", "FORESHOCK_REQUIRE_")
# Kubernetes gives every pod variables of this form for a service called "foreshock" (or
# "foreshock-..."), as Docker links did; settings of a section carry "__" and never match. A bare
# ..._PORT is one of them only if it holds an address: FORESHOCK_API_PORT=8600 is a slip.
_SERVICE_LINK = re.compile(
    r"FORESHOCK_(?:[A-Z0-9]+_)*"
    r"(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_[A-Z]+)?)"
)
_SERVICE_ADDRESS = re.compile(r"(?:tcp|udp|sctp)://.+")
# librdkafka's names have dots, which an environment variable cannot carry.
DOTTED_TABLES = frozenset({"bus.kafka.properties"})

_Table = dict[str, Any]  # decoded TOML: any value until validated


class Settings(BaseModel):
    """Everything that can be set. Sections belong to the service whose name they carry."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    data_dir: Path = Field(
        default=Path("~/.local/share/foreshock"),
        validate_default=True,  # the default has a "~" too
        description="Folder of everything that foreshock keeps: created private, one per "
        "installation. $XDG_DATA_HOME/foreshock where that variable is set.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least severe log line that is written."
    )
    log_format: Literal["auto", "console", "json"] = Field(
        default="auto",
        description="console for people, json for log collectors, auto: console on a terminal.",
    )
    bus: BusSettings = Field(
        default_factory=BusSettings, description="How the services speak with each other."
    )
    collector: CollectorSettings = Field(
        default_factory=CollectorSettings, description="Reading one node."
    )
    detector: DetectorSettings = Field(
        default_factory=DetectorSettings, description="Turning samples into alerts."
    )
    api: ApiSettings = Field(
        default_factory=ApiSettings, description="Storing, showing and delivering alerts."
    )

    @field_validator("log_level", mode="before")
    @classmethod
    def _in_any_case(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        try:
            return value.expanduser().absolute()
        except RuntimeError as exc:
            raise ValueError("there is no home folder for '~'; give an absolute path") from exc


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Settings and where they came from.

    Parameters
    ----------
    settings
        The effective settings.
    file
        The file that was read, or None.
    origins
        Dotted name of each value that was given to the place it came from. What is not in it has
        its default.
    """

    settings: Settings
    file: Path | None
    origins: Mapping[str, str]


def find_file(given: Path | None, environ: Mapping[str, str], cwd: Path) -> Path | None:
    """Return the settings file: ``given``, $FORESHOCK_CONFIG, ./foreshock.toml, or the system's.

    Raises
    ------
    ConfigError
        If a file that was named is not there, or one is a folder.
    """
    named = environ.get("FORESHOCK_CONFIG")
    if given is not None or named:
        file = given if given is not None else Path(named or "")
        by = "--config" if given is not None else "FORESHOCK_CONFIG"
        if not _is_there(file):
            raise ConfigError(f"{by} names {file}, and there is no such file.")
        return file
    return next((file for file in (cwd / FILE_NAME, SYSTEM_FILE) if _is_there(file)), None)


def _is_there(file: Path) -> bool:
    """Whether there is anything to read: a file, or a pipe; a folder is an error."""
    try:
        if file.is_dir():
            raise ConfigError(f"The settings file {file} is a folder. Name the file in it.")
        return file.exists()
    except OSError as exc:
        raise ConfigError(f"The settings file {file} cannot be read: {exc.strerror}.") from exc


def load(
    given: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Loaded:
    """Read the settings.

    Parameters
    ----------
    given
        Path from the command line, or None to search.
    environ, cwd
        Environment and current folder; those of the process by default.

    Raises
    ------
    ConfigError
        If the file cannot be read or a key or value is wrong; the text names the key.
    """
    environ = os.environ if environ is None else environ
    file = find_file(given, environ, Path.cwd() if cwd is None else cwd)
    table = _read(file) if file is not None else {}
    origins = dict.fromkeys(setting_names(table), str(file))
    if "data_dir" not in table and environ.get("XDG_DATA_HOME"):
        table["data_dir"] = str(Path(environ["XDG_DATA_HOME"]) / "foreshock")
        origins["data_dir"] = "environment XDG_DATA_HOME"
    for name, text in sorted(environ.items()):
        if text and _is_setting(name, text):
            path = _env_path(name)
            _put(table, path, _env_value(name, path, text))
            origins[".".join(path)] = f"environment {name}"
    try:
        settings = Settings.model_validate(table)
    except ValidationError as exc:
        raise ConfigError(explain(exc, origins, file, Settings)) from exc
    return Loaded(settings=settings, file=file, origins=origins)


def rest_place(
    url: str | None, config: Path | None, environ: Mapping[str, str] | None = None
) -> tuple[str, str | None]:
    """Return where the api is for a command that speaks to it, and the key that it wants.

    Parameters
    ----------
    url
        From the command line, or None for ``FORESHOCK_URL``, else what the settings say.
    config
        Settings file, as for :func:`load`.
    environ
        That of the process by default.
    """
    environ = os.environ if environ is None else environ
    key = environ.get("FORESHOCK_KEY") or None
    place = url or environ.get("FORESHOCK_URL")
    if place:
        return place, key
    api = load(config, environ=environ).settings.api
    # The key of the settings goes nowhere but to the place that the settings name.
    own = None if api.api_key is None else api.api_key.get_secret_value()
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(api.host, api.host)  # noqa: S104 - replaced
    return f"http://{f'[{host}]' if ':' in host else host}:{api.port}", key or own


def _read(file: Path) -> _Table:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError(f"The settings file {file} cannot be read: {exc.strerror}.") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"The settings file {file} is not UTF-8 text.") from exc
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"The settings file {file} is not valid TOML: {exc}.") from exc


def _is_setting(name: str, text: str) -> bool:
    return (
        name.startswith(ENV_PREFIX)
        and name not in _NOT_SETTINGS
        and not name.startswith(_NOT_SETTINGS_PREFIXES)
        and ("__" in name or not _is_service_link(name, text))
    )


def _is_service_link(name: str, text: str) -> bool:
    by_name = _SERVICE_LINK.fullmatch(name) is not None
    return by_name or (name.endswith("_PORT") and _SERVICE_ADDRESS.fullmatch(text) is not None)


def _env_path(name: str) -> tuple[str, ...]:
    """Turn ``FORESHOCK_BUS__PATH`` into ``("bus", "path")``, checking each step."""
    rest = tuple(name.removeprefix(ENV_PREFIX).lower().split("__"))
    model: type[BaseModel] | None = Settings
    for depth, part in enumerate(rest):
        if model is None:
            raise ConfigError(f"{name} goes deeper than the setting {'.'.join(rest[:depth])}.")
        if part not in model.model_fields:
            hint = did_you_mean(meant_variables(name, rest[:depth], Settings))
            raise ConfigError(f"The environment variable {name} is no setting.{hint}")
        annotation = model.model_fields[part].annotation
        if is_mapping(annotation) and depth + 1 < len(rest):
            return _free_path(rest, depth + 1)
        model = model_of(annotation)
    return rest


def _free_path(rest: tuple[str, ...], depth: int) -> tuple[str, ...]:
    table = ".".join(rest[:depth])
    if table in DOTTED_TABLES:
        return (*rest[:depth], "__".join(rest[depth:]).replace("_", "."))
    return rest


def _env_value(name: str, path: tuple[str, ...], text: str) -> object:
    """Decode what is more than a plain value: JSON, or commas for a list."""
    parent = model_at(Settings, path[:-1])
    if parent is None or path[-1] not in parent.model_fields:
        return text
    annotation = strip_optional(parent.model_fields[path[-1]].annotation)
    if not is_structured(annotation):
        return text
    if text.lstrip()[:1] not in ("[", "{"):
        if is_mapping(annotation) or model_of(annotation) is not None:
            raise ConfigError(f"{name} holds a table: give it as a JSON object.")
        return [part.strip() for part in text.split(",") if part.strip()]
    try:
        return json.loads(text)
    except json.JSONDecodeError as exc:
        raise ConfigError(f"{name} is not valid JSON: {exc}.") from exc


def _put(table: _Table, path: tuple[str, ...], value: object) -> None:
    for depth, part in enumerate(path[:-1], start=1):
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{'.'.join(path[:depth])} must be a table in the settings file.")
    table[path[-1]] = value
