"""URIs of brokers, as RabbitMQ's clients, shovels and federation write them.

    amqp://user:password@host:port/vhost?heartbeat=10
    amqps://...                                          with TLS; port 5671 instead of 5672
    amqp:///vhost                                        this broker itself, without a socket

All parts but the scheme may be left out. Names are percent-encoded: `%2F` is the virtual host "/", which is also the
default. Without user and password, another broker gets `guest` and `guest`; on this broker, what is done is done as the
user who has set the parameter.

    heartbeat            seconds; 0 for none
    auth_mechanism       `plain`, `amqplain` or `external` (the certificate of this broker); others as SASL names them
    verify               only `verify_peer`: certificates are always verified, by `--ssl-ca` or the system's authorities

Other parameters are refused, since they would have no effect. `AmqpUri.shown` has no user and no password.

Source: RabbitMQ, "URI Specification" and "URI Query Parameters".
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from qstore.broker.model.errors import InvalidArgumentError
from qstore.formats.broker_records.topology import DEFAULT_HOST, problem_of_new_name
from qstore.formats.named_tuple import NamedTuple

MAX_URI: Final = 2048
"""Characters of a URI."""

MAX_URIS: Final = 16
"""URIs of one list."""

_SCHEMES: Final = {"amqp": ("tcp", 5672), "amqps": ("ssl", 5671)}
_MAX_HEARTBEAT: Final = 65_535
_PARAMETERS: Final = ("auth_mechanism", "heartbeat", "verify")


class AmqpUri(NamedTuple):
    """A broker, and how to connect to it.

    Attributes:
        transport: `tcp` or `ssl`.
        host: its host; empty for this broker itself.
        port: its port.
        vhost: the virtual host.
        user, password: for the login; None if the URI has none.
        heartbeat: seconds between heartbeats; None for what the broker offers.
        mechanisms: the SASL mechanisms that may be used; None for all.
    """

    transport: str
    host: str
    port: int
    vhost: str
    user: str | None
    password: str | None
    heartbeat: int | None
    mechanisms: tuple[str, ...] | None

    @property
    def shown(self) -> str:
        """The URI without user, password and parameters."""
        scheme = "amqps" if self.transport == "ssl" else "amqp"
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = f":{self.port}" if self.host and self.port != _SCHEMES[scheme][1] else ""
        vhost = "" if self.vhost == DEFAULT_HOST else f"/{quote(self.vhost, safe='')}"
        return f"{scheme}://{host}{port}{vhost}"

    def __repr__(self) -> str:
        return f"AmqpUri({self.shown!r})"


def parse_uris(what: str, given: object, vhost: str = DEFAULT_HOST) -> tuple[AmqpUri, ...]:
    """Read a URI, or a list of them.

    Args:
        what: the parameter, for errors.
        given: its value.
        vhost: the virtual host of a URI that has none.

    Raises:
        InvalidArgumentError: it is not valid. The text does not have the URI, which may have a password.
    """
    uris = given if isinstance(given, list) else [given]
    if not 0 < len(uris) <= MAX_URIS:
        raise InvalidArgumentError(f"{what} must be a URI, or a list of 1 to {MAX_URIS} of them")
    return tuple(_parse(what, each, vhost) for each in uris)


def _parse(what: str, given: Any, usual_vhost: str) -> AmqpUri:
    if not isinstance(given, str) or not given or len(given) > MAX_URI:
        raise InvalidArgumentError(f"{what} must be a URI of at most {MAX_URI:,} characters")
    if " " in given or not given.isprintable():  # urlsplit would drop tabs and line feeds
        raise InvalidArgumentError(f"{what} must have no white space and no control characters: percent-encode them")
    try:
        parts = urlsplit(given)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise InvalidArgumentError(f"{what} is not a valid URI: host or port cannot be read") from None
    if parts.scheme not in _SCHEMES:
        raise InvalidArgumentError(f"{what} must begin with amqp:// or amqps://")
    if parts.fragment:
        raise InvalidArgumentError(f"{what} has a fragment: write # as %23")
    transport, usual_port = _SCHEMES[parts.scheme]
    vhost = unquote(parts.path.removeprefix("/")) or usual_vhost
    problem = problem_of_new_name(vhost)
    if problem:
        raise InvalidArgumentError(f"{what}: its virtual host is not valid: {problem}")
    if not host and (port is not None or transport == "ssl"):
        raise InvalidArgumentError(f"{what} has no host: this broker itself is amqp:///vhost")
    found = dict(parse_qsl(parts.query, keep_blank_values=True))
    heartbeat, mechanisms = _parameters(what, found)
    return AmqpUri(
        transport, host, port or usual_port, vhost,
        None if parts.username is None else unquote(parts.username),
        None if parts.password is None else unquote(parts.password),
        heartbeat, mechanisms,
    )  # fmt: skip


def _parameters(what: str, found: dict[str, str]) -> tuple[int | None, tuple[str, ...] | None]:
    for name in found:
        if name not in _PARAMETERS:
            raise InvalidArgumentError(
                f"{what}: the parameter {name[:64]!a} has no effect here; there are {', '.join(_PARAMETERS)}. Files "
                "for TLS are those of --ssl-ca and --ssl-cert"
            )
    if found.get("verify", "verify_peer") != "verify_peer":
        raise InvalidArgumentError(f"{what}: certificates are always verified: verify can only be verify_peer")
    heartbeat: int | None = None
    if "heartbeat" in found:
        text = found["heartbeat"]
        heartbeat = int(text) if text.isdecimal() and len(text) <= len(str(_MAX_HEARTBEAT)) else _MAX_HEARTBEAT + 1
        if heartbeat > _MAX_HEARTBEAT:
            raise InvalidArgumentError(f"{what}: heartbeat must be a number of seconds up to {_MAX_HEARTBEAT}")
    mechanism = found.get("auth_mechanism")
    return heartbeat, None if mechanism is None else (mechanism.upper(),)
