"""The classes link and bridge: connections to other brokers, and the routes over them (`broker.federation`).

    create             properties
    -----------------  ---------------------------------------------------------------------------------------------
    link               host, port, transport, durable, authMechanism, username, password
    bridge             link, src, dest, key, tag, excludes, srcIsQueue, srcIsLocal, dynamic, sync, credit, durable,
                       queue: an existing one of the source, in place of the bridge's own

Passwords are taken, and never shown. Source: the QMF schema of qpidd's broker; qpidd, Broker.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter as of
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.federation.bridge import UNLIMITED, BridgeSettings
from qstore.broker.federation.federation import LinkSettings
from qstore.broker.federation.link import Remote, RemoteLogin
from qstore.broker.log.logs import log_of
from qstore.broker.management.request import Arguments
from qstore.broker.management.schema import (
    CONNECTION,
    PACKAGE,
    ClassName,
    ManagedClass,
    arg,
    method,
    prop,
    stat,
    vhost_reference,
)
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.errors import InvalidArgumentError, NotImplementedByBrokerError
from qstore.formats.broker_records.topology import DEFAULT_HOST
from qstore.formats.wording import printable

if TYPE_CHECKING:
    from qstore.broker.federation.bridge import Bridge
    from qstore.broker.federation.federation import FederatedLink, Federation
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.schema import Reference, Results
    from qstore.broker.model.caller import Caller
    from qstore.formats.values import TypedMap

LINK: Final = ClassName(PACKAGE, "link")
BRIDGE: Final = ClassName(PACKAGE, "bridge")

_LOG: Final = log_of("Management")
_MAX_UNKNOWN: Final = 20  # lines in the log
_LINK_PROPERTIES: Final = ("host", "port", "transport", "durable", "authMechanism", "username", "password")
_BRIDGE_PROPERTIES: Final = (
    "link", "src", "dest", "key", "tag", "excludes", "srcIsQueue", "srcIsLocal", "dynamic", "sync", "credit", "durable",
    "queue",
)  # fmt: skip


def federation_of(managed: ManagedBroker, caller: Caller) -> Federation:
    """The links and bridges, for a caller who may change them.

    Raises:
        UnauthorizedError: the caller may not.
        NotImplementedByBrokerError: there can be none.
    """
    managed.broker.authorization.check(caller, Action.CREATE, ObjectType.LINK, "")
    if managed.federation is None:
        raise NotImplementedByBrokerError("this broker cannot have links to other brokers: it has no network")
    return managed.federation


# ---- operations ----


async def connect(managed: ManagedBroker, _broker: object, arguments: Arguments, caller: Caller) -> Results:
    """Make a link without a name; no error if there is one to this address."""
    await federation_of(managed, caller).connect(
        _remote(arguments), durable=arguments.flag("durable"), login=_login(arguments), caller=caller
    )
    return {}


def _remote(arguments: Arguments) -> Remote:
    return Remote(arguments.text("host") or "localhost", arguments.count("port"), arguments.text("transport") or "tcp")


def _login(arguments: Arguments) -> RemoteLogin:
    return RemoteLogin(arguments.text("authMechanism"), arguments.text("username"), arguments.text("password"))


def log_unknown(kind: str, name: str, unknown: Sequence[str]) -> None:
    """Log which properties of a new object are ignored."""
    for each in unknown[:_MAX_UNKNOWN]:
        _LOG.notice('%s "%s": the unknown property %s is ignored', kind.capitalize(), printable(name), printable(each))


async def create_federated(
    managed: ManagedBroker, kind: str, name: str, properties: TypedMap, *, strict: bool, caller: Caller
) -> None:
    """Create a link or a bridge."""
    federation = federation_of(managed, caller)
    given = Arguments({name: typed.value for name, typed in properties.entries})
    known = _LINK_PROPERTIES if kind == "link" else _BRIDGE_PROPERTIES
    unknown = [each for each in given if each not in known]
    if unknown and strict:
        raise InvalidArgumentError(f"unknown property: {printable(unknown[0])}")
    log_unknown(kind, name, unknown)
    if kind == "link":
        await federation.create_link(LinkSettings(name, _remote(given), given.flag("durable"), _login(given)), caller)
        return
    await federation.create_bridge(_bridge_settings(name, given.text("link"), given), caller)


async def delete_federated(managed: ManagedBroker, kind: str, name: str, caller: Caller) -> None:
    """Delete a link or a bridge."""
    federation = federation_of(managed, caller)
    if kind == "link":
        await federation.delete_link(name, caller)
    else:
        await federation.delete_bridge(name, caller)


def _bridge_settings(name: str, link: str, given: Arguments) -> BridgeSettings:
    return BridgeSettings(
        name, link, given.flag("durable"), given.text("src"), given.text("dest"), given.text("key"),
        given.flag("srcIsQueue"), given.flag("srcIsLocal"), given.flag("dynamic"), given.text("tag"),
        given.text("excludes"), given.count("sync"), given.count("credit") or UNLIMITED,
        given.text("queue"),
    )  # fmt: skip


async def bridge(managed: ManagedBroker, link: FederatedLink, arguments: Arguments, caller: Caller) -> Results:
    """Make a bridge without a name; no error if the link has one like it."""
    await federation_of(managed, caller).bridge(_bridge_settings("", link.name, arguments), caller)
    return {}


async def close_link(managed: ManagedBroker, link: FederatedLink, _arguments: Arguments, caller: Caller) -> Results:
    """Delete a link and its bridges."""
    await federation_of(managed, caller).delete_link(link.name, caller)
    return {}


async def close_bridge(managed: ManagedBroker, closed: Bridge, _arguments: Arguments, caller: Caller) -> Results:
    """Delete a bridge."""
    await federation_of(managed, caller).delete_bridge(closed.settings.name, caller)
    return {}


# ---- the tables ----


def _links(managed: ManagedBroker) -> Iterable[tuple[str, FederatedLink]]:
    return [] if managed.federation is None else list(managed.federation.links.items())


def _bridges(managed: ManagedBroker) -> Iterable[tuple[str, Bridge]]:
    return [] if managed.federation is None else list(managed.federation.bridges.items())


def _connection(link: FederatedLink) -> Reference | None:
    return None if link.connection is None else CONNECTION.reference(link.connection.peer)


def _settings(name: str) -> Callable[[Any], Any]:
    return of(f"settings.{name}")


# fmt: off
LINK_CLASS: Final = ManagedClass(
    LINK,
    properties=(
        prop("vhostRef", "objId", "RC index parent", lambda _: vhost_reference(DEFAULT_HOST), "", "", "Vhost"),
        prop("name", "sstr", "RC index", of("name")),
        prop("host", "sstr", "RO", of("link.remote.host")),
        prop("port", "uint16", "RO", of("link.remote.port")),
        prop("transport", "sstr", "RO", of("link.remote.transport")),
        prop("durable", "bool", "RC", _settings("durable")),
        prop("connectionRef", "objId", "RO", _connection, "", "", "Connection"),
    ),
    statistics=(
        stat("state", "sstr", of("link.state.value"), "Operational state of the link"),
        stat("lastError", "lstr", of("link.last_error"), "Reason link is not operational"),
    ),
    methods=(
        method("close", "", (), close_link),
        method("bridge", "Bridge messages over the link", (
            arg("durable", "bool", "I"),
            arg("src", "sstr", "I"),
            arg("dest", "sstr", "I"),
            arg("key", "lstr", "I"),
            arg("tag", "sstr", "I"),
            arg("excludes", "sstr", "I"),
            arg("srcIsQueue", "bool", "I"),
            arg("srcIsLocal", "bool", "I"),
            arg("dynamic", "bool", "I"),
            arg("sync", "uint16", "I"),
            arg("credit", "uint32", "I", "granted to peer, 0 = infinite"),
        ), bridge),
    ),
    objects=_links, created=of("created_at"), belongs=lambda _: (DEFAULT_HOST, ""),
)

BRIDGE_CLASS: Final = ManagedClass(
    BRIDGE,
    properties=(
        prop("linkRef", "objId", "RC index parent", lambda each: LINK.reference(each.link.name), "", "", "Link"),
        prop("name", "sstr", "RC index", _settings("name")),
        prop("channelId", "uint16", "RO", of("channel")),
        prop("durable", "bool", "RC", _settings("durable")),
        prop("src", "sstr", "RC", _settings("source")),
        prop("dest", "sstr", "RC", _settings("destination")),
        prop("key", "lstr", "RC", _settings("key")),
        prop("srcIsQueue", "bool", "RC", _settings("source_is_queue")),
        prop("srcIsLocal", "bool", "RC", _settings("source_is_local")),
        prop("tag", "sstr", "RC", _settings("tag")),
        prop("excludes", "sstr", "RC", _settings("excludes")),
        prop("dynamic", "bool", "RC", _settings("dynamic")),
        prop("sync", "uint16", "RC", _settings("sync")),
        prop("credit", "uint32", "RC", _settings("credit")),
    ),
    methods=(
        method("close", "", (), close_bridge),
    ),
    objects=_bridges, created=of("created_at"), belongs=lambda _: (DEFAULT_HOST, ""),
)
# fmt: on
