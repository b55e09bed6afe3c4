"""Rules, quotas and groups as a file has them: values, without a decision; and the errors of a file.

The property `host` of rules about connections is an address, a name, a range of addresses, or all:

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.security.acl.tables import ALL, Permission, Property, lookups_for
from qstore.formats.named_tuple import NamedTuple

_SHOWN = 100  # characters of a line
_TOLD = 5  # problems in the text of an error


class Problem(NamedTuple):
    """Something in a file that is wrong, or has no effect.

    Attributes:
        line: the number of its line, counted from 1; 0 for the file.
        reason: the error.
        text: the line.
    """

    line: int
    reason: str
    text: str = ""

    def __str__(self) -> str:
        shown = self.text if len(self.text) <= _SHOWN else f"{self.text[:_SHOWN]}..."
        line = f": {shown!a}" if shown else ""
        return f"line {self.line}: {self.reason}{line}" if self.line else f"{self.reason}{line}"


class AclFileError(Exception):
    """An ACL file cannot be used. The text is one line.

    Attributes:
        path: the file.
        problems: all that is wrong with it, in the order of its lines.
    """

    def __init__(self, path: str, problems: Sequence[Problem]) -> None:
        more = len(problems) - _TOLD
        texts = [*map(str, problems[:_TOLD]), *([f"and {more} more"] if more > 0 else [])]
        super().__init__(f"{path}: {'; '.join(texts)}")
        self.path, self.problems = path, tuple(problems)


# ---- hosts ----

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
    """The address in a text, or None. An IPv4 address written as an IPv6 address is the former."""
    try:
        address = ipaddress.ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def read_hosts(value: str, find: Resolve) -> tuple[HostRange, ...]:
    """The addresses of a value; empty for all.

    Raises:
        HostError: it names no address, or an invalid range.
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
        raise HostError(f'"{value}" is not a range: the second address must be larger than the first')
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


# ---- rules ----

Counted: TypeAlias = Literal["connections", "queues"]
"""The objects that a quota limits."""


class Rule(NamedTuple):
    """A rule.

    Attributes:
        number: its number among the rules of its file, counted from 1.
        line: the number of its line, counted from 1.
        permission: its decision.
        subject: the user, the group or `all`, as written.
        users: the users whom it concerns; None for all.
        action, object_type: its operation; None for all.
        properties: its properties and their values.
        hosts: the addresses of its property `host`; empty for all of them, and without that property.
    """

    number: int
    line: int
    permission: Permission
    subject: str
    users: frozenset[str] | None
    action: Action | None
    object_type: ObjectType | None
    properties: tuple[tuple[Property, str], ...] = ()
    hosts: tuple[HostRange, ...] = ()

    @property
    def is_mode(self) -> bool:
        """Whether it decides about everything that no other rule decides about."""
        return self.users is None and self.action is None and self.object_type is None and not self.properties

    @property
    def is_about_connections(self) -> bool:
        """Whether it is about the creation of connections: only rules that say so are."""
        return self.action is Action.CREATE and self.object_type is ObjectType.CONNECTION

    @property
    def is_about_publishing(self) -> bool:
        """Whether messages must be checked for its sake."""
        return not self.is_mode and self.fits(Action.PUBLISH, ObjectType.EXCHANGE)

    def fits(self, action: Action, object_type: ObjectType) -> bool:
        """Whether it is about this action and this object."""
        return self.action in (None, action) and self.object_type in (None, object_type)

    @property
    def lookups(self) -> list[int]:
        """The numbers of the lookups that it may match."""
        asked = {each.asked for each, _ in self.properties}
        return [number for number, each in lookups_for(self.action, self.object_type).items() if asked <= each.asked]

    def __str__(self) -> str:
        action = ALL if self.action is None else self.action.value
        object_type = ALL if self.object_type is None else self.object_type.value
        given = "".join(f" {each.name}={value}" for each, value in self.properties)
        return f"{self.permission.value} {self.subject} {action} {object_type}{given}"


class Quota(NamedTuple):
    """How many connections or queues each of some users may have.

    Attributes:
        line: the number of its line, counted from 1.
        counted: the objects it limits.
        limit: how many.
        users: the users whom it concerns; None for those without another one.
    """

    line: int
    counted: Counted
    limit: int
    users: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class RuleSet:
    """The content of a file.

    Attributes:
        version: the version of its format, 1 to 3.
        rules: in the order of the file; the first that matches decides.
        quotas: likewise; the last one for a user counts.
        groups: name -> users.
        default: what is decided without a matching rule.
        warnings: the rules without effect.
    """

    version: int
    rules: tuple[Rule, ...] = ()
    quotas: tuple[Quota, ...] = ()
    groups: Mapping[str, frozenset[str]] = field(default_factory=dict)
    default: Permission = Permission.DENY
    warnings: tuple[Problem, ...] = ()

    def limits(self, counted: Counted) -> tuple[dict[str, int], int | None]:
        """The quotas of the users that are named, and that of all others; None if none is given."""
        named: dict[str, int] = {}
        others: int | None = None
        for each in self.quotas:
            if each.counted != counted:
                continue
            if each.users is None:
                others = each.limit
            else:
                named.update(dict.fromkeys(each.users, each.limit))
        return named, others
