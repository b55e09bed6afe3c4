"""The options of a connection, as one table, and their values.

Names are those of the Qpid Messaging API; `-` and `_` are the same in them. Values come as Python values, or as the
words of an address string's map (`{reconnect: true, heartbeat: 10}`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from broker.client.errors import UrlError
from broker.client.url import Place, parse_url


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """What a connection is told beyond its URL.

    Attributes:
        username, password: for SASL; they come before those of the URL.
        sasl_mechanisms: names of the mechanisms that may be used, None for all that we have.
        virtual_host: asked for when the connection is opened.
        heartbeat: seconds, 0 for none. Two intervals without a sign of life end the connection.
        connect_timeout: seconds that one attempt to connect and open may take.
        reconnect: connect again when the connection is lost.
        reconnect_timeout: seconds after which reconnecting is given up, None for never.
        reconnect_limit: attempts after which reconnecting is given up, None for no limit.
        reconnect_interval_min, reconnect_interval_max: seconds between two rounds of attempts: doubled from one to
            the other.
        reconnect_urls: further places that are tried, after those of the URL.
        tcp_nodelay: send small segments at once.
        client_properties: told to the broker when connecting.
    """

    username: str | None = None
    password: str | None = None
    sasl_mechanisms: tuple[str, ...] | None = None
    virtual_host: str = ""
    heartbeat: int = 0
    connect_timeout: float = 30.0
    reconnect: bool = False
    reconnect_timeout: float | None = None
    reconnect_limit: int | None = None
    reconnect_interval_min: float = 0.1
    reconnect_interval_max: float = 2.0
    reconnect_urls: tuple[Place, ...] = ()
    tcp_nodelay: bool = True
    client_properties: Mapping[str, Any] | None = None


def _boolean(value: Any) -> bool:
    words = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
    found = words.get(value.lower()) if isinstance(value, str) else value
    if found not in (True, False):
        raise ValueError("true or false is needed")
    return bool(found)


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not 0 <= seconds < 1e9:
        raise ValueError("seconds, 0 or more, are needed")
    return seconds


def _count(value: Any) -> int:
    count = int(value)
    if not 0 <= count < 1 << 31:
        raise ValueError("a number, 0 or more, is needed")
    return count


def _heartbeat(value: Any) -> int:
    seconds = _count(value)
    if seconds > 0xFFFF:
        raise ValueError("a heartbeat has at most 65535 seconds")
    return seconds


def _text(value: Any) -> str:
    if isinstance(value, (dict, list)):
        raise TypeError("text is needed")
    return str(value)


def _mechanisms(value: Any) -> tuple[str, ...]:
    names = value.replace(",", " ").split() if isinstance(value, str) else value
    return tuple(str(name).upper() for name in names)


def _places(value: Any) -> tuple[Place, ...]:
    urls = value.split(",") if isinstance(value, str) else value
    return tuple(place for url in urls for place in parse_url(str(url)).places)


def _properties(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError("a map is needed")
    return dict(value)


def _never(value: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda given: None if given is None else value(given)


#: Name -> (attribute of `ConnectionOptions`, how its value is read).
TABLE: Final[dict[str, tuple[tuple[str, ...], Callable[[Any], Any]]]] = {
    "username": (("username",), _never(_text)),
    "password": (("password",), _never(_text)),
    "sasl_mechanisms": (("sasl_mechanisms",), _never(_mechanisms)),
    "sasl_mechanism": (("sasl_mechanisms",), _never(_mechanisms)),
    "virtual_host": (("virtual_host",), _text),
    "heartbeat": (("heartbeat",), _heartbeat),
    "connect_timeout": (("connect_timeout",), _seconds),
    "reconnect": (("reconnect",), _boolean),
    "reconnect_timeout": (("reconnect_timeout",), _never(_seconds)),
    "reconnect_limit": (("reconnect_limit",), _never(_count)),
    "reconnect_interval": (("reconnect_interval_min", "reconnect_interval_max"), _seconds),
    "reconnect_interval_min": (("reconnect_interval_min",), _seconds),
    "reconnect_interval_max": (("reconnect_interval_max",), _seconds),
    "reconnect_urls": (("reconnect_urls",), _places),
    "tcp_nodelay": (("tcp_nodelay",), _boolean),
    "client_properties": (("client_properties",), _properties),
}


def connection_options(values: Mapping[str, Any]) -> ConnectionOptions:
    """The options that `values` make.

    Raises:
        UrlError: there is no such option, or it cannot have that value.
    """
    found: dict[str, Any] = {}
    for given, value in values.items():
        name = given.replace("-", "_")
        if name not in TABLE:
            raise UrlError(f"there is no connection option {given!r}: there are {', '.join(TABLE)}")
        attributes, read = TABLE[name]
        try:
            found.update(dict.fromkeys(attributes, read(value)))
        except (TypeError, ValueError, AttributeError) as error:
            shown = "" if name == "password" else f" cannot be {value!r}"
            raise UrlError(f"connection option {given}{shown}: {error}") from None
    return ConnectionOptions(**found)
