"""Connections that are not open yet: TLS handshake, protocol header, login and connection.open are under way.

They take places of the limit of connections (`--max-connections`). When it is reached, a newcomer gets the place of one
of them: the oldest of the host that has the most. So silent connections displace only other
silent ones, first those of the same host; open connections are never affected.

A host is an address of IPv4, or a network of IPv6: who has one address there has 2 ** 64 of them (RFC 4291, 2.5.1).
"""

from __future__ import annotations

import ipaddress
from typing import Final, Generic, Protocol, TypeVar

_PREFIX: Final = 64  # bits of an address of IPv6 that are not the client's to choose


def network_of(address: str) -> str:
    """The host that an IP address belongs to; an address that is none is a host of its own."""
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    if parsed.is_loopback:
        return address
    return str(ipaddress.IPv6Network((parsed, _PREFIX), strict=False))


class Opening(Protocol):
    """A connection."""

    @property
    def is_half_open(self) -> bool:
        """Whether it is not open yet."""


_T = TypeVar("_T", bound=Opening)


class HalfOpen(Generic[_T]):
    """The half-open connections, by host, oldest first. Those that were opened meanwhile are found when it matters."""

    def __init__(self) -> None:
        self._hosts: dict[str, dict[_T, None]] = {}

    def add(self, host: str, connection: _T) -> None:
        """A connection was accepted."""
        self._hosts.setdefault(host, {})[connection] = None

    def remove(self, host: str, connection: _T) -> None:
        """A connection is closed, open or not."""
        connections = self._hosts.get(host)
        if connections is not None:
            connections.pop(connection, None)
            if not connections:
                del self._hosts[host]

    def take(self) -> _T | None:
        """Take the oldest one of the host that has the most; None if there are none."""
        while self._hosts:
            host = max(self._hosts, key=lambda each: len(self._hosts[each]))
            connection = next(iter(self._hosts[host]))
            self.remove(host, connection)
            if connection.is_half_open:
                return connection
        return None
