"""Which addresses notifications may go to.

A name is resolved, every address of it is judged, and the connection then goes to an address
that was judged, so that a second resolution cannot lead elsewhere.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

from schemas.errors import ForeshockError

__all__ = ["RefusedAddressError", "check_addresses", "check_port", "resolve"]

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

#: Cloud metadata services: AWS, Azure, Google and others on the first; AWS on IPv6; Alibaba.
_METADATA = frozenset(
    ipaddress.ip_address(text) for text in ("169.254.169.254", "fd00:ec2::254", "100.100.100.200")
)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
#: Ports below 1024 that a receiver may have: web and mail. The others belong to services that
#: must not be spoken to by accident (SSH, LDAP, SMB, databases' old ports).
_LOW_PORTS = frozenset({25, 80, 443, 465, 587})


class RefusedAddressError(ForeshockError):
    """The receiver's address is not allowed; the text says which rule refuses it."""


def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host. Raises OSError if there are none."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as exc:  # a label that is empty or longer than DNS allows
        raise OSError(f"{host} is no host name") from exc
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def check_port(host: str, port: int) -> None:
    """Refuse the ports of services that are no receivers.

    Raises
    ------
    RefusedAddressError
        If the port is below 1024 and neither the web's nor the mail's.
    """
    if port < 1024 and port not in _LOW_PORTS:
        raise RefusedAddressError(
            f"port {port} of {host} is no port of a receiver: below 1024 only 25, 80, 443, 465 "
            "and 587 are"
        )


def check_addresses(host: str, addresses: Sequence[str], *, allow_private: bool) -> str:
    """Judge every address and return the one to connect to.

    Raises
    ------
    RefusedAddressError
        If one of them is a metadata service, or not public without permission.

    Examples
    --------
    >>> check_addresses("hooks", ["127.0.0.1"], allow_private=True)
    '127.0.0.1'
    >>> check_addresses("hooks", ["::ffff:169.254.169.254"], allow_private=True)
    Traceback (most recent call last):
    api.notify.egress.RefusedAddressError: hooks is a cloud metadata address: never allowed
    """
    if not addresses:
        raise RefusedAddressError(f"{host} has no address")
    for text in addresses:
        address = _unmapped(ipaddress.ip_address(text.split("%")[0]))
        if address in _METADATA or address.is_link_local:
            raise RefusedAddressError(f"{host} is a cloud metadata address: never allowed")
        loopback = address.is_loopback  # ::1 lies in a reserved network
        if address.is_multicast or address.is_unspecified or (address.is_reserved and not loopback):
            raise RefusedAddressError(f"{host} is no address of a receiver")
        if not address.is_global and not allow_private:
            raise RefusedAddressError(
                f"{host} is a loopback or private address; set allow_private = true for the "
                "endpoint if that is meant"
            )
    return addresses[0]


def _unmapped(address: _Address) -> _Address:
    """Return the IPv4 address inside one of IPv6: mapped, NAT64, 6to4 or Teredo."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        if address.sixtofour is not None:
            return address.sixtofour
        if address.teredo is not None:
            return address.teredo[1]
    return address
