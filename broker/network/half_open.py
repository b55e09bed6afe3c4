"""Connections that are not open yet: TLS handshake, protocol header, login and connection.open are under way.

They take places of the limit of connections (`--max-connections`). When it is reached, a newcomer gets the place of one
of them: the oldest of the host that has the most. So silent connections displace only other
silent ones, first those of the same host; open connections are never affected.

A host is an address of IPv4, or a network of IPv6: who has one address there has 2 ** 64 of them (RFC 4291, 2.5.1).
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
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
    """The half-open connections, by host, oldest first. Each step takes the same time, however many there are.

    Those that were opened are removed at the next interval of the timer, or when one of them would be taken.
    """

    def __init__(self) -> None:
        # OrderedDict finds its first key at once, too, after many were removed before it.
        self._hosts: dict[str, OrderedDict[_T, None]] = {}
        self._with: list[OrderedDict[str, None]] = [OrderedDict()]  # number of connections -> hosts that have so many

    def add(self, host: str, connection: _T) -> None:
        """A connection was accepted."""
        connections = self._hosts.setdefault(host, OrderedDict())
        self._move(host, len(connections), len(connections) + 1)
        connections[connection] = None

    def remove(self, host: str, connection: _T) -> None:
        """A connection is open, or closed; no error if it was removed before."""
        connections = self._hosts.get(host)
        if connections is not None and connection in connections:
            del connections[connection]
            self._move(host, len(connections) + 1, len(connections))
            if not connections:
                del self._hosts[host]

    def _move(self, host: str, before: int, now: int) -> None:
        self._with[before].pop(host, None)
        if now == len(self._with):
            self._with.append(OrderedDict())
        if now:
            self._with[now][host] = None
        while len(self._with) > 1 and not self._with[-1]:
            self._with.pop()

    def take(self) -> _T | None:
        """Take the oldest one of the host that has the most; None if there are none."""
        while self._hosts:
            host = next(iter(self._with[-1]))
            connection = next(iter(self._hosts[host]))
            self.remove(host, connection)
            if connection.is_half_open:
                return connection
        return None
