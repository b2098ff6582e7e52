"""API keys: made of 256 random bits, shown once, stored as a hash."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa

from api.database import Database
from api.security.principal import ALL_SCOPES, ROLES, Principal, Role, Scope
from api.tables import api_key
from schemas.alert import rfc3339

__all__ = ["KeyRing", "KeyStore", "NewKey"]

_PREFIX = "fsk_"
_SHOWN = 12
#: A key that another process revoked works here at most this long.
_CACHE_SECONDS = 5.0
_CACHE_SIZE = 1000
#: The last use is noted no more often.
_USED_MS = 60_000

Clock = Callable[[], int]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key that was just made; ``key`` is never shown again."""

    id: str
    key: str


class KeyStore:
    """The keys in the store.

    Parameters
    ----------
    database
        The store.
    now_ms
        Clock, unix milliseconds.
    """

    def __init__(self, database: Database, now_ms: Clock = _now_ms) -> None:
        self._database = database
        self._now_ms = now_ms

    def create(
        self,
        connection: sa.Connection,
        *,
        name: str,
        role: Role,
        scopes: Sequence[Scope] = (),
        expires_ms: int | None = None,
        actor: str,
    ) -> NewKey:
        """Make a key.

        Parameters
        ----------
        connection
            In a write transaction.
        name
            For people, and the actor of what is done with it.
        role
            Its usual permissions.
        scopes
            Instead of the role's, if any are given.
        expires_ms
            When it ends, or None.
        actor
            Who makes it.
        """
        key = _PREFIX + secrets.token_urlsafe(32)
        chosen = frozenset(scopes) or ROLES[role]
        new = NewKey(id=str(uuid.uuid4()), key=key)
        connection.execute(
            sa.insert(api_key).values(
                id=new.id,
                name=name,
                prefix=key[:_SHOWN],
                hash=_hash(key),
                role=role.value,
                scopes=orjson.dumps(sorted(chosen)).decode(),
                created_by=actor,
                created_ms=self._now_ms(),
                expires_ms=expires_ms,
            )
        )
        return new

    def all(self, connection: sa.Connection) -> list[dict[str, Any]]:  # JSON
        """Return every key without what opens the door."""
        rows = connection.execute(sa.select(api_key).order_by(api_key.c.created_ms)).mappings()
        return [_shown(row) for row in rows]

    def revoke(self, connection: sa.Connection, key_id: str) -> bool:
        """End a key now; False if there is none with this id."""
        done = connection.execute(
            sa.update(api_key)
            .where(api_key.c.id == key_id)
            .values(revoked_ms=sa.func.coalesce(api_key.c.revoked_ms, self._now_ms()))
        )
        return bool(done.rowcount)

    def find(self, key: str) -> Principal | None:
        """Return whose key this is, or None if it opens nothing (any more)."""
        return self.find_hash(_hash(key))

    def find_hash(self, hashed: str) -> Principal | None:
        """Return whose key has this hash, or None if it opens nothing (any more)."""
        now_ms = self._now_ms()
        query = sa.select(api_key).where(api_key.c.hash == hashed)
        with self._database.read() as connection:
            row = connection.execute(query).mappings().one_or_none()
        if row is None or row["revoked_ms"] is not None:
            return None
        if row["expires_ms"] is not None and row["expires_ms"] <= now_ms:
            return None
        if now_ms - (row["last_used_ms"] or 0) > _USED_MS:
            used = sa.update(api_key).where(api_key.c.id == row["id"]).values(last_used_ms=now_ms)
            with self._database.write_beside() as connection:
                connection.execute(used)
        scopes = frozenset(Scope(s) for s in orjson.loads(row["scopes"]) if s in ALL_SCOPES)
        return Principal(name=row["name"], scopes=scopes, key_id=row["id"])


class KeyRing:
    """Recognises keys: that of the settings, and those in the store. Safe to share.

    Parameters
    ----------
    store
        Keys in the store, or None.
    settings_key
        The settings' key, an administrator's, or None.
    """

    def __init__(self, store: KeyStore | None, settings_key: str | None) -> None:
        self._store = store
        self._settings_hash = None if settings_key is None else _hash(settings_key)
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, Principal]] = {}

    def find(self, key: str) -> Principal | None:
        """Return who has this key, or None."""
        hashed = _hash(key)
        # What is neither is no key of ours: the store need not be asked.
        by_settings = self._settings(hashed)
        if by_settings is not None or not key.startswith(_PREFIX):
            return by_settings
        return self._in_store(hashed)

    def mark_of(self, key: str, token: str) -> str:
        """Return what a session keeps of the key that opened it, 64 characters.

        Of a key in the store its hash. That of the settings may be a word that people can
        remember, and so be guessed from its hash; it is mixed with the session's token, which lies
        in the browser alone.
        """
        hashed = _hash(key)
        return _hash(token + hashed) if hashed == self._settings_hash else hashed

    def find_marked(self, mark: str, token: str) -> Principal | None:
        """Return whose session it is, or None if the key that opened it works no more."""
        if self._settings_hash is not None:
            expected = _hash(token + self._settings_hash)
            if hmac.compare_digest(mark, expected):
                return self._settings(self._settings_hash)
        return self._in_store(mark)

    def _in_store(self, hashed: str) -> Principal | None:
        if self._store is None:
            return None
        with self._lock:
            until, known = self._known.get(hashed, (0.0, None))
        if known is not None and time.monotonic() < until:
            return known
        found = self._store.find_hash(hashed)
        if found is not None:
            with self._lock:
                if len(self._known) >= _CACHE_SIZE:
                    self._known.clear()
                self._known[hashed] = (time.monotonic() + _CACHE_SECONDS, found)
        return found

    def _settings(self, hashed: str) -> Principal | None:
        if self._settings_hash and hmac.compare_digest(hashed, self._settings_hash):
            return Principal(name="settings-key", scopes=ALL_SCOPES)
        return None

    def forget(self) -> None:
        """Ask the store again for every key: one was revoked."""
        with self._lock:
            self._known.clear()


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode(errors="replace")).hexdigest()


def _shown(row: Mapping[Any, Any]) -> dict[str, Any]:  # a row mapping is untyped; JSON
    def when(name: str) -> str | None:
        return None if row[name] is None else rfc3339(row[name])

    return {
        "id": row["id"],
        "name": row["name"],
        "prefix": row["prefix"],
        "role": row["role"],
        "scopes": orjson.loads(row["scopes"]),
        "created_by": row["created_by"],
        "created_at": when("created_ms"),
        "expires_at": when("expires_ms"),
        "revoked_at": when("revoked_ms"),
        "last_used_at": when("last_used_ms"),
    }
