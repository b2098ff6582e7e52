"""Which addresses notifications may go to.

A name is resolved, every address of it is judged, and the connection then goes to an address
that was judged, so that a second resolution cannot lead elsewhere.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from schemas.errors import ForeshockError

__all__ = ["Allowed", "RefusedAddressError", "check_addresses", "check_port", "resolve"]

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """Private addresses that the operator allows for every endpoint.

    Parameters
    ----------
    hosts
        Names, lower case.
    networks
        Networks.
    """

    hosts: frozenset[str] = frozenset()
    networks: tuple[_Network, ...] = ()

    @classmethod
    def of(cls, hosts: Iterable[str], networks: Iterable[str]) -> Self:
        """Read names and networks as settings have them. Raises ValueError for no network."""
        return cls(
            hosts=frozenset(host.lower().rstrip(".") for host in hosts),
            networks=tuple(ipaddress.ip_network(text) for text in networks),
        )

    def permits(self, host: str, address: _Address) -> bool:
        """Tell whether this private address may be spoken to.

        Examples
        --------
        >>> allowed = Allowed.of(["hooks.lan"], ["10.1.0.0/16"])
        >>> [allowed.permits(host, ipaddress.ip_address("10.1.2.3")) for host in ("a", "b")]
        [True, True]
        >>> allowed.permits("hooks.lan", ipaddress.ip_address("192.168.1.1"))
        True
        >>> allowed.permits("other.lan", ipaddress.ip_address("192.168.1.1"))
        False
        """
        return host.lower().rstrip(".") in self.hosts or any(
            address in network for network in self.networks
        )


_NOTHING_MORE = Allowed()


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


def check_addresses(
    host: str,
    addresses: Sequence[str],
    *,
    allow_private: bool,
    allowed: Allowed = _NOTHING_MORE,
) -> str:
    """Judge every address and return the one to connect to.

    Parameters
    ----------
    host, addresses
        The receiver's name and what it resolves to.
    allow_private
        Whether this endpoint may have any private address.
    allowed
        Private addresses that every endpoint may have.

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
        private = not address.is_global and not allow_private
        if private and not allowed.permits(host, address):
            raise RefusedAddressError(
                f"{host} is a loopback or private address; set allow_private = true for the "
                "endpoint in the settings file, or name it in api.delivery.allow_hosts or "
                "allow_cidrs, if that is meant"
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
