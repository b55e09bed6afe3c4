r"""The firewall: from which hosts clients may connect, to the broker and to each virtual host.

One rule a line; the first that matches the client decides:

    default ACTION                          where no rule matches; allow without it
    ACTION network NETWORK[,NETWORK...]     192.168.1.0/24, 10.1.2.3, 2001:db8::/32
    ACTION host PATTERN[,PATTERN...]        .*\.example\.com: a regular expression for the whole name of the host;
                                            *.example.com is short for that
    vhost NAME LINE                         one of these lines, only for clients that open this virtual host

ACTION is allow or deny. Empty lines, and those that begin with `#`, are comments; white space may follow a comma. A
comma in a repetition of a regular expression, as in `build[0-9]{1,3}`, separates nothing. IPv4 addresses and networks
may be written as IPv6 ones, ::ffff:10.0.0.0/104, and are the same.

The rules of a virtual host are tried first, then its default if it has one, then those without virtual host: a network
can be kept out of all virtual hosts but one. The virtual host is known when the client opens it. So a client is
disconnected at once only if no virtual host would have it.

The name is what the client's address resolves to, provided that the name resolves to the address (RFC 8499, "reverse
DNS"; anyone can give his own addresses any name, but not the other way round). It is looked up only if a rule with
names may decide. If there is no such name, or the resolver does not answer in time, a rule that allows does not match,
and one that denies does: the firewall fails closed.

Sources: Qpid wiki, "Firewall Configuration" and "IP Whitelisting" (the Java broker's <firewall>).
"""

from __future__ import annotations

import ipaddress
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from qstore.broker.log.logs import log_of
from qstore.broker.model.errors import InvalidArgumentError
from qstore.broker.model.patterns import compile_pattern
from qstore.broker.security.acl.rules import Address, read_address
from qstore.formats.named_tuple import NamedTuple

_LOG: Final = log_of("Security")

MAX_FILE: Final = 1 << 20
MAX_RULES: Final = 1_000
MAX_ITEMS: Final = 1_000
"""Networks, or patterns, of a rule."""
_COMMA: Final = re.compile(r",(?![0-9]*\})")
_MAPPED_BITS: Final = 96
"""Bits before an IPv4 address in an IPv6 one (RFC 4291, section 2.5.5.2)."""
_ACTIONS: Final = {"allow": True, "deny": False}
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


class FirewallError(Exception):
    """A file cannot be used. The text is one line."""


class Rule(NamedTuple):
    """A rule.

    Attributes:
        line: the number of its line, counted from 1.
        allows: whether the clients that it matches may connect.
        networks: the addresses that it matches, as version and number of host bits -> the networks without these; empty
            for a rule with names. So a thousand networks are looked up, and not tried one by one.
        patterns: the names that it matches; empty for a rule with networks.
    """

    line: int
    allows: bool
    networks: Mapping[tuple[int, int], frozenset[int]] = {}
    patterns: tuple[re.Pattern[str], ...] = ()

    def matches(self, address: Address | None, name: str) -> bool:
        """Whether it matches a client; without address or name, as one that must not get in."""
        if self.networks:
            if address is None:
                return not self.allows
            version, number = address.version, int(address)
            return any(number >> bits in found for (of, bits), found in self.networks.items() if of == version)
        if not name:
            return not self.allows
        return any(each.fullmatch(name) for each in self.patterns)


@dataclass(frozen=True, slots=True)
class Firewall:
    """The content of a file.

    Attributes:
        rules: virtual host, or "" for all -> its rules, in the order of the file.
        defaults: likewise -> whether clients that no rule matches may connect.
    """

    rules: Mapping[str, tuple[Rule, ...]] = field(default_factory=dict)
    defaults: Mapping[str, bool] = field(default_factory=dict)

    def admits(self, host: str, name: str, vhost: str) -> bool:
        """Whether a client may open a virtual host.

        Args:
            host: its address.
            name: the name of its host; empty if there is none, or it is not known.
            vhost: the virtual host.
        """
        address = read_address(host)
        general = self._decide(address, name, "", otherwise=True)
        return self._decide(address, name, vhost, otherwise=general)

    def admits_somewhere(self, host: str, name: str) -> bool:
        """Whether there is a virtual host that a client may open, with arguments as above."""
        address = read_address(host)
        general = self._decide(address, name, "", otherwise=True)
        return general or any(
            self._decide(address, name, each, otherwise=False) for each in {*self.rules, *self.defaults}
        )

    def needs_name(self, host: str) -> bool:
        """Whether a rule with names may decide about a client with this address."""
        address = read_address(host)
        return any(_begin_by_name(rules, address) for rules in self.rules.values())

    def _decide(self, address: Address | None, name: str, vhost: str, *, otherwise: bool) -> bool:
        """The decision by what the file has for one virtual host, or for all; `otherwise` if it has nothing."""
        for rule in self.rules.get(vhost, ()):
            if rule.matches(address, name):
                return rule.allows
        return self.defaults.get(vhost, otherwise)


def _begin_by_name(rules: Sequence[Rule], address: Address | None) -> bool:
    """Whether a rule with names comes before the first one that decides about an address."""
    for rule in rules:
        if rule.patterns or rule.matches(address, ""):
            return bool(rule.patterns)
    return False


def read_file(path: str) -> Firewall:
    """Read a file, and warn of insecure permissions of it. Raises FirewallError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise FirewallError(f"{path}: the firewall file is not a file")
            data = file.read(MAX_FILE + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FirewallError(f"{path}: the firewall file cannot be read: {reason}") from None
    if mode & 0o022:
        _LOG.warning("%s: users other than its owner can change the firewall file (mode %o)", path, mode & 0o777)
    if len(data) > MAX_FILE:
        raise FirewallError(f"{path}: the firewall file is larger than {MAX_FILE:,} bytes")
    try:
        return read(data.decode())
    except UnicodeDecodeError:
        raise FirewallError(f"{path}: the firewall file is not UTF-8") from None
    except FirewallError as error:
        raise FirewallError(f"{path}: {error}") from None


def read(text: str) -> Firewall:
    """Read the content of a file. Raises FirewallError."""
    rules: dict[str, list[Rule]] = {}
    defaults: dict[str, bool] = {}
    count = 0
    for number, line in enumerate(text.split("\n"), 1):
        words = re.sub(r",\s+", ",", line).split()
        if not words or words[0].startswith("#"):
            continue
        count += 1
        if count > MAX_RULES:
            raise FirewallError(f"line {number}: more than {MAX_RULES:,} rules")
        vhost = ""
        if words[0] == "vhost" and len(words) > 2:
            vhost, words = words[1], words[2:]
        try:
            if words[0] == "default":
                if vhost in defaults:
                    raise ValueError("a second default")
                defaults[vhost] = _action(words, 1)
                _at_end(words, 2)
            else:
                rules.setdefault(vhost, []).append(_rule(number, words))
        except ValueError as error:
            raise FirewallError(f"line {number}: {error}") from None
    return Firewall({vhost: tuple(found) for vhost, found in rules.items()}, defaults)


def _rule(line: int, words: list[str]) -> Rule:
    allows = _action(words, 0)
    kind, items = words[1] if len(words) > 1 else "", _COMMA.split(words[2]) if len(words) > 2 else []
    if kind not in ("network", "host") or not all(items) or not 0 < len(items) <= MAX_ITEMS:
        raise ValueError('not "network" or "host", with values after it that are separated by commas')
    _at_end(words, 3)
    if kind == "host":
        return Rule(line, allows, patterns=tuple(map(_pattern, items)))
    networks: dict[tuple[int, int], set[int]] = {}
    for each in map(_network, items):
        bits = each.max_prefixlen - each.prefixlen
        networks.setdefault((each.version, bits), set()).add(int(each.network_address) >> bits)
    return Rule(line, allows, {each: frozenset(found) for each, found in networks.items()})


def _action(words: list[str], at: int) -> bool:
    word = words[at] if len(words) > at else ""
    if word not in _ACTIONS:
        raise ValueError(f"{word[:64]!a} is not allow or deny")
    return _ACTIONS[word]


def _at_end(words: list[str], at: int) -> None:
    if len(words) > at:
        raise ValueError(f"{words[at][:64]!a} is too much")


def _network(text: str) -> Network:
    try:
        network = ipaddress.ip_network(text)
    except ValueError:
        raise ValueError(f"{text[:64]!a} is not a network, such as 192.168.1.0/24") from None
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    return network if mapped is None else ipaddress.IPv4Network((mapped, network.prefixlen - _MAPPED_BITS))


def _pattern(text: str) -> re.Pattern[str]:
    pattern = f".+{re.escape(text[1:])}" if text.startswith("*.") else text
    try:
        return compile_pattern(f"{text[:64]!a}", f"^(?i:{pattern})$")
    except InvalidArgumentError as error:
        raise ValueError(str(error)) from None
