"""A receiver as the REST surface shows it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api.endpoints import DEFAULT_URLS, EndpointSettings
from api.queries import DELIVERY_STATES
from api.roster import Entry
from api.security.principal import Principal, Scope
from api.security.redaction import HIDDEN
from schemas.alert import rfc3339

__all__ = ["endpoint_json"]

_MASK = "****"
_PLAIN = ("channel", "keyword", "severity_min", "language", "timezone", "profile")


def endpoint_json(
    entry: Entry,
    tally: Mapping[str, Mapping[str, int]],
    paces: Mapping[str, Mapping[str, Any]],
    who: Principal,
) -> dict[str, Any]:  # JSON
    """Return one receiver, secrets masked.

    Parameters
    ----------
    entry
        The receiver.
    tally
        Endpoint to state to number of deliveries.
    paces
        Endpoint to how it fares.
    who
        Mail addresses are shown with ``sensitive:read`` only.
    """
    shown = _of_settings(entry.settings) if entry.settings is not None else _of_row(entry)
    row, name = entry.stored, shown["name"]
    if shown["mail"] is not None and not who.may(Scope.SENSITIVE_READ):
        shown["mail"] = {n: v if n in _SERVER else HIDDEN for n, v in shown["mail"].items()}
    return shown | {
        "problem": entry.problem,
        "failing_since": None,
        "next_probe_at": None,
        **paces.get(name, {}),
        "deliveries": dict(tally.get(name) or dict.fromkeys(DELIVERY_STATES, 0)),
        "read_only": row is None,
        "version": 0 if row is None else row.version,
        "secret_overlap_until": None if row is None else _time(row.overlap_until_ms),
        "created_by": None if row is None else row.created_by,
        "created_at": None if row is None else rfc3339(row.created_ms),
        "updated_by": None if row is None else row.updated_by,
        "updated_at": None if row is None else rfc3339(row.updated_ms),
    }


_SERVER = frozenset({"server", "port", "tls"})


def _of_settings(settings: EndpointSettings) -> dict[str, Any]:  # JSON
    secret = settings.secret is not None or settings.secret_file is not None
    token = settings.token is not None or settings.token_file is not None
    addressed = settings.url is not None or settings.type in DEFAULT_URLS
    return {
        "name": settings.name,
        "type": settings.type,
        "url": f"{settings.host}/{_MASK}" if addressed else settings.host,
        "secret": _MASK if secret else None,
        "token": _MASK if token else None,
        **{name: _plain(getattr(settings, name)) for name in _PLAIN},
        "rate_per_minute": settings.rate_per_minute,
        "mail": None if settings.mail is None else settings.mail.model_dump(mode="json"),
        "enabled": settings.enabled,
    }


def _of_row(entry: Entry) -> dict[str, Any]:  # JSON
    """Return what can be said of one whose secrets cannot be opened."""
    row = entry.stored
    assert row is not None  # noqa: S101 - one without settings has a row
    return {
        "name": row.name,
        "type": row.type,
        "url": f"{row.host}/{_MASK}",
        "secret": _MASK,
        "token": _MASK,
        **{name: row.config.get(name) for name in _PLAIN},
        "rate_per_minute": row.config.get("rate_per_minute"),
        "mail": row.config.get("mail"),
        "enabled": row.enabled,
    }


def _plain(value: Any) -> Any:  # a word, an enum of words, or None
    return getattr(value, "value", value)


def _time(unix_ms: int | None) -> str | None:
    return None if unix_ms is None else rfc3339(unix_ms)
