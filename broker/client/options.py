"""The options of a connection: broker URLs, options by name, and their effect on TLS.

**URLs** have the syntax of the Qpid clients:

    url        = [ ( "amqp:" | "amqps:" ) [ "//" ] ] [ user [ ( "/" | ":" ) password ] "@" ] endpoint *( "," endpoint )
                 [ "/" [ virtual-host ] ]                 percent-encoded
    endpoint   = [ "tcp:" | "ssl:" ] host [ ":" port ]       host may be an IPv6 address in brackets

`amqps:` and `ssl:` are TLS, whose default port is another one. Examples: `localhost`, `10.1.1.7:10000`,
`guest/guest@localhost`, `amqp://localhost/blue`, `amqp:tcp:127.0.0.1:5672,tcp:other`, `amqps://example.com`,
`ssl:example.com:5671`.

**Options** have the names of the Qpid Messaging API, in which `-` and `_` are equivalent. Values are Python values, or
the words of a map in the syntax of address strings (`{reconnect: true, heartbeat: 10}`).

Sources: Qpid C++ Broker Book, 1.12.8; MRG 2 Messaging User Guide, 7.1 (--cluster-url).
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from qstore.broker.client.errors import ConnectError, UrlError
from qstore.broker.security.sasl.exchange import ClientMechanism
from qstore.broker.security.sasl.kerberos import SERVICE
from qstore.broker.security.sasl.simple import ANONYMOUS, EXTERNAL
from qstore.broker.security.sasl.table import TABLE as MECHANISMS
from qstore.broker.security.sasl.table import Credentials, Needs, choose_mechanism
from qstore.broker.security.tls import tls_reason

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
        virtual_host: the virtual host; empty if it is not in the URL.
    """

    endpoints: tuple[Endpoint, ...]
    username: str | None = None
    password: str | None = None
    virtual_host: str = ""


def parse_url(text: str, *, is_encrypted: bool = False) -> Url:
    """Parse a broker URL.

    Args:
        text: the URL.
        is_encrypted: whether endpoints are encrypted unless the URL names their transport.

    Raises:
        UrlError: it is invalid, or has a transport other than TCP and TLS.
    """
    rest = text.strip()
    if rest.startswith("amqps:"):
        is_encrypted = True
    rest = rest.removeprefix("amqps:").removeprefix("amqp:").removeprefix("//")
    user, at, hosts = rest.rpartition("@")
    username = password = None
    if at:
        found = re.fullmatch(r"([^/:]*)(?:[/:](.*))?", user, re.DOTALL)
        assert found is not None
        username, password = found[1], found[2]
    hosts, _, path = hosts.partition("/")
    endpoints = tuple(_parse_endpoint(text, part.strip(), is_encrypted=is_encrypted) for part in hosts.split(","))
    return Url(endpoints, username, password, unquote(path))


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


# ---- options ----

AMQP_0_10: Final = "amqp0-10"
AMQP_1_0: Final = "amqp1.0"


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """The options of a connection.

    Attributes:
        protocol: `amqp0-10` or `amqp1.0`.
        container_id: with AMQP 1.0, the name of the client's container; None for a unique one.
        nest_annotations: with AMQP 1.0, whether the annotations of a message are in maps of their own.
        username, password: for SASL; they take precedence over those in the URL.
        sasl_mechanisms: names of the mechanisms that may be used; None for all. With AMQP 1.0, NONE leaves out SASL.
        sasl_service: the first part of the broker's Kerberos principal, for GSSAPI.
        virtual_host: the virtual host to open; it takes precedence over that in the URL.
        heartbeat: heartbeat interval in seconds; 0 for none. Two intervals without data end the connection.
        connect_timeout: time limit of one attempt to connect and open, in seconds.
        reconnect: whether to reconnect when the connection is lost.
        reconnect_timeout: seconds after which to give up reconnecting; None for never.
        reconnect_limit: attempts after which to give up reconnecting; None for no limit.
        reconnect_interval_min, reconnect_interval_max: seconds between two rounds of attempts: the interval doubles
            from the minimum to the maximum.
        reconnect_urls: further endpoints to try after those of the URL.
        failover_updates: whether to try, too, those that the broker announces (the exchange
            `amq.failover`); AMQP 0-10 only.
        transport: `tcp`, or `ssl` for connections with TLS; the URL's transport takes precedence.
        ssl_certificate: file with the client's certificate, in PEM format; None for none.
        ssl_key: file with its private key; None if it is in the same file.
        ssl_trustfile: file with the certificates of the authorities to trust; None for those of the system.
        ssl_skip_hostname_check: whether to accept a broker's certificate with another host name.
        tcp_nodelay: whether to set TCP_NODELAY, to send small segments without delay.
        client_properties: sent to the broker when connecting.
        max_message_bytes: of all incompletely received messages together; the connection ends if there are more.
    """

    protocol: str = AMQP_0_10
    container_id: str | None = None
    nest_annotations: bool = False
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
    failover_updates: bool = False
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


def _protocol(value: Any) -> str:
    if value not in (AMQP_0_10, AMQP_1_0):
        raise ValueError(f"it must be {AMQP_0_10} or {AMQP_1_0}")
    return str(value)


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
    "protocol": (("protocol",), _protocol),
    "container_id": (("container_id",), _never(_text)),
    "nest_annotations": (("nest_annotations",), _boolean),
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
    "failover_updates": (("failover_updates",), _boolean),
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


# ---- TLS ----


def client_context(options: ConnectionOptions) -> ssl.SSLContext:
    """The context for the connections of these options.

    The broker's certificate must be valid, of an authority in `ssl_trustfile` (by default those that the system
    trusts), and have the name of the host, unless `ssl_skip_hostname_check` is set.

    Raises:
        ConnectError: a file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = not options.ssl_skip_hostname_check
    if options.ssl_trustfile is None:
        context.load_default_certs()
    else:
        _check_readable(options.ssl_trustfile, "ssl_trustfile")
        try:
            context.load_verify_locations(options.ssl_trustfile)
        except ssl.SSLError as error:
            raise ConnectError(
                f"{options.ssl_trustfile}: no certificates in PEM format: {tls_reason(error)}; see ssl_trustfile"
            ) from None
    if options.ssl_certificate is not None:
        _load_certificate(context, options.ssl_certificate, options.ssl_key)
    return context


def _load_certificate(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    _check_readable(certificate, "ssl_certificate")
    if key is not None:
        _check_readable(key, "ssl_key")
    try:
        context.load_cert_chain(certificate, key, lambda: b"")
    except ssl.SSLError as error:
        raise ConnectError(
            f"{certificate}{'' if key is None else ' and ' + key}: no certificate with its private key, without a "
            f"password, in PEM format: {tls_reason(error)}; see ssl_certificate and ssl_key"
        ) from None


def _check_readable(path: str, option: str) -> None:
    try:
        with Path(path).open("rb"):
            return
    except OSError as error:
        raise ConnectError(f"{path}: cannot be read: {error.strerror}; see {option}") from None


# ---- SASL ----


def mechanism_chooser(
    options: ConnectionOptions, credentials: Credentials
) -> Callable[[tuple[str, ...]], ClientMechanism]:
    """The function that chooses one of the broker's mechanisms. It raises ValueError if the client can use none."""

    def choose(offered: tuple[str, ...]) -> ClientMechanism:
        mechanism = choose_mechanism(offered, options.sasl_mechanisms, credentials)
        if mechanism is None:
            why = _why_none(offered, options.sasl_mechanisms, credentials)
            raise ValueError(f"the broker offers {', '.join(offered)}: {why}")
        return mechanism

    return choose


def _why_none(offered: Sequence[str], allowed: Sequence[str] | None, credentials: Credentials) -> str:
    """The reason why a client can use none of the broker's mechanisms, and the advice."""
    if allowed is not None and not set(offered) & set(allowed):
        return f"only {', '.join(allowed) or 'none'} may be used, see sasl_mechanisms"
    with_users = [name for name in offered if name in MECHANISMS and MECHANISMS[name].needs is Needs.VERIFIERS]
    if credentials.user is None and with_users:
        return "a user name and a password are required"
    if credentials.user is not None and ANONYMOUS in offered and not with_users:
        return (
            f"it cannot authenticate user {credentials.user!r}; connect without a user name, or start the broker with "
            "--user-file"
        )
    if EXTERNAL in offered and not credentials.has_certificate:
        return "a client certificate is required"
    return "this client can use none of them"
