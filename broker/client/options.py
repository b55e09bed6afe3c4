"""The options of a connection: broker URLs, options by name, and their effect on TLS.

**URLs** have the syntax of the Qpid clients:

    url        = [ ( "amqp:" | "amqps:" ) [ "//" ] ] [ user [ ( "/" | ":" ) password ] "@" ] endpoint *( "," endpoint )
                 [ "/" [ virtual-host ] [ options ] ]     percent-encoded
    endpoint   = [ "tcp:" | "ssl:" | "tls:" ] host [ ":" port ] [ options ]     IPv6 addresses are in brackets
    options    = "?" name "=" value *( ( ";" | "&" ) name "=" value )           percent-encoded

`amqps:` and `ssl:` are TLS, whose default port is another one. Examples: `localhost`, `10.1.1.7:10000`,
`guest/guest@localhost`, `amqp://localhost/blue`, `amqp:tcp:127.0.0.1:5672,tcp:other`, `amqps://example.com`,
`ssl:example.com:5671`, `amqp://host1,host2?retry=2/blue?clientid=me;heartbeat=10`.

Options of a URL are `ssl`, `retry` (attempts after the first one) and, behind the virtual host, `clientid` and all
options of connections. Those of endpoints are for all of them.

The URLs of Qpid's Java client are read, too (`_java_url`): `amqp://user:password@id/host?brokerlist='tcp://a'` and
`qpid:username=user;password=password@tcp:host:port`.

**Options** have the names of the Qpid Messaging API, in which `-` and `_` are equivalent. Values are Python values, or
the words of a map in the syntax of address strings (`{reconnect: true, heartbeat: 10}`).

**The environment** has defaults for TLS with the names of qpidd's C++ client, which are PEM files here:
`QPID_SSL_CERT_DB` (ssl_trustfile), `QPID_SSL_CERT_NAME` (ssl_certificate), `QPID_SSL_CERT_PASSWORD_FILE`
(ssl_password_file).

Sources: Qpid C++ Broker Book, 1.12.8; MRG 2 Messaging User Guide, 7.1 (--cluster-url).
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from qstore.broker.client.errors import ConnectError, UrlError
from qstore.broker.security.sasl.exchange import ClientMechanism
from qstore.broker.security.sasl.kerberos import GSSAPI, SERVICE
from qstore.broker.security.sasl.simple import ANONYMOUS, EXTERNAL
from qstore.broker.security.sasl.table import TABLE as MECHANISMS
from qstore.broker.security.sasl.table import Credentials, Needs, choose_mechanism
from qstore.broker.security.tls import tls_reason
from qstore.formats.named_tuple import NamedTuple

DEFAULT_PORT: Final = 5672
DEFAULT_TLS_PORT: Final = 5671

_match_endpoint: Final = re.compile(
    r"(?:(?P<transport>tcp|ssl|tls|amqps):)?(?:\[(?P<v6>[0-9a-fA-F:.%\w]+)\]|(?P<host>[^\s\[\]:/@,]+))(?::(?P<port>\d{1,9}))?"
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
        options: connection options in the URL, by name.
    """

    endpoints: tuple[Endpoint, ...]
    username: str | None = None
    password: str | None = None
    virtual_host: str = ""
    options: Mapping[str, Any] = {}


def parse_url(text: str, *, is_encrypted: bool = False) -> Url:
    """Parse a broker URL.

    Args:
        text: the URL.
        is_encrypted: whether endpoints are encrypted unless the URL names their transport.

    Raises:
        UrlError: it is invalid, or has a transport other than TCP and TLS.
    """
    rest = text.strip()
    if "?brokerlist=" in rest or "&brokerlist=" in rest:
        return _java_url(rest)
    if rest.startswith("qpid:"):
        return _older_java_url(rest)
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
    path, _, query = path.partition("?")
    given = _query(text, query)
    parts = [part.strip().partition("?") for part in hosts.split(",")]
    for _, _, query in parts:
        of_endpoint = _query(text, query)
        if of_endpoint.keys() - {"ssl", "retry"}:
            raise UrlError(f"{_shown(text)}: an address has the options ssl and retry; others follow the virtual host")
        given = of_endpoint | given
    options = _named_options(text, given)
    is_encrypted |= connection_options(options).transport == "ssl"
    endpoints = tuple(_parse_endpoint(text, host, is_encrypted=is_encrypted) for host, _, _ in parts)
    return Url(endpoints, username, password, unquote(path), options)


def _shown(text: str) -> str:
    """A URL without what is in front of its hosts, and without options: both may be a password."""
    return text.rpartition("@")[2].partition("?")[0]


def _query(text: str, query: str) -> dict[str, str]:
    """The options of a URL. Raises UrlError."""
    found = {}
    for number, part in enumerate(re.split("[;&]", query), 1):
        name, equals, value = part.partition("=")
        if not equals and part:
            raise UrlError(f"{_shown(text)}: option {number} is not name=value")
        if not part:
            continue
        found[unquote(name)] = unquote(value)
    return found


def _named_options(text: str, given: Mapping[str, str]) -> dict[str, Any]:
    """Options of a URL as connection options by name, not checked. Raises UrlError."""
    options: dict[str, Any] = {}
    for name, value in given.items():
        if name == "clientid":
            options |= _client(value)
        elif name == "retry":
            options |= {"reconnect": True, "reconnect_limit": 1 + _number(text, name, value)}
        elif name == "protocol" and value.lower() in _TRANSPORTS:
            options["transport"] = value
        elif name != "ssl":
            options[name.replace("-", "_")] = value
    if _flag(text, "ssl", given.get("ssl", "false")):
        options["transport"] = "ssl"
    return options


def _number(text: str, name: str, value: str) -> int:
    if not value.isdecimal() or len(value) > 9:
        raise UrlError(f"{_shown(text)}: {name}={value[:20]!r} is not a number")
    return int(value)


def _flag(text: str, name: str, value: str) -> bool:
    try:
        return _boolean(value)
    except ValueError as error:
        raise UrlError(f"{_shown(text)}: {name}={value[:20]!r}: {error}") from None


def _client(name: str) -> dict[str, Any]:
    """The options that tell the broker a client's name, in each protocol."""
    return {"container_id": name, "client_properties": {"clientName": name}}


# ---- URLs of Qpid's Java client ----

_JAVA_OPTIONS: Final = ("brokerlist", "failover", "maxprefetch", "heartbeat", "idle_timeout")
_JAVA_METHODS: Final = ("singlebroker", "roundrobin", "nofailover", "failover_exchange")
_split_java_options: Final = re.compile(rf"&(?=(?:{'|'.join(_JAVA_OPTIONS)})=')").split
_match_java_option: Final = re.compile(rf"({'|'.join(_JAVA_OPTIONS)})='(.*)'", re.DOTALL).fullmatch
_split_brokers: Final = re.compile(r";|&(?=\w+://)").split
_match_broker: Final = re.compile(r"(?:(?P<transport>\w+)://)?(?P<place>[^?/]*)(?:\?(?P<options>.*))?").fullmatch
_match_options: Final = re.compile(r"(?:\w+='[^']*'(?:&(?=.)|$))*").fullmatch
_find_options: Final = re.compile(r"(\w+)='([^']*)'").findall


def _java_url(text: str) -> Url:
    """A connection URL: `amqp://[user[:password]@][clientid]/[virtual host]?brokerlist='...'[&option='...']`.

    Raises:
        UrlError: it is invalid, or asks for what there is not here.
    """
    base, _, query = text.partition("?")
    found: dict[str, str] = {}
    for part in _split_java_options(query):
        option = _match_java_option(part)
        if option is None:
            known = ", ".join(_JAVA_OPTIONS)
            raise UrlError(f"{_shown(text)}: an option is not one of {known} with a value in quotes")
        found[option[1]] = option[2]
    if not base.startswith("amqp://"):
        raise UrlError(f"{_shown(text)}: a connection URL begins with amqp://")
    user, at, rest = base.removeprefix("amqp://").rpartition("@")
    client, _, host = rest.partition("/")
    username, _, password = user.partition(":")
    endpoints, options, retries = _java_brokers(text, found.get("brokerlist", ""))
    method, _, more = found.get("failover", "").partition("?")
    settings = _java_options(text, more, ("cyclecount",))
    if method not in ("", *_JAVA_METHODS):
        raise UrlError(f"{_shown(text)}: failover is one of {', '.join(_JAVA_METHODS)}, not {method!r}")
    if method == "singlebroker":
        endpoints = endpoints[:1]
    cycles = _number(text, "cyclecount", settings.get("cyclecount", "1"))
    options["reconnect"] = method != "nofailover"
    if options["reconnect"]:
        options["reconnect_limit"] = cycles * (1 + retries)
    if method == "failover_exchange":
        options["failover_updates"] = True
    for name in ("idle_timeout", "heartbeat"):
        if name in found:
            options["heartbeat"] = _number(text, name, found[name])
    if "maxprefetch" in found:
        options["receiver_capacity"] = _number(text, "maxprefetch", found["maxprefetch"])
    if client:
        options |= _client(unquote(client))
    if not at:
        return Url(endpoints, virtual_host=unquote(host), options=options)
    return Url(endpoints, unquote(username), unquote(password), unquote(host), options)


def _java_brokers(text: str, brokers: str) -> tuple[tuple[Endpoint, ...], dict[str, Any], int]:
    """The endpoints of a brokerlist, their options for connections, and how often each is tried again."""
    endpoints, options, retries = [], dict[str, Any](), 1
    for broker in _split_brokers(brokers):
        found = _match_broker(broker)
        if found is None or found["transport"] not in (None, "tcp"):
            raise UrlError(f"{_shown(text)}: {broker!r} is not tcp://host[:port]")
        given = _java_options(text, found["options"] or "", ("retries", "ssl", "connecttimeout", "connectdelay"))
        is_encrypted = _flag(text, "ssl", given.get("ssl", "false"))
        place = found["place"]
        if is_encrypted and ":" not in place:
            place += f":{DEFAULT_PORT}"  # the port's default is the same there
        endpoints.append(_parse_endpoint(text, place, is_encrypted=is_encrypted))
        if "retries" in given:
            retries = _number(text, "retries", given["retries"])
        for name, option in (("connecttimeout", "connect_timeout"), ("connectdelay", "reconnect_interval")):
            if name in given:
                options[option] = _number(text, name, given[name]) / 1000
    return tuple(endpoints), options, retries


def _java_options(text: str, options: str, known: Sequence[str]) -> dict[str, str]:
    """Options with values in quotes, separated by `&`. Raises UrlError."""
    found = dict(_find_options(options))
    if _match_options(options) is None or found.keys() - set(known):
        raise UrlError(f"{_shown(text)}: {options!r} are not the options {', '.join(known)} with values in quotes")
    return found


def _older_java_url(text: str) -> Url:
    """A connection URL of the first version for 0-10: `qpid:[property=value[;...]@]transport:host[:port]`."""
    properties, _, place = text.removeprefix("qpid:").rpartition("@")
    given = _query(text, properties)
    known = ("virtualhost", "username", "password", "client_id")
    transport, _, host = place.partition(":")
    if given.keys() - set(known) or transport not in ("tcp", "tls"):
        raise UrlError(f"the URL is not qpid:[{'|'.join(known)}=value;...@]tcp|tls:host[:port]")
    endpoint = _parse_endpoint(text, host, is_encrypted=transport == "tls")
    options = _client(given["client_id"]) if "client_id" in given else {}
    return Url((endpoint,), given.get("username"), given.get("password"), given.get("virtualhost", ""), options)


def _parse_endpoint(text: str, endpoint: str, *, is_encrypted: bool) -> Endpoint:
    shown = _shown(text)
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
        sasl_min_ssf, sasl_max_ssf: limits of the strength of the security layer of SASL (GSSAPI), in bits of the key: 1
            is integrity without encryption, 0 none. TLS takes its place.
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
        ssl_password_file: file with the password of the private key; None for none.
        ssl_skip_hostname_check: whether to accept a broker's certificate with another host name.
        receiver_capacity: the capacity of receivers that are created without one.
        send_timeout: seconds after which `send` fails if the broker does not take or complete a message (flow control);
            None for never.
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
    sasl_min_ssf: int = 0
    sasl_max_ssf: int = 256
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
    ssl_password_file: str | None = None
    ssl_skip_hostname_check: bool = False
    receiver_capacity: int = 0
    send_timeout: float | None = 120.0
    tcp_nodelay: bool = True
    client_properties: Mapping[str, Any] | None = None
    max_message_bytes: int = 2 << 30


def _boolean(value: Any) -> bool:
    words = {"yes": True, "true": True, "on": True, "1": True, "no": False, "false": False, "off": False, "0": False}
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


_TRANSPORTS: Final = {"tcp": "tcp", "ssl": "ssl", "tls": "ssl", "tcp+tls": "ssl"}


def _transport(value: Any) -> str:
    found = _TRANSPORTS.get(str(value).lower())
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


def _urls(value: Any) -> tuple[str, ...]:
    urls = tuple(map(str, value.split(",") if isinstance(value, str) else value))
    for url in urls:
        parse_url(url)  # raises UrlError
    return urls


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
    "sasl_min_ssf": (("sasl_min_ssf",), _count),
    "sasl_max_ssf": (("sasl_max_ssf",), _count),
    "virtual_host": (("virtual_host",), _text),
    "heartbeat": (("heartbeat",), _heartbeat),
    "connect_timeout": (("connect_timeout",), _seconds),
    "reconnect": (("reconnect",), _boolean),
    "reconnect_timeout": (("reconnect_timeout",), _never(_seconds)),
    "reconnect_limit": (("reconnect_limit",), _never(_count)),
    "reconnect_interval": (("reconnect_interval_min", "reconnect_interval_max"), _seconds),
    "reconnect_interval_min": (("reconnect_interval_min",), _seconds),
    "reconnect_interval_max": (("reconnect_interval_max",), _seconds),
    "reconnect_urls": (("reconnect_urls",), _urls),
    "failover_updates": (("failover_updates",), _boolean),
    "transport": (("transport",), _transport),
    "ssl_certificate": (("ssl_certificate",), _never(_text)),
    "ssl_certfile": (("ssl_certificate",), _never(_text)),
    "ssl_key": (("ssl_key",), _never(_text)),
    "ssl_keyfile": (("ssl_key",), _never(_text)),
    "ssl_trustfile": (("ssl_trustfile",), _never(_text)),
    "ssl_password_file": (("ssl_password_file",), _never(_text)),
    "ssl_skip_hostname_check": (("ssl_skip_hostname_check",), _boolean),
    "receiver_capacity": (("receiver_capacity",), _count),
    "send_timeout": (("send_timeout",), _never(_seconds)),
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
        if name == "protocol" and str(value).lower() in _TRANSPORTS:
            name = "transport"  # as the C++ client calls it
        if name not in TABLE:
            raise UrlError(f"unknown connection option {given!r}; the options are {', '.join(TABLE)}")
        attributes, read = TABLE[name]
        try:
            found.update(dict.fromkeys(attributes, read(value)))
        except (TypeError, ValueError, AttributeError) as error:
            shown = "" if name == "password" else f" cannot be {value!r}"
            raise UrlError(f"connection option {given}{shown}: {error}") from None
    is_encrypted = found.get("transport") == "ssl"
    parsed = [parse_url(url, is_encrypted=is_encrypted) for url in found.get("reconnect_urls", ())]
    found["reconnect_urls"] = tuple(endpoint for url in parsed for endpoint in url.endpoints)
    return ConnectionOptions(**found)


_RECONNECTING: Final = (
    "reconnect_timeout", "reconnect_limit", "reconnect_interval", "reconnect_interval_min", "reconnect_interval_max",
    "failover_updates",
)  # fmt: skip
_OF_TLS: Final = (
    "ssl_certificate", "ssl_certfile", "ssl_key", "ssl_keyfile", "ssl_trustfile", "ssl_password_file",
    "ssl_skip_hostname_check",
)  # fmt: skip
_OF_CERTIFICATES: Final = ("ssl_key", "ssl_keyfile", "ssl_password_file")
_LAYERS: Final = ("sasl_min_ssf", "sasl_max_ssf", "sasl_service")


def idle_options(destination: Destination) -> dict[str, str]:
    """The given connection options that have no effect beside the others: name -> why."""
    options = destination.options
    endpoints = (*destination.endpoints, *options.reconnect_urls)
    given = {name.replace("-", "_") for name, value in destination.values.items() if value not in (None, False, "")}
    is_named = "clientName" in (options.client_properties or {})  # by `clientid`, which is for both
    conditions = (
        (_RECONNECTING, not options.reconnect, "reconnect is not set"),
        (_OF_TLS, not any(each.is_encrypted for each in endpoints), "no connection is encrypted"),
        (_OF_CERTIFICATES, options.ssl_certificate is None, "ssl_certificate is not set"),
        (_LAYERS[:2], all(each.is_encrypted for each in endpoints), "connections are encrypted by TLS"),
        (_LAYERS, GSSAPI not in (options.sasl_mechanisms or (GSSAPI,)), "sasl_mechanisms has no GSSAPI"),
        (("password",), destination.username is None, "there is no user name"),
        (("failover_updates",), options.protocol == AMQP_1_0, "it is for AMQP 0-10"),
        (("nest_annotations",), options.protocol == AMQP_0_10, "it is for AMQP 1.0"),
        (("container_id",), options.protocol == AMQP_0_10 and not is_named, "it is for AMQP 1.0"),
    )
    return {name: why for names, is_idle, why in reversed(conditions) if is_idle for name in names if name in given}


# ---- TLS ----


def client_context(options: ConnectionOptions) -> ssl.SSLContext:
    """The context for the connections of these options.

    The broker's certificate must be valid, of an authority in `ssl_trustfile` (by default those that the system
    trusts), and have the name of the host, unless `ssl_skip_hostname_check` is set.

    Raises:
        ConnectError: a file cannot be used.
    """
    options = _with_environment(options)
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
        _load_certificate(context, options.ssl_certificate, options.ssl_key, options.ssl_password_file)
    return context


def _with_environment(options: ConnectionOptions) -> ConnectionOptions:
    """The options, with those of the environment where there are none. Raises ConnectError."""
    if os.environ.get("QPID_SSL_USE_EXPORT_POLICY", "").lower() in ("true", "yes", "on", "1"):
        raise ConnectError("QPID_SSL_USE_EXPORT_POLICY: export ciphers are not secure, and not supported: unset it")
    found: dict[str, Any] = {}
    for variable, option in (("QPID_SSL_CERT_DB", "ssl_trustfile"), ("QPID_SSL_CERT_NAME", "ssl_certificate"),
                             ("QPID_SSL_CERT_PASSWORD_FILE", "ssl_password_file")):  # fmt: skip
        path = os.environ.get(variable)
        if not path or getattr(options, option) is not None:
            continue
        if not Path(path).is_file():
            raise ConnectError(f"{variable}: {path} is not a file in PEM format; NSS databases must be converted")
        found[option] = path
    return replace(options, **found)


def _load_certificate(context: ssl.SSLContext, certificate: str, key: str | None, password_file: str | None) -> None:
    password = b""
    if password_file is not None:
        _check_readable(password_file, "ssl_password_file")
        password = Path(password_file).read_bytes().partition(b"\n")[0].rstrip(b"\r")
    _check_readable(certificate, "ssl_certificate")
    if key is not None:
        _check_readable(key, "ssl_key")
    try:
        context.load_cert_chain(certificate, key, lambda: password)
    except ssl.SSLError as error:
        raise ConnectError(
            f"{certificate}{'' if key is None else ' and ' + key}: no certificate with its private key "
            f"in PEM format: {tls_reason(error)}; see ssl_certificate, ssl_key and ssl_password_file"
        ) from None


def _check_readable(path: str, option: str) -> None:
    try:
        with Path(path).open("rb"):
            return
    except OSError as error:
        raise ConnectError(f"{path}: cannot be read: {error.strerror}; see {option}") from None


# ---- where to connect, and as whom ----


class Destination:
    """The broker of a URL, and how a client logs in there.

    Args:
        url: the URL.
        values: connection options by name; those that the URL has, too, take precedence.

    Attributes:
        values: connection options by name, with those of the URL.
        options: the same as values, with the virtual host of the URL.
        endpoints: those of the URL.
        username, password: None if there is none.

    Raises:
        UrlError: the URL or an option is invalid.
    """

    def __init__(self, url: str, values: Mapping[str, Any]) -> None:
        options = connection_options(values)
        parsed = parse_url(url, is_encrypted=options.transport == "ssl")
        self.values = {**parsed.options, **values}
        if parsed.options:
            options = connection_options(self.values)
        if parsed.virtual_host and not options.virtual_host:
            options = replace(options, virtual_host=parsed.virtual_host)
        self.options, self.endpoints = options, parsed.endpoints
        self.username = parsed.username if options.username is None else options.username
        self.password = parsed.password if options.password is None else options.password
        self._tls: ssl.SSLContext | None = None

    def credentials(self, endpoint: Endpoint) -> Credentials:
        """What the client logs in with."""
        options, has_tls = self.options, endpoint.is_encrypted
        return Credentials(
            self.username, self.password, has_tls and options.ssl_certificate is not None, endpoint.host,
            options.sasl_service, 0 if has_tls else options.sasl_min_ssf, 0 if has_tls else options.sasl_max_ssf,
        )  # fmt: skip

    def context(self, endpoint: Endpoint) -> ssl.SSLContext | None:
        """For encrypted connections. The files are read at the first one. Raises ConnectError."""
        if endpoint.is_encrypted and self._tls is None:
            self._tls = client_context(self.options)
        return self._tls if endpoint.is_encrypted else None


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
    if credentials.min_ssf and GSSAPI not in offered:
        return "none of them has a security layer, which sasl_min_ssf requires: connect with TLS"
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
