"""Commands for people: try a receiver, send again what was given up, make an API key."""
# ruff: noqa: PLC0415 - heavy imports inside the commands, as in foreshock.cli

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from schemas.errors import ConfigError

if TYPE_CHECKING:
    from api.database import Database
    from foreshock.config import Settings

__all__ = ["endpoints_app", "keys_app"]

endpoints_app = typer.Typer(help="The receivers of notifications.", no_args_is_help=True)
keys_app = typer.Typer(help="The keys of the api.", no_args_is_help=True)

_Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings file, as elsewhere.")
]
_Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the endpoint.")]


def _settings(config: Path | None) -> Settings:
    from foreshock.config import load
    from foreshock.logs import set_up_logging

    set_up_logging("error", "auto")
    return load(config).settings


def _store(settings: Settings) -> Database:
    from api.database import Database

    url = settings.api.database
    return Database.open(url.get_secret_value() if url else None, settings.data_dir)


def _known(settings: Settings, name: str) -> None:
    names = [endpoint.name for endpoint in settings.api.endpoints]
    if name not in names:
        raise ConfigError(
            f"There is no endpoint {name!r} in the settings; there are: "
            f"{', '.join(names) or 'none'}."
        )


@endpoints_app.command("test")
def endpoints_test(name: _Name, config: _Config = None) -> None:
    """Send a test message to an endpoint, by the way of real ones."""
    from api.notify.channel import channel_of
    from api.notify.sender import HttpSender
    from api.notify.trial import send_trial

    settings = _settings(config)
    _known(settings, name)
    delivery = settings.api.delivery
    sender = HttpSender(
        connect_seconds=delivery.connect_seconds, total_seconds=delivery.total_seconds
    )
    endpoint = next(e for e in settings.api.endpoints if e.name == name)
    result = send_trial(channel_of(endpoint, sender, delivery))
    if not result.delivered:
        typer.echo(f"foreshock: {name} did not take it: {result.error}", err=True)
        raise typer.Exit(1)
    typer.echo(f"{name} took the test message in {result.latency_ms} ms")


@endpoints_app.command("replay")
def endpoints_replay(
    name: _Name,
    hours: Annotated[
        float, typer.Option(min=0, help="Only what was given up in the last so many hours.")
    ] = 24.0,
    config: _Config = None,
) -> None:
    """Queue again what was given up for an endpoint, under the same ids."""
    from api.notify.deadletters import replay

    settings = _settings(config)
    _known(settings, name)
    now_ms = time.time_ns() // 1_000_000
    database = _store(settings)
    try:
        with database.write() as connection:
            since_ms = now_ms - round(hours * 3_600_000)
            number = replay(connection, now_ms, endpoint=name, failed_since_ms=since_ms)
    finally:
        database.close()
    typer.echo(f"{number} notifications are queued again for {name}")


@keys_app.command("create")
def keys_create(
    name: Annotated[str, typer.Option(help="Name of the key; the actor of what it does.")],
    role: Annotated[
        str, typer.Option(metavar="viewer|operator|admin", help="What it may do.")
    ] = "viewer",
    days: Annotated[
        float | None, typer.Option(min=0.01, help="Days until it ends; by default never.")
    ] = None,
    config: _Config = None,
) -> None:
    """Make an API key and print it, this once."""
    from api.security.keys import KeyStore
    from api.security.principal import Role

    if role not in set(Role):
        raise typer.BadParameter(f"--role takes {', '.join(Role)}; got {role!r}.")
    if not 1 <= len(name) <= 64:
        raise typer.BadParameter("--name takes 1 to 64 characters.")
    expires_ms = None if days is None else time.time_ns() // 1_000_000 + round(days * 86_400_000)
    database = _store(_settings(config))
    try:
        with database.write() as connection:
            new = KeyStore(database).create(
                connection,
                name=name,
                role=Role(role),
                expires_ms=expires_ms,
                actor="command-line",
            )
    finally:
        database.close()
    typer.echo(new.key)
    typer.echo("Keep it: it is not shown again.", err=True)
