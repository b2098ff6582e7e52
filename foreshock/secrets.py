"""What counts as a secret wherever foreshock shows text: settings on screen, and logs."""

from __future__ import annotations

import re

__all__ = ["MASK", "is_secret_name", "mask_text"]

MASK = "********"

_SECRET_NAME = re.compile(
    r"password|passwd|passphrase|secret|token|api_?key|authorization|cookie|jaas|credential"
    r"|ssl[._]key|private[._]?key",
    re.IGNORECASE,
)
# The user part of an address, and the signing secrets of Standard Webhooks.
_USER_INFO = re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]*(?=@)")
_SIGNING = re.compile(r"whsec_[A-Za-z0-9+/=_-]+")


def is_secret_name(name: str) -> bool:
    """Whether a setting or log key of this name holds a secret.

    Examples
    --------
    >>> [is_secret_name(name) for name in ("sasl.password", "bootstrap", "api_key")]
    [True, False, True]
    """
    return _SECRET_NAME.search(name) is not None


def mask_text(text: str) -> str:
    """Hide passwords inside addresses, and signing secrets.

    Examples
    --------
    >>> mask_text("postgresql://foreshock:hunter2@db/alerts")
    'postgresql://********@db/alerts'
    """
    return _SIGNING.sub(MASK, _USER_INFO.sub(MASK, text))
