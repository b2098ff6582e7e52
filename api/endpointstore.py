"""Receivers made over REST: their rows, and the settings that these stand for.

Address, secrets and token are sealed together and bound to the endpoint's name; all else may be
seen. A row whose key is lost stays, with a sentence that says so, and is told nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa
from pydantic import ValidationError

from api.endpoints import EndpointSettings
from api.security.secretbox import SecretBox
from api.tables import endpoint
from schemas.errors import ConfigError

__all__ = [
    "MAX_STORED",
    "OPEN_FIELDS",
    "SECRET_FIELDS",
    "EndpointStore",
    "StoredEndpoint",
    "fields_of",
]

#: More receivers than this are a list that nobody keeps in order.
MAX_STORED = 100
#: What may be set over REST and seen. Files of the server and permission to speak to private
#: addresses are left to its settings file.
OPEN_FIELDS = (
    "type",
    "channel",
    "keyword",
    "mail",
    "severity_min",
    "language",
    "timezone",
    "enabled",
    "profile",
    "rate_per_minute",
)
SECRET_FIELDS = ("url", "secret", "secret_previous", "token")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEndpoint:
    """One row.

    Parameters
    ----------
    name, version, type, host, enabled
        What lists show; ``version`` is the ETag.
    config
        Fields of :data:`OPEN_FIELDS`.
    sealed
        Fields of :data:`SECRET_FIELDS`, sealed.
    overlap_until_ms
        Until when the former secret signs as well; None without one.
    """

    name: str
    version: int
    type: str
    host: str
    enabled: bool
    config: Mapping[str, Any]  # decoded JSON
    sealed: str
    overlap_until_ms: int | None
    created_by: str
    created_ms: int
    updated_by: str
    updated_ms: int


def fields_of(settings: EndpointSettings) -> tuple[dict[str, Any], dict[str, str]]:  # JSON
    """Split settings into what may be seen and what is sealed."""
    shown = settings.model_dump(mode="json", include=set(OPEN_FIELDS), exclude_none=True)
    hidden = {
        name: value.get_secret_value()
        for name in SECRET_FIELDS
        if (value := getattr(settings, name)) is not None
    }
    return shown, hidden


class EndpointStore:
    """Reads and writes the rows in the caller's transaction.

    Parameters
    ----------
    box
        Seals and opens the secrets.
    """

    def __init__(self, box: SecretBox) -> None:
        self._box = box

    def all(self, connection: sa.Connection) -> list[StoredEndpoint]:
        """Return every row by name."""
        rows = connection.execute(sa.select(endpoint).order_by(endpoint.c.name)).mappings()
        return [_row(row) for row in rows]

    def get(
        self, connection: sa.Connection, name: str, *, lock: bool = False
    ) -> StoredEndpoint | None:
        """Return one row, locked until the end of the transaction if asked; None without one."""
        query = sa.select(endpoint).where(endpoint.c.name == name)
        row = connection.execute(query.with_for_update() if lock else query).mappings().first()
        return None if row is None else _row(row)

    def put(
        self,
        connection: sa.Connection,
        settings: EndpointSettings,
        *,
        before: StoredEndpoint | None,
        actor: str,
        now_ms: int,
        overlap_until_ms: int | None = None,
    ) -> StoredEndpoint:
        """Write one endpoint.

        Parameters
        ----------
        connection
            In a write transaction.
        settings
            What it is to be.
        before
            The row that it replaces, or None.
        actor
            Who, from the credential.
        overlap_until_ms
            Until when ``secret_previous`` signs as well.
        """
        shown, hidden = fields_of(settings)
        new = StoredEndpoint(
            name=settings.name,
            version=1 if before is None else before.version + 1,
            type=settings.type,
            host=settings.host,
            enabled=settings.enabled,
            config=shown,
            sealed=self._box.seal(orjson.dumps(hidden).decode(), _place(settings.name)),
            overlap_until_ms=overlap_until_ms if "secret_previous" in hidden else None,
            created_by=actor if before is None else before.created_by,
            created_ms=now_ms if before is None else before.created_ms,
            updated_by=actor,
            updated_ms=now_ms,
        )
        values = {
            name: getattr(new, name) for name in StoredEndpoint.__slots__ if name != "config"
        } | {"config": orjson.dumps(shown).decode()}
        if before is None:
            connection.execute(sa.insert(endpoint).values(**values))
        else:
            connection.execute(
                sa.update(endpoint).where(endpoint.c.name == settings.name).values(**values)
            )
        return new

    def set_enabled(
        self,
        connection: sa.Connection,
        before: StoredEndpoint,
        *,
        enabled: bool,
        actor: str,
        now_ms: int,
    ) -> None:
        """Switch one on or off without opening its secrets: also where the key is lost."""
        config = dict(before.config) | {"enabled": enabled}
        connection.execute(
            sa.update(endpoint)
            .where(endpoint.c.name == before.name)
            .values(
                enabled=enabled,
                config=orjson.dumps(config).decode(),
                version=before.version + 1,
                updated_by=actor,
                updated_ms=now_ms,
            )
        )

    def delete(self, connection: sa.Connection, name: str) -> None:
        """Remove one row."""
        connection.execute(sa.delete(endpoint).where(endpoint.c.name == name))

    def reseal(self, connection: sa.Connection) -> int:
        """Seal anew what an older key sealed; return how many. What cannot be opened stays."""
        done = 0
        for row in self.all(connection):
            if self._box.is_current(row.sealed):
                continue
            try:
                plain = self._box.open(row.sealed, _place(row.name))
            except ConfigError:
                continue
            sealed = self._box.seal(plain, _place(row.name))
            connection.execute(
                sa.update(endpoint).where(endpoint.c.name == row.name).values(sealed=sealed)
            )
            done += 1
        return done

    def settings_of(self, row: StoredEndpoint, now_ms: int) -> EndpointSettings:
        """Return the settings that a row stands for; the former secret only while it counts.

        Raises
        ------
        ConfigError
            If its secrets cannot be opened, or it was written by another version.
        """
        hidden = orjson.loads(self._box.open(row.sealed, _place(row.name)))
        if row.overlap_until_ms is None or row.overlap_until_ms <= now_ms:
            hidden.pop("secret_previous", None)
        try:
            return EndpointSettings(name=row.name, **row.config, **hidden)
        except (ValidationError, TypeError):
            raise ConfigError(
                f"The stored endpoint {row.name} does not fit this version: replace it."
            ) from None


def _place(name: str) -> str:
    return f"endpoint/{name}"


def _row(row: Mapping[Any, Any]) -> StoredEndpoint:  # a row mapping is untyped
    values = {name: row[name] for name in StoredEndpoint.__slots__}
    return StoredEndpoint(**values | {"config": orjson.loads(row["config"])})
