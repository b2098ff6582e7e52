"""Changing the receivers that were made over REST: each change one transaction with its audit.

What would reach a forbidden address is refused here already; it is judged again at each attempt.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import sqlalchemy as sa
from pydantic import SecretStr, ValidationError

from api.database import Database, RefusedRowError
from api.endpoints import EndpointSettings
from api.endpointstore import MAX_STORED, SECRET_FIELDS, StoredEndpoint
from api.notify.egress import Allowed, RefusedAddressError, check_addresses, check_port, resolve
from api.roster import Entry, Roster, cancel_waiting
from api.routing import names_in, read_tree
from api.security.auditing import record_audit
from api.tables import delivery
from schemas.errors import ConfigError

__all__ = [
    "Editor",
    "EndpointConflictError",
    "EndpointInvalidError",
    "NoEndpointError",
    "StaleEndpointError",
    "Who",
]

_READ_ONLY = (
    "The endpoint {} stands in the settings file of the server: change it there, or make one under "
    "another name."
)


class NoEndpointError(Exception):
    """There is no such endpoint."""


class StaleEndpointError(Exception):
    """Somebody else has changed it meanwhile."""


class EndpointConflictError(Exception):
    """It cannot be done as things stand; the text says why."""


class EndpointInvalidError(Exception):
    """What was asked for cannot be used; texts by field, without the values.

    Parameters
    ----------
    faults
        Field and sentence.
    """

    def __init__(self, *faults: tuple[str, str]) -> None:
        super().__init__("; ".join(f"{field}: {text}" for field, text in faults))
        self.faults = faults


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    """Who changes something, and in which request."""

    actor: str
    request_id: str
    now_ms: int


class Editor:
    """Makes, changes and removes receivers.

    Parameters
    ----------
    database, roster
        Where they lie, and the list that delivery uses.
    allowed
        Private addresses that they may have.
    resolver
        Host and port to addresses.
    """

    def __init__(
        self,
        database: Database,
        roster: Roster,
        *,
        allowed: Allowed,
        resolver: Callable[[str, int], list[str]] = resolve,
    ) -> None:
        self._database = database
        self._roster = roster
        self._allowed = allowed
        self._resolve = resolver

    def create(self, fields: Mapping[str, Any], who: Who) -> str | None:  # decoded JSON
        """Make one; return the signing secret if it was made here.

        Raises
        ------
        EndpointInvalidError, EndpointConflictError
            If it cannot be used, or the name is taken.
        """
        fields, made = _with_secret(fields)
        settings = _settings(fields)
        self._check_address(settings)
        taken = EndpointConflictError(f"There is an endpoint {settings.name} already.")
        try:
            with self._database.write_beside() as connection:
                if self._entry(connection, settings.name) is not None:
                    raise taken
                if len(self._roster.store.all(connection)) >= MAX_STORED:
                    raise EndpointConflictError(f"There are {MAX_STORED} endpoints already.")
                self._roster.store.put(
                    connection, settings, before=None, actor=who.actor, now_ms=who.now_ms
                )
                _audit(connection, who, "endpoint.create", settings.name, _told(settings))
        except RefusedRowError:  # somebody made it at the same moment
            raise taken from None
        self._roster.refresh(who.now_ms)
        return made

    def replace(
        self, name: str, fields: Mapping[str, Any], who: Who, if_version: int | None
    ) -> str | None:
        """Put another in its place, secrets included; return a secret that was made here."""
        fields, made = _with_secret(dict(fields) | {"name": name})
        settings = _settings(fields)
        self._check_address(settings)
        self._put(name, lambda _: (settings, None), who, if_version, "endpoint.replace")
        return made

    def change(
        self, name: str, changes: Mapping[str, Any], who: Who, if_version: int | None
    ) -> None:
        """Change single fields; None takes one away.

        Raises
        ------
        EndpointInvalidError
            If the result cannot be used; also if the secrets are lost and none was given.
        """

        def changed(row: StoredEndpoint) -> tuple[EndpointSettings, int | None]:
            old = self._opened(row, who.now_ms)
            settings = _settings(_fields(old) | dict(changes))
            until = row.overlap_until_ms if settings.secret_previous is not None else None
            return settings, until

        # Names are resolved before the transaction, not in it.
        row = self._row(name)
        if {"url", "mail"} & set(changes):
            self._check_address(changed(row)[0])
        self._put(name, changed, who, if_version, "endpoint.change", {"fields": sorted(changes)})

    def rotate(
        self,
        name: str,
        secret: str | None,
        overlap_ms: int,
        who: Who,
        if_version: int | None,
    ) -> str | None:
        """Replace the signing secret; return it if it was made here."""
        made = None if secret is not None else _new_secret()

        def rotated(row: StoredEndpoint) -> tuple[EndpointSettings, int | None]:
            old = self._opened(row, who.now_ms)
            if old.type not in {"webhook", "dingtalk", "feishu"}:
                raise EndpointConflictError(f"An endpoint of type {old.type} does not sign.")
            if old.type != "webhook" and made is not None:
                raise EndpointInvalidError(
                    ("secret", "it is made by the robot's page: give the new one here")
                )
            fields = _fields(old) | {"secret": secret or made}
            until = None
            if old.type == "webhook" and overlap_ms > 0 and old.secret is not None:
                fields["secret_previous"] = old.secret.get_secret_value()
                until = who.now_ms + overlap_ms
            else:
                fields.pop("secret_previous", None)
            return _settings(fields), until

        self._put(name, rotated, who, if_version, "endpoint.rotate_secret")
        return made

    def switch(self, name: str, who: Who, if_version: int | None, *, enabled: bool) -> None:
        """Switch one on or off; what waits for one that is switched off is cancelled."""
        with self._database.write_beside() as connection:
            row = self._stored(connection, name, if_version)
            if row.enabled != enabled:
                self._roster.store.set_enabled(
                    connection, row, enabled=enabled, actor=who.actor, now_ms=who.now_ms
                )
                action = "endpoint.enable" if enabled else "endpoint.disable"
                _audit(connection, who, action, name, None)
            if not enabled:
                cancel_waiting(connection, who.now_ms, delivery.c.endpoint == name)
        self._roster.refresh(who.now_ms)

    def delete(self, name: str, who: Who, if_version: int | None) -> None:
        """Remove one, unless the routing tree names it."""
        with self._database.write_beside() as connection:
            self._stored(connection, name, if_version)
            _, tree = read_tree(connection)
            if tree is not None and name in names_in(tree):
                raise EndpointConflictError(
                    f"The routing tree names the endpoint {name}: take it out there first."
                )
            self._roster.store.delete(connection, name)
            cancel_waiting(connection, who.now_ms, delivery.c.endpoint == name)
            _audit(connection, who, "endpoint.delete", name, None)
        self._roster.refresh(who.now_ms)

    def _put(
        self,
        name: str,
        make: Callable[[StoredEndpoint], tuple[EndpointSettings, int | None]],
        who: Who,
        if_version: int | None,
        action: str,
        detail: Mapping[str, object] | None = None,
    ) -> None:
        with self._database.write_beside() as connection:
            row = self._stored(connection, name, if_version)
            settings, until = make(row)
            self._roster.store.put(
                connection,
                settings,
                before=row,
                actor=who.actor,
                now_ms=who.now_ms,
                overlap_until_ms=until,
            )
            if not settings.enabled:
                cancel_waiting(connection, who.now_ms, delivery.c.endpoint == name)
            _audit(connection, who, action, name, _told(settings) | dict(detail or {}))
        self._roster.refresh(who.now_ms)

    def _opened(self, row: StoredEndpoint, now_ms: int) -> EndpointSettings:
        try:
            return self._roster.store.settings_of(row, now_ms)
        except ConfigError as exc:
            raise EndpointConflictError(
                f"{exc} Replace the endpoint as a whole with PUT, secrets included."
            ) from None

    def _row(self, name: str) -> StoredEndpoint:
        with self._database.read() as connection:
            entry = self._entry(connection, name)
        if entry is None:
            raise NoEndpointError
        if entry.stored is None:
            raise EndpointConflictError(_READ_ONLY.format(name))
        return entry.stored

    def _entry(self, connection: sa.Connection, name: str) -> Entry | None:
        fixed = self._roster.get(name)
        if fixed is not None and fixed.stored is None:
            return fixed
        row = self._roster.store.get(connection, name)
        return None if row is None else Entry(settings=None, stored=row)

    def _stored(
        self, connection: sa.Connection, name: str, if_version: int | None
    ) -> StoredEndpoint:
        entry = self._entry(connection, name)
        if entry is not None and entry.stored is None:
            raise EndpointConflictError(_READ_ONLY.format(name))
        row = self._roster.store.get(connection, name, lock=True)
        if row is None:
            raise NoEndpointError
        if if_version is not None and if_version != row.version:
            raise StaleEndpointError
        return row

    def _check_address(self, settings: EndpointSettings) -> None:
        """Refuse what no notification could ever reach.

        Raises
        ------
        EndpointInvalidError
            If the host is unknown or one of its addresses is forbidden.
        """
        if settings.mail is not None:
            field, host, port = "mail", settings.mail.server, settings.mail.port
        elif settings.url is not None:
            parts = urlsplit(settings.address)
            field, host = "url", parts.hostname or ""
            port = parts.port or (443 if parts.scheme == "https" else 80)
        else:
            return
        try:
            check_port(host, port)
            check_addresses(
                host, self._resolve(host, port), allow_private=False, allowed=self._allowed
            )
        except RefusedAddressError as exc:
            raise EndpointInvalidError((field, str(exc))) from None
        except OSError:
            raise EndpointInvalidError(
                (field, f"the host {host} cannot be found: is it spelled right?")
            ) from None


def _settings(fields: Mapping[str, Any]) -> EndpointSettings:  # decoded JSON
    if fields.get("type") == "apprise":
        raise EndpointInvalidError(
            (
                "type",
                "apprise connects by itself, so its addresses cannot be judged: such an endpoint "
                "is made in the settings file only",
            )
        )
    given = {name: value for name, value in fields.items() if value is not None}
    try:
        return EndpointSettings(**given)
    except ValidationError as exc:
        faults = [
            (
                "/".join(str(part) for part in fault["loc"]) or "type",
                str(fault["msg"]).removeprefix("Value error, "),
            )
            for fault in exc.errors(include_url=False, include_input=False, include_context=False)
        ]
        raise EndpointInvalidError(*faults) from None
    except ValueError:  # of the address: what urlsplit itself refuses
        raise EndpointInvalidError(("url", "it is no address")) from None


def _fields(settings: EndpointSettings) -> dict[str, Any]:  # JSON
    shown = settings.model_dump(mode="json", exclude=set(SECRET_FIELDS), exclude_none=True)
    hidden = {
        name: value.get_secret_value()
        for name in SECRET_FIELDS
        if isinstance(value := getattr(settings, name), SecretStr)
    }
    return shown | hidden


def _with_secret(fields: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    if fields.get("type", "webhook") != "webhook" or fields.get("secret") is not None:
        return dict(fields), None
    made = _new_secret()
    return dict(fields) | {"secret": made}, made


def _new_secret() -> str:
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def _told(settings: EndpointSettings) -> dict[str, object]:
    return {"type": settings.type, "host": settings.host, "enabled": settings.enabled}


def _audit(
    connection: sa.Connection,
    who: Who,
    action: str,
    name: str,
    detail: Mapping[str, object] | None,
) -> None:
    record_audit(
        connection,
        actor=who.actor,
        action=action,
        object_type="endpoint",
        object_id=name,
        now_ms=who.now_ms,
        detail=detail,
        request_id=who.request_id,
    )
