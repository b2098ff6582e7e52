"""What counts as a secret wherever foreshock shows text: settings on screen, and logs."""

from __future__ import annotations

import re

__all__ = ["MASK", "is_plain_property", "is_secret_name", "mask_text"]

MASK = "********"

_SECRET_NAME = re.compile(
    r"password|passwd|passphrase|secret|token|api_?key|authorization|cookie|jaas|credential"
    r"|ssl[._]key|private[._]?key|sasl\.oauthbearer\.(config|extensions|assertion)",
    re.IGNORECASE,
)
# Properties of librdkafka whose values are words or addresses that may be seen.
_PLAIN_PROPERTIES = frozenset(
    {
        "acks",
        "auto.offset.reset",
        "bootstrap.servers",
        "broker.address.family",
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "compression.codec",
        "compression.type",
        "debug",
        "group.protocol",
        "isolation.level",
        "partitioner",
        "sasl.mechanisms",
        "sasl.oauthbearer.method",
        "sasl.username",
        "security.protocol",
        "ssl.endpoint.identification.algorithm",
    }
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


def is_plain_property(name: str, value: str) -> bool:
    """Whether a property of the Kafka client may be shown: a number, a switch, a known word.

    Any other is hidden: properties pass through unread, so nobody here knows what a new or
    misspelt one holds.

    Examples
    --------
    >>> is_plain_property("linger.ms", "5"), is_plain_property("bogus.prop", "hunter2")
    (True, False)
    >>> is_plain_property("ssl.ca.location", "/etc/ca.pem")
    True
    """
    if is_secret_name(name):
        return False
    number = re.fullmatch(r"-?\d+(\.\d+)?|true|false", value, re.IGNORECASE) is not None
    return number or name in _PLAIN_PROPERTIES or name.endswith((".location", ".mechanism"))


def mask_text(text: str) -> str:
    """Hide passwords inside addresses, and signing secrets.

    Examples
    --------
    >>> mask_text("postgresql://foreshock:hunter2@db/alerts")
    'postgresql://********@db/alerts'
    """
    return _SIGNING.sub(MASK, _USER_INFO.sub(MASK, text))
