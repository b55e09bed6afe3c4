"""The property `host` of rules about connections: an address, a name, a range of addresses, or all.

    host=192.0.2.1                one address
    host=[2001:db8::1]            one address of IPv6, with or without brackets
    host=example.com              every address that the name has when the file is read
    host=192.0.2.0,192.0.2.255    from the first to the second, inclusive; each has one address
    host=all                      every address

Source: Qpid C++ Broker Book, 1.5.3.2.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from qstore.broker.security.acl.tables import ALL

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve: TypeAlias = Callable[[str], list[str]]
"""Given a host name: its addresses. Raises OSError."""


class HostError(ValueError):
    """A host cannot be used. The text says why."""


class HostRange(NamedTuple):
    """Addresses of one family, from `first` to `last`, inclusive."""

    first: Address
    last: Address

    def has(self, address: Address) -> bool:
        """Whether the address is in it."""
        first, last = self
        return first.version == address.version and int(first) <= int(address) <= int(last)

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first},{self.last}"


def resolve(name: str) -> list[str]:
    """The addresses of a host name. Takes as long as the system's resolver does. Raises OSError."""
    return sorted({str(found[4][0]) for found in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)})


def read_address(text: str) -> Address | None:
    """An address; None if it is none. One of IPv4 that is written as one of IPv6 is the former."""
    try:
        address = ipaddress.ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def read_hosts(value: str, find: Resolve) -> tuple[HostRange, ...]:
    """The addresses of a value; empty for all.

    Raises:
        HostError: it names no address, or a range that is none.
    """
    if value == ALL:
        return ()
    parts = value.split(",")
    if len(parts) == 1:
        return tuple(HostRange(each, each) for each in _addresses(value, find))
    if len(parts) != 2:
        raise HostError(f'"{value}" is not a host, or two of them with a comma in between')
    ends = []
    for part in parts:
        found = _addresses(part, find)
        if len(found) != 1:
            raise HostError(f'"{part}" has {len(found)} addresses; the ends of a range must have one each')
        ends.append(found[0])
    first, last = ends
    if first.version != last.version:
        raise HostError(f'"{value}" is a range from IPv{first.version} to IPv{last.version}')
    if int(first) > int(last):
        raise HostError(f'"{value}" is no range: the second address must be larger than the first')
    return (HostRange(first, last),)


def _addresses(text: str, find: Resolve) -> list[Address]:
    address = read_address(text)
    if address is not None:
        return [address]
    if not text:
        raise HostError("a host is missing")
    try:
        found = [each for each in map(read_address, find(text)) if each is not None]
    except (OSError, UnicodeError) as error:
        raise HostError(f'host "{text}" has no address: {getattr(error, "strerror", None) or error}') from None
    if not found:
        raise HostError(f'host "{text}" has no address')
    return list(dict.fromkeys(found))
