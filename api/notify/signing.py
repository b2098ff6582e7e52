"""Signatures of Standard Webhooks 1.0.0, symmetric form. Pure.

References
----------
Standard Webhooks specification 1.0.0, sections "Signature scheme" and "Webhook headers".
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Sequence

__all__ = ["sign", "signed_headers"]


def sign(key: bytes, webhook_id: str, timestamp: int, body: bytes) -> str:
    """Return ``v1,`` and the base64 of HMAC-SHA256 over ``id.timestamp.body``.

    Parameters
    ----------
    key
        24 to 64 bytes: what stands behind ``whsec_``, decoded.
    webhook_id
        Must hold no full stop, which separates the signed parts.
    timestamp
        Unix seconds of this attempt.
    body
        Bytes as sent.

    Examples
    --------
    >>> sign(b"k" * 24, "msg_1", 1700000000, b"{}")
    'v1,E3sCg9uS8x43RKlJqcda1EcaYZxNkN+l2u7RBZBSZQQ='
    """
    if "." in webhook_id:
        raise ValueError(f"a webhook id must not hold a full stop, got {webhook_id!r}")
    signed = b".".join((webhook_id.encode(), str(timestamp).encode(), body))
    return "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()


def signed_headers(
    keys: Sequence[bytes], webhook_id: str, timestamp: int, body: bytes
) -> dict[str, str]:
    """Return the three headers; several keys while a secret is being rotated."""
    return {
        "webhook-id": webhook_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(sign(key, webhook_id, timestamp, body) for key in keys),
    }
