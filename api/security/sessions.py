"""Sessions of browsers: opened with an API key, carried by a cookie, stored as a hash.

A session may what its key may, and ends with it: when the key is revoked, runs out, or is taken
from the settings.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa

from api.database import Database
from api.security.keys import KeyRing
from api.security.principal import Principal
from api.tables import session

__all__ = ["COOKIE", "NewSession", "Sessions"]

#: Name of the cookie.
COOKIE = "foreshock_session"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSession:
    """A session that was just opened; ``token`` is in the cookie and nowhere else."""

    token: str
    expires_ms: int


class Sessions:
    """Opens, finds and ends sessions. Safe to share.

    Parameters
    ----------
    database
        Where they lie.
    keys
        Says what the key of a session may, while it works.
    lifetime_ms
        How long one lasts.
    now_ms
        Clock, unix milliseconds.
    """

    def __init__(
        self, database: Database, keys: KeyRing, lifetime_ms: int, now_ms: Callable[[], int]
    ) -> None:
        self._database = database
        self._keys = keys
        self._lifetime_ms = lifetime_ms
        self._now_ms = now_ms

    def open(self, connection: sa.Connection, key: str) -> NewSession:
        """Open one for a key that is known to work; forget those that have ended.

        Parameters
        ----------
        connection
            In a write transaction.
        key
            The key as it was given.
        """
        now_ms = self._now_ms()
        new = NewSession(token=secrets.token_urlsafe(32), expires_ms=now_ms + self._lifetime_ms)
        connection.execute(sa.delete(session).where(session.c.expires_ms <= now_ms))
        connection.execute(
            sa.insert(session).values(
                hash=_hash(new.token),
                key_hash=self._keys.mark_of(key, new.token),
                created_ms=now_ms,
                expires_ms=new.expires_ms,
            )
        )
        return new

    def find(self, token: str) -> tuple[Principal, int] | None:
        """Return who the session is of and when it ends (unix milliseconds); None if it is over."""
        query = sa.select(session).where(session.c.hash == _hash(token))
        with self._database.read() as connection:
            row = connection.execute(query).mappings().one_or_none()
        if row is None or row["expires_ms"] <= self._now_ms():
            return None
        found = self._keys.find_marked(row["key_hash"], token)
        return None if found is None else (found, row["expires_ms"])

    def end(self, connection: sa.Connection, token: str) -> bool:
        """End one; False if there was none."""
        done = connection.execute(sa.delete(session).where(session.c.hash == _hash(token)))
        return bool(done.rowcount)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
