"""Broker URLs in the syntax of the Qpid clients.

    url        = [ ( "amqp:" | "amqps:" ) [ "//" ] ] [ user [ ( "/" | ":" ) password ] "@" ] endpoint *( "," endpoint )
    endpoint   = [ "tcp:" | "ssl:" ] host [ ":" port ]       host may be an IPv6 address in brackets

`amqps:` and `ssl:` are TLS, whose default port is another one. Examples: `localhost`, `10.1.1.7:10000`,
`guest/guest@localhost`, `amqp:tcp:127.0.0.1:5672,tcp:other`, `amqps://example.com`, `ssl:example.com:5671`.

Sources: Qpid C++ Broker Book, 1.12.8; MRG 2 Messaging User Guide, 7.1 (--cluster-url).
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from qstore.broker.client.errors import UrlError

DEFAULT_PORT: Final = 5672
DEFAULT_TLS_PORT: Final = 5671

_match_endpoint: Final = re.compile(
    r"(?:(?P<transport>tcp|ssl|amqps):)?(?:\[(?P<v6>[0-9a-fA-F:.%\w]+)\]|(?P<host>[^\s\[\]:/@,]+))(?::(?P<port>\d+))?"
).fullmatch


class Endpoint(NamedTuple):
    """A host and a TCP port, and whether connections are encrypted with TLS."""

    host: str
    port: int = DEFAULT_PORT
    is_encrypted: bool = False

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


def parse_url(text: str, *, is_encrypted: bool = False) -> Url:
    """Parse a broker URL.

    Args:
        text: the URL.
        is_encrypted: whether endpoints are encrypted unless the URL tells their transport.

    Raises:
        UrlError: it is invalid, or has a transport other than TCP and TLS.
    """
    rest = text.strip()
    if rest.startswith("amqps:"):
        is_encrypted = True
    rest = rest.removeprefix("amqps:").removeprefix("amqp:").removeprefix("//").rstrip("/")
    user, at, hosts = rest.rpartition("@")
    username = password = None
    if at:
        found = re.fullmatch(r"([^/:]*)(?:[/:](.*))?", user, re.DOTALL)
        assert found is not None
        username, password = found[1], found[2]
    endpoints = tuple(_parse_endpoint(text, part.strip(), is_encrypted=is_encrypted) for part in hosts.split(","))
    return Url(endpoints, username, password)


def _parse_endpoint(text: str, endpoint: str, *, is_encrypted: bool) -> Endpoint:
    shown = text.rpartition("@")[2]  # never the password
    if endpoint.startswith("rdma:"):
        raise UrlError(f"{shown}: the transport rdma is not supported: use tcp or ssl")
    found = _match_endpoint(endpoint)
    if found is None:
        raise UrlError(f"{shown}: {endpoint!r} is not host[:port]")
    if found["transport"]:
        is_encrypted = found["transport"] != "tcp"
    port = int(found["port"] or (DEFAULT_TLS_PORT if is_encrypted else DEFAULT_PORT))
    if not 0 < port < 0x10000:
        raise UrlError(f"{shown}: invalid port {port}")
    return Endpoint(found["v6"] or found["host"], port, is_encrypted)
