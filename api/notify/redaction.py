"""What must not leave: an endpoint's secrets in what is kept, people's data in what is sent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import SplitResult, urlsplit

from api.notify.base import Notice
from api.notify.retry import Outcome
from api.security.redaction import is_sensitive

__all__ = ["Redactor", "without_sensitive"]

_MASK = "********"
_URL = re.compile(r"(https?://[^/\s?#\"'<>]+)[^\s\"'<>]*")
_LEAST = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Redactor:
    """Hides what an endpoint's settings hold, and the paths of all addresses.

    Parameters
    ----------
    secrets
        Texts to hide, longest first.
    """

    secrets: tuple[str, ...] = ()

    @classmethod
    def of(cls, *secrets: str) -> Redactor:
        """Return the redactor of these secrets; of addresses, their paths and queries too."""
        found = set()
        for secret in secrets:
            parts = _address(secret)
            pieces = [secret]
            if parts is not None:
                pieces = [secret, parts.path, parts.query, *parts.path.split("/")]
                pieces += [pair.partition("=")[2] for pair in parts.query.split("&")]
            found |= {piece for piece in pieces if len(piece) >= _LEAST}
        return cls(secrets=tuple(sorted(found, key=len, reverse=True)))

    def text(self, text: str) -> str:
        """Hide secrets in a text.

        Examples
        --------
        >>> Redactor().text("see https://hooks.example/T0/abc now")
        'see https://hooks.example/******** now'
        """
        for secret in self.secrets:
            text = text.replace(secret, _MASK)
        return _URL.sub(rf"\1/{_MASK}", text)

    def outcome(self, outcome: Outcome) -> Outcome:
        """Hide secrets in what an attempt came to: a receiver may echo its own address."""
        if outcome.error is None:
            return outcome
        return replace(outcome, error=self.text(outcome.error))


def without_sensitive(notice: Notice) -> Notice:
    """Return the notice without labels that name people or command lines."""
    return replace(
        notice,
        event=_shown(notice.event),
        digest=tuple(_shown(event) for event in notice.digest),
    )


def _shown(event: Mapping[str, Any]) -> Mapping[str, Any]:  # decoded JSON of an AlertEvent
    labels = event.get("labels")
    if not labels or not any(is_sensitive(name) for name in labels):
        return event
    kept = {name: value for name, value in labels.items() if not is_sensitive(name)}
    return {**event, "labels": kept}


def _address(secret: str) -> SplitResult | None:
    """Return a secret as an address; None of one that is none, whatever a password may hold."""
    try:
        return urlsplit(secret) if "://" in secret else None
    except ValueError:
        return None
