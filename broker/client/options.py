"""The options of a connection.

Names are those of the Qpid Messaging API, in which `-` and `_` are equivalent. Values are Python values, or the words
of a map in the syntax of address strings (`{reconnect: true, heartbeat: 10}`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from qstore.broker.client.errors import UrlError
from qstore.broker.client.url import Endpoint, parse_url
from qstore.broker.security.sasl.kerberos import SERVICE


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """The options of a connection.

    Attributes:
        username, password: for SASL; they take precedence over those in the URL.
        sasl_mechanisms: names of the mechanisms that may be used; None for all.
        sasl_service: the first part of the broker's Kerberos principal, for GSSAPI.
        virtual_host: the virtual host to open.
        heartbeat: heartbeat interval in seconds; 0 for none. Two intervals without data end the connection.
        connect_timeout: time limit of one attempt to connect and open, in seconds.
        reconnect: whether to reconnect when the connection is lost.
        reconnect_timeout: seconds after which to give up reconnecting; None for never.
        reconnect_limit: attempts after which to give up reconnecting; None for no limit.
        reconnect_interval_min, reconnect_interval_max: seconds between two rounds of attempts: the interval doubles
            from the minimum to the maximum.
        reconnect_urls: further endpoints to try after those of the URL.
        transport: `tcp`, or `ssl` for connections with TLS; the URL's transport takes precedence.
        ssl_certificate: file with the client's certificate, in PEM format; None for none.
        ssl_key: file with its private key; None if it is in the same file.
        ssl_trustfile: file with the certificates of the authorities to trust; None for those of the system.
        ssl_skip_hostname_check: whether to accept a broker's certificate with another host name.
        tcp_nodelay: whether to set TCP_NODELAY, to send small segments without delay.
        client_properties: sent to the broker when connecting.
        max_message_bytes: of all incompletely received messages together; the connection ends if there are more.
    """

    username: str | None = None
    password: str | None = None
    sasl_mechanisms: tuple[str, ...] | None = None
    sasl_service: str = SERVICE
    virtual_host: str = ""
    heartbeat: int = 0
    connect_timeout: float = 30.0
    reconnect: bool = False
    reconnect_timeout: float | None = None
    reconnect_limit: int | None = None
    reconnect_interval_min: float = 0.1
    reconnect_interval_max: float = 2.0
    reconnect_urls: tuple[Endpoint, ...] = ()
    transport: str = "tcp"
    ssl_certificate: str | None = None
    ssl_key: str | None = None
    ssl_trustfile: str | None = None
    ssl_skip_hostname_check: bool = False
    tcp_nodelay: bool = True
    client_properties: Mapping[str, Any] | None = None
    max_message_bytes: int = 2 << 30


def _boolean(value: Any) -> bool:
    words = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
    found = words.get(value.lower()) if isinstance(value, str) else value
    if found not in (True, False):
        raise ValueError("it must be true or false")
    return bool(found)


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not 0 <= seconds < 1e9:
        raise ValueError("it must be a number of seconds, 0 or more")
    return seconds


def _count(value: Any) -> int:
    count = int(value)
    if not 0 <= count <= 1 << 31:
        raise ValueError("it must be a number, 0 or more")
    return count


def _heartbeat(value: Any) -> int:
    seconds = _count(value)
    if seconds > 0xFFFF:
        raise ValueError("it must be at most 65535 seconds")
    return seconds


def _text(value: Any) -> str:
    if isinstance(value, (dict, list)):
        raise TypeError("it must be text")
    return str(value)


def _transport(value: Any) -> str:
    found = {"tcp": "tcp", "ssl": "ssl", "tls": "ssl", "tcp+tls": "ssl"}.get(str(value).lower())
    if found is None:
        raise ValueError("it must be tcp or ssl")
    return found


def _mechanisms(value: Any) -> tuple[str, ...]:
    names = value.replace(",", " ").split() if isinstance(value, str) else value
    return tuple(str(name).upper() for name in names)


def _endpoints(value: Any) -> tuple[Endpoint, ...]:
    urls = value.split(",") if isinstance(value, str) else value
    return tuple(endpoint for url in urls for endpoint in parse_url(str(url)).endpoints)


def _properties(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError("it must be a map")
    return dict(value)


def _never(value: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda given: None if given is None else value(given)


#: Name -> (attributes of `ConnectionOptions`, function that converts the value).
TABLE: Final[dict[str, tuple[tuple[str, ...], Callable[[Any], Any]]]] = {
    "username": (("username",), _never(_text)),
    "password": (("password",), _never(_text)),
    "sasl_mechanisms": (("sasl_mechanisms",), _never(_mechanisms)),
    "sasl_mechanism": (("sasl_mechanisms",), _never(_mechanisms)),
    "sasl_service": (("sasl_service",), _text),
    "virtual_host": (("virtual_host",), _text),
    "heartbeat": (("heartbeat",), _heartbeat),
    "connect_timeout": (("connect_timeout",), _seconds),
    "reconnect": (("reconnect",), _boolean),
    "reconnect_timeout": (("reconnect_timeout",), _never(_seconds)),
    "reconnect_limit": (("reconnect_limit",), _never(_count)),
    "reconnect_interval": (("reconnect_interval_min", "reconnect_interval_max"), _seconds),
    "reconnect_interval_min": (("reconnect_interval_min",), _seconds),
    "reconnect_interval_max": (("reconnect_interval_max",), _seconds),
    "reconnect_urls": (("reconnect_urls",), _endpoints),
    "transport": (("transport",), _transport),
    "ssl_certificate": (("ssl_certificate",), _never(_text)),
    "ssl_certfile": (("ssl_certificate",), _never(_text)),
    "ssl_key": (("ssl_key",), _never(_text)),
    "ssl_keyfile": (("ssl_key",), _never(_text)),
    "ssl_trustfile": (("ssl_trustfile",), _never(_text)),
    "ssl_skip_hostname_check": (("ssl_skip_hostname_check",), _boolean),
    "tcp_nodelay": (("tcp_nodelay",), _boolean),
    "client_properties": (("client_properties",), _properties),
    "max_message_bytes": (("max_message_bytes",), _count),
}


def connection_options(values: Mapping[str, Any]) -> ConnectionOptions:
    """Convert option names and values.

    Raises:
        UrlError: an option is unknown, or its value is invalid.
    """
    found: dict[str, Any] = {}
    for given, value in values.items():
        name = given.replace("-", "_")
        if name not in TABLE:
            raise UrlError(f"unknown connection option {given!r}; the options are {', '.join(TABLE)}")
        attributes, read = TABLE[name]
        try:
            found.update(dict.fromkeys(attributes, read(value)))
        except (TypeError, ValueError, AttributeError) as error:
            shown = "" if name == "password" else f" cannot be {value!r}"
            raise UrlError(f"connection option {given}{shown}: {error}") from None
    return ConnectionOptions(**found)
