"""Commands for people: make, list, try and remove receivers, send again, make an API key."""
# ruff: noqa: PLC0415 - heavy imports inside the commands, as in foreshock.cli

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from foreshock.restplace import ConfigOption, JsonOption, KeyFileOption, UrlOption, open_client
from schemas.errors import ConfigError

if TYPE_CHECKING:
    from api.database import Database
    from foreshock.config import Settings

__all__ = ["endpoints_app", "keys_app"]

endpoints_app = typer.Typer(help="The receivers of notifications.", no_args_is_help=True)
keys_app = typer.Typer(help="The keys of the api.", no_args_is_help=True)

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


def _in_settings(settings: Settings, name: str) -> bool:
    return any(endpoint.name == name for endpoint in settings.api.endpoints)


def _read_secret(path: Path | None, option: str) -> str | None:
    """Read a secret from a file, - for standard input; a command line is seen by everybody."""
    if path is None:
        return None
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise ConfigError(f"The file of {option} cannot be read.") from None
    if not text.strip():
        raise ConfigError(f"The file of {option} is empty.")
    return text.strip()


@endpoints_app.command("add")
def endpoints_add(
    name: _Name,
    kind: Annotated[
        str, typer.Option("--type", metavar="TYPE", help="Kind of receiver; see docs/alerts.md.")
    ] = "webhook",
    to_file: Annotated[
        Path | None,
        typer.Option(
            "--to-file", metavar="FILE", help="File with the receiver's address; - is stdin."
        ),
    ] = None,
    secret_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the signing secret.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the token or password.")
    ] = None,
    channel: Annotated[str | None, typer.Option(help="Chat or channel to write to.")] = None,
    keyword: Annotated[str | None, typer.Option(help="Word that the robot demands.")] = None,
    mail_server: Annotated[
        str | None, typer.Option(metavar="HOST[:PORT]", help="Mail server, for email.")
    ] = None,
    mail_from: Annotated[str | None, typer.Option(help="Sender of mail.")] = None,
    mail_to: Annotated[
        list[str] | None, typer.Option(help="Recipient of mail; may be repeated.")
    ] = None,
    mail_user: Annotated[str | None, typer.Option(help="Login at the mail server.")] = None,
    severity: Annotated[
        str, typer.Option(metavar="info|warning|critical", help="Least severity sent.")
    ] = "warning",
    language: Annotated[str, typer.Option(metavar="en|zh-CN")] = "en",
    timezone: Annotated[str, typer.Option(metavar="ZONE", help="Of the times in messages.")] = (
        "UTC"
    ),
    url: UrlOption = None,
    key_file: KeyFileOption = None,
    config: ConfigOption = None,
) -> None:
    """Make a receiver in a running api; its address and secrets come from files."""
    body = {
        "name": name,
        "type": kind,
        "url": _read_secret(to_file, "--to-file"),
        "secret": _read_secret(secret_file, "--secret-file"),
        "token": _read_secret(token_file, "--token-file"),
        "channel": channel,
        "keyword": keyword,
        "mail": _mail(mail_server, mail_from, mail_to, mail_user),
        "severity_min": severity,
        "language": language,
        "timezone": timezone,
    }
    given = {field: value for field, value in body.items() if value is not None}
    with open_client(url, key_file, config) as client:
        made = client.send("POST", "/v1/endpoints", json=given)
    typer.echo(f"{name} ({made['type']}, {made['url']}) is told from {made['severity_min']} on")
    if made.get("new_secret"):
        typer.echo(made["new_secret"])
        typer.echo("This is its signing secret: it is not shown again.", err=True)
    typer.echo(f"Try it: foreshock endpoints test {name}", err=True)


def _mail(
    server: str | None, sender: str | None, to: list[str] | None, user: str | None
) -> dict[str, object] | None:
    if server is None:
        return None
    host, _, port = server.partition(":")
    if not sender or not to or (port and not port.isdecimal()):
        raise typer.BadParameter("Mail needs --mail-server HOST[:PORT], --mail-from and --mail-to.")
    number = int(port or 465)
    found: dict[str, object] = {
        "server": host,
        "port": number,
        "tls": "implicit" if number == 465 else "starttls",
        "sender": sender,
        "recipients": to,
    }
    return found | ({} if user is None else {"username": user})


@endpoints_app.command("list")
def endpoints_list(
    as_json: JsonOption = False,
    url: UrlOption = None,
    key_file: KeyFileOption = None,
    config: ConfigOption = None,
) -> None:
    """List the receivers of a running api, those of its settings too."""
    with open_client(url, key_file, config) as client:
        found = list(client.pages("/v1/endpoints", "endpoints", {}, 1000))
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    if not found:
        typer.echo("There is no endpoint yet: foreshock endpoints add NAME.")
        return
    from foreshock.alertsview import console_of, endpoint_table

    console_of(sys.stdout).print(endpoint_table(found))


@endpoints_app.command("remove")
def endpoints_remove(
    name: _Name,
    url: UrlOption = None,
    key_file: KeyFileOption = None,
    config: ConfigOption = None,
) -> None:
    """Remove a receiver from a running api; what waits for it is cancelled."""
    with open_client(url, key_file, config) as client:
        client.send("DELETE", f"/v1/endpoints/{quote(name, safe='')}")
    typer.echo(f"{name} is removed")


@endpoints_app.command("test")
def endpoints_test(
    name: _Name,
    url: UrlOption = None,
    key_file: KeyFileOption = None,
    config: ConfigOption = None,
) -> None:
    """Send a test message to an endpoint, by the way of real ones.

    One of the settings is told from here; any other, or any with --url, by the running api.
    """
    settings = None if url else _settings(config)
    if settings is None or not _in_settings(settings, name):
        with open_client(url, key_file, config) as client:
            said = client.send("POST", f"/v1/endpoints/{quote(name, safe='')}/test")
        _say_trial(name, said["error"], said["latency_ms"], delivered=said["delivered"])
        return
    from api.notify.channel import channel_of
    from api.notify.sender import HttpSender
    from api.notify.trial import send_trial

    delivery = settings.api.delivery
    sender = HttpSender(
        connect_seconds=delivery.connect_seconds,
        total_seconds=delivery.total_seconds,
        allowed=delivery.allowed(),
    )
    endpoint = next(e for e in settings.api.endpoints if e.name == name)
    result = send_trial(channel_of(endpoint, sender, delivery))
    _say_trial(name, result.error, result.latency_ms, delivered=result.delivered)


def _say_trial(name: str, error: str | None, latency_ms: int, *, delivered: bool) -> None:
    if not delivered:
        typer.echo(f"foreshock: {name} did not take it: {error}", err=True)
        raise typer.Exit(1)
    typer.echo(f"{name} took the test message in {latency_ms} ms")


@endpoints_app.command("replay")
def endpoints_replay(
    name: _Name,
    hours: Annotated[
        float, typer.Option(min=0, max=87_600, help="Only what was given up in so many hours.")
    ] = 24.0,
    url: UrlOption = None,
    key_file: KeyFileOption = None,
    config: ConfigOption = None,
) -> None:
    """Queue again what was given up for an endpoint, under the same ids.

    For one of the settings in the store itself; for any other, or with --url, by the running api.
    """
    settings = None if url else _settings(config)
    if settings is None or not _in_settings(settings, name):
        since = datetime.now(UTC) - timedelta(hours=hours)
        params = {"since": since.isoformat(timespec="seconds").replace("+00:00", "Z")}
        path = f"/v1/endpoints/{quote(name, safe='')}/replay-failed"
        with open_client(url, key_file, config) as client:
            number = client.send("POST", path, params=params)["queued"]
        typer.echo(f"{number} notifications are queued again for {name}")
        return
    from api.notify.deadletters import replay

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
    config: ConfigOption = None,
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
