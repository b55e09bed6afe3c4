"""Where a broker is: URLs as the Qpid clients take them.

    url        = [ "amqp:" [ "//" ] ] [ user [ "/" password | ":" password ] "@" ] place *( "," place )
    place      = [ "tcp:" ] host [ ":" port ]          host may be an IPv6 address in brackets

`localhost`, `10.1.1.7:10000`, `guest/guest@localhost` and `amqp:tcp:127.0.0.1:5672,tcp:other` are all URLs.

Sources: Qpid C++ Broker Book, 1.12.8; MRG 2 Messaging User Guide, 7.1 (--cluster-url).
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from broker.client.errors import UrlError

DEFAULT_PORT: Final = 5672

_match_place: Final = re.compile(
    r"(?:tcp:)?(?:\[(?P<v6>[0-9a-fA-F:.%\w]+)\]|(?P<host>[^\s\[\]:/@,]+))(?::(?P<port>\d+))?"
).fullmatch


class Place(NamedTuple):
    """A host and a TCP port."""

    host: str
    port: int = DEFAULT_PORT

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Url(NamedTuple):
    """The places of a broker, in the order in which they are tried, and who we are there.

    Attributes:
        places: at least one.
        username, password: None where the URL does not say.
    """

    places: tuple[Place, ...]
    username: str | None = None
    password: str | None = None


def parse_url(text: str) -> Url:
    """Read a broker's URL.

    Raises:
        UrlError: it is none, or names a transport other than TCP.
    """
    rest = text.strip().removeprefix("amqp:").removeprefix("//").rstrip("/")
    user, at, hosts = rest.rpartition("@")
    username = password = None
    if at:
        found = re.fullmatch(r"([^/:]*)(?:[/:](.*))?", user, re.DOTALL)
        assert found is not None
        username, password = found[1], found[2]
    return Url(tuple(_parse_place(text, hosts_part.strip()) for hosts_part in hosts.split(",")), username, password)


def _parse_place(text: str, place: str) -> Place:
    shown = text.rpartition("@")[2]  # never the password
    if place.startswith(("ssl:", "amqps:", "rdma:")):
        raise UrlError(f"{shown}: the transport {place.partition(':')[0]} is not supported: use tcp")
    found = _match_place(place)
    if found is None:
        raise UrlError(f"{shown}: {place!r} is no host[:port]")
    port = int(found["port"] or DEFAULT_PORT)
    if not 0 < port < 0x10000:
        raise UrlError(f"{shown}: there is no port {port}")
    return Place(found["v6"] or found["host"], port)
