"""Broker URLs in the syntax of the Qpid clients.

    url        = [ "amqp:" [ "//" ] ] [ user [ "/" password | ":" password ] "@" ] endpoint *( "," endpoint )
    endpoint   = [ "tcp:" ] host [ ":" port ]                host may be an IPv6 address in brackets

Examples: `localhost`, `10.1.1.7:10000`, `guest/guest@localhost`, `amqp:tcp:127.0.0.1:5672,tcp:other`.

Sources: Qpid C++ Broker Book, 1.12.8; MRG 2 Messaging User Guide, 7.1 (--cluster-url).
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from qstore.broker.client.errors import UrlError

DEFAULT_PORT: Final = 5672

_match_endpoint: Final = re.compile(
    r"(?:tcp:)?(?:\[(?P<v6>[0-9a-fA-F:.%\w]+)\]|(?P<host>[^\s\[\]:/@,]+))(?::(?P<port>\d+))?"
).fullmatch


class Endpoint(NamedTuple):
    """A host and a TCP port."""

    host: str
    port: int = DEFAULT_PORT

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Url(NamedTuple):
    """A parsed broker URL.

    Attributes:
        endpoints: hosts and ports in the order in which they are tried; at least one.
        username, password: None if they are not in the URL.
    """

    endpoints: tuple[Endpoint, ...]
    username: str | None = None
    password: str | None = None


def parse_url(text: str) -> Url:
    """Parse a broker URL.

    Raises:
        UrlError: it is invalid, or has a transport other than TCP.
    """
    rest = text.strip().removeprefix("amqp:").removeprefix("//").rstrip("/")
    user, at, hosts = rest.rpartition("@")
    username = password = None
    if at:
        found = re.fullmatch(r"([^/:]*)(?:[/:](.*))?", user, re.DOTALL)
        assert found is not None
        username, password = found[1], found[2]
    return Url(tuple(_parse_endpoint(text, hosts_part.strip()) for hosts_part in hosts.split(",")), username, password)


def _parse_endpoint(text: str, endpoint: str) -> Endpoint:
    shown = text.rpartition("@")[2]  # never the password
    if endpoint.startswith(("ssl:", "amqps:", "rdma:")):
        raise UrlError(f"{shown}: the transport {endpoint.partition(':')[0]} is not supported: use tcp")
    found = _match_endpoint(endpoint)
    if found is None:
        raise UrlError(f"{shown}: {endpoint!r} is not host[:port]")
    port = int(found["port"] or DEFAULT_PORT)
    if not 0 < port < 0x10000:
        raise UrlError(f"{shown}: invalid port {port}")
    return Endpoint(found["v6"] or found["host"], port)
