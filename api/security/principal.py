"""Who asks, and what they may. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["ALL_SCOPES", "LOCAL", "ROLES", "Principal", "Role", "Scope"]


class Scope(StrEnum):
    """One permission."""

    ALERTS_READ = "alerts:read"
    ALERTS_WRITE = "alerts:write"
    SILENCES_WRITE = "silences:write"
    WEBHOOKS_ADMIN = "webhooks:admin"
    INGEST = "ingest"
    METRICS_READ = "metrics:read"
    SENSITIVE_READ = "sensitive:read"
    ADMIN = "admin"


class Role(StrEnum):
    """A usual set of permissions."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


ALL_SCOPES = frozenset(Scope)
ROLES: dict[Role, frozenset[Scope]] = {
    Role.VIEWER: frozenset({Scope.ALERTS_READ, Scope.METRICS_READ}),
    Role.OPERATOR: frozenset(
        {
            Scope.ALERTS_READ,
            Scope.METRICS_READ,
            Scope.ALERTS_WRITE,
            Scope.SILENCES_WRITE,
            Scope.SENSITIVE_READ,
        }
    ),
    Role.ADMIN: ALL_SCOPES,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who asks.

    Parameters
    ----------
    name
        The actor in timelines and the audit log: from the credential, never from the request.
    scopes
        What they may.
    key_id
        Key in the store, or None for the settings' key and for nobody.
    """

    name: str
    scopes: frozenset[Scope]
    key_id: str | None = None

    def may(self, scope: Scope) -> bool:
        """Tell whether they have a permission; an administrator has all."""
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def may_grant(self, scopes: Iterable[Scope]) -> bool:
        """Tell whether they may hand these on: nobody gives what they lack."""
        return all(self.may(scope) for scope in scopes)


#: Whoever asks where no key is needed: on this machine alone.
LOCAL = Principal(name="local", scopes=ALL_SCOPES)
