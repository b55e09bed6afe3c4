"""The links and bridges of one broker: made, kept in the store, and closed again.

A durable link or bridge is on the disk before it begins; a deletion is there before its result. Its records are those
of qpidd (`formats/broker_records`), so those of qpidd's stores work here; beside them, configuration records keep the
users who have made them, on whose behalf bridges publish and consume. Those of qpidd's stores act as the user with whom
their link logs in, as in qpidd.

Who makes a link makes the broker connect to any address: that needs the permission to create links (`create link` in
ACL files), and so do bridges. A pull route needs the permission to publish every key to its destination, a push route
those to consume its source or to bind to it, which are checked when it is made and again while it runs.

Names: `qpid.TRANSPORT:HOST:PORT` for a link without a name, `LINK!SOURCE!DESTINATION!KEY` for such a bridge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.federation.bridge import MAX_SYNC, UNLIMITED, Bridge, BridgeSettings
from qstore.broker.federation.link import TRANSPORTS, Link, LinkState, Network, Remote, RemoteLogin, remotes_in
from qstore.broker.log.logs import log_of
from qstore.broker.model.authorization import EVERY_KEY, Action, ObjectType
from qstore.broker.model.caller import Caller
from qstore.broker.model.configuration import Record
from qstore.broker.model.errors import (
    InvalidArgumentError,
    NotAllowedError,
    NotFoundError,
    NotImplementedByBrokerError,
    ResourceLimitExceededError,
)
from qstore.broker.model.events import BrokerLinkDown, BrokerLinkUp
from qstore.broker.model.exchanges.failover import FAILOVER
from qstore.broker.model.topology.changes import make_in, run_in
from qstore.broker.protocols.amqp_0_10.client_connection import ClientNegotiation
from qstore.broker.protocols.amqp_0_10.link_connection import LinkConnection, LinkSession
from qstore.broker.protocols.machine import Host, Machine, Peer
from qstore.broker.security.authentication import PeerSecurity
from qstore.broker.security.sasl.exchange import ClientMechanism
from qstore.broker.security.sasl.table import Credentials, choose_mechanism
from qstore.formats.broker_records import topology as records
from qstore.formats.broker_records.topology import BRIDGE_KIND, LINK_KIND
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import INT64, STR16, TypedValue

if TYPE_CHECKING:
    from qstore.broker.model.broker import Broker
    from qstore.broker.protocols.amqp_0_10.server_connection import Amqp010Connections

_LOG: Final = log_of("Broker")

RESERVED: Final = "qpid."
"""The beginning of names that the broker chooses."""

MAX_LINKS: Final = 1_000
MAX_BRIDGES: Final = 10_000
MAX_CHANNEL: Final = 32_000

DYNAMIC_TYPES: Final = ("direct", "topic", "fanout", "headers", "xml")

_MAX_NAME: Final = 255  # bytes
_HOSTS_CHANNEL: Final = 1


class LinkSettings(NamedTuple):
    """What describes a link.

    Attributes:
        name: its name.
        remote: the address of the other broker.
        durable: whether it survives a restart.
        login: how it logs in.
    """

    name: str
    remote: Remote
    durable: bool = False
    login: RemoteLogin = RemoteLogin()


class FederatedLink:
    """A link to another broker, with its bridges.

    Args:
        federation: all of them.
        settings: its settings.
        creator: the user who has made it.

    Attributes:
        settings, creator: as above.
        link: its life.
        bridges: name -> bridge.
        connection: its open connection; None while there is none.
        created_at: when it was made or recovered, in seconds since 1970.
        number: its number in the store; None if it is not stored.
    """

    def __init__(self, federation: Federation, settings: LinkSettings, creator: str) -> None:
        self._federation, self.settings, self.creator = federation, settings, creator
        self.broker = federation.broker
        self.created_at = self.broker.clock()
        self.bridges: dict[str, Bridge] = {}
        self.connection: LinkConnection | None = None
        self.number: int | None = None
        self._hosts = _Hosts(self)
        interval = self.broker.settings.link_maintenance_seconds
        self.link = Link(self, settings.remote, federation.network, federation.call_later, interval)

    @property
    def name(self) -> str:
        """Its name."""
        return self.settings.name

    @property
    def tag(self) -> str:
        """The name of this broker in a federation."""
        return self.broker.federation_tag

    @property
    def peer_tag(self) -> str:
        """The name of the other broker in a federation; empty if it is not known, or has none."""
        return "" if self.connection is None else self.connection.peer_tag

    def connect(self, host: Host, remote: Remote) -> Machine:
        """As `LinkOwner.connect`."""
        negotiation = ClientNegotiation(
            lambda offered: self._mechanism(offered, remote),
            {
                "product": "qstore",
                "qpid.fed_link": TypedValue(INT64, 1),
                "qpid.federation_tag": TypedValue(STR16, self.tag),
            },
            "",
            self.broker.settings.link_heartbeat_seconds,
        )
        peer = Peer(f"{remote}!{self.name}", PeerSecurity(is_local=False, is_encrypted=remote.transport == "ssl"))
        return LinkConnection(host, self._federation.connections, peer, self, negotiation, self.creator)

    def _mechanism(self, offered: tuple[str, ...], remote: Remote) -> ClientMechanism:
        login = self.settings.login
        names = tuple(login.mechanism.upper().replace(",", " ").split()) or None
        credentials = Credentials(
            login.user or None, login.password or None,
            has_certificate=remote.transport == "ssl" and self.broker.settings.tls is not None, host=remote.host,
        )  # fmt: skip
        mechanism = choose_mechanism(offered, names, credentials)
        if mechanism is None and names is not None and "ANONYMOUS" in offered and not login.user:
            mechanism = choose_mechanism(offered, ("ANONYMOUS",), credentials)
        if mechanism is None:
            wanted = "any mechanism" if names is None else ", ".join(names)
            raise ValueError(f"no login is possible: the broker offers {', '.join(offered)}, and the link has {wanted}")
        return mechanism

    # ---- reports ----

    def link_opened(self, connection: LinkConnection, known_hosts: tuple[str, ...]) -> None:
        """As `LinkEnd.link_opened`."""
        self.connection = connection
        self.link_told(known_hosts)
        self.link.opened()
        self.visit()
        self._hosts.listen(connection)

    def link_told(self, known_hosts: tuple[str, ...]) -> None:
        """As `LinkEnd.link_told`."""
        self.link.learn(remote for url in known_hosts for remote in remotes_in(url))

    def link_refused(self, reason: str) -> None:
        """As `LinkEnd.link_refused`."""
        self.link.refused(reason)

    def link_changed(self, link: Link, before: LinkState) -> None:
        """As `LinkOwner.link_changed`."""
        if link.state is LinkState.OPERATIONAL:
            self.broker.events.emit(BrokerLinkUp(str(link.remote)))
        elif before is LinkState.OPERATIONAL:
            self.connection = None
            self.broker.events.emit(BrokerLinkDown(str(link.remote)))

    def visit(self) -> None:
        """Begin the bridges that have no session."""
        if self.connection is not None and self.link.state is LinkState.OPERATIONAL:
            for bridge in list(self.bridges.values()):
                bridge.activate(self.connection)

    def free_channel(self) -> int:
        """A channel for a new bridge."""
        used = {bridge.channel for bridge in self.bridges.values()}
        return next(channel for channel in range(_HOSTS_CHANNEL + 1, MAX_CHANNEL) if channel not in used)


class _Hosts:
    """Has the other broker of a link announce its addresses whenever they change, if it can: a session of the link."""

    def __init__(self, link: FederatedLink) -> None:
        self._link = link

    def listen(self, connection: LinkConnection) -> None:
        """Begin."""
        if FAILOVER in connection.virtual_host.exchanges:
            name = f"qpid.failover_{self._link.name}_{self._link.tag}".encode()
            session = LinkSession(name, connection, self._link.creator, FAILOVER, self, 0, hears_of_hosts=True)
            connection.begin_session(session, _HOSTS_CHANNEL)

    def session_attached(self, session: LinkSession) -> None:
        """As `SessionOwner.session_attached`."""
        queue = session.name.decode()[:_MAX_NAME]
        session.send("queue.declare", queue=queue, exclusive=True, auto_delete=True)
        session.send("exchange.bind", queue=queue, exchange=FAILOVER, binding_key="")
        session.send("message.subscribe", queue=queue, destination=FAILOVER, accept_mode=1, acquire_mode=0)
        session.send("message.set-flow-mode", destination=FAILOVER, flow_mode=1)
        session.send("message.flow", destination=FAILOVER, unit=0, value=10)
        session.send("message.flow", destination=FAILOVER, unit=1, value=UNLIMITED)

    def session_ended(self, session: LinkSession, reason: str) -> None:  # noqa: ARG002
        """As `SessionOwner.session_ended`."""
        if reason:
            _LOG.debug('Link "%s": changed addresses of the other broker are not known: %s', self._link.name, reason)


class Federation:
    """The links and bridges of one broker.

    Args:
        broker: the model.
        connections: what the connections of links share with those of clients.
        network: connects links.
        call_later: schedules a function after a delay in seconds; returns a handle with `cancel`.

    Attributes:
        broker, connections, network, call_later: as above.
        links, bridges: name -> link, and bridge.
    """

    def __init__(
        self,
        broker: Broker,
        connections: Amqp010Connections,
        network: Network,
        call_later: Callable[[float, Callable[[], None]], Any],
    ) -> None:
        self.broker, self.connections, self.network, self.call_later = broker, connections, network, call_later
        self.links: dict[str, FederatedLink] = {}
        self.bridges: dict[str, Bridge] = {}
        self._lock = asyncio.Lock()
        self._timer: Any = None

    # ---- life ----

    def start(self) -> None:
        """Recover the links and bridges of the store, and begin to connect."""
        self._recover()
        self._visit()

    def close(self) -> None:
        """The broker stops: close all links."""
        if self._timer is not None:
            self._timer.cancel()
        for link in self.links.values():
            link.link.close()

    def _visit(self) -> None:
        self._timer = self.call_later(self.broker.settings.link_maintenance_seconds, self._visit)
        for link in self.links.values():
            link.visit()
        self.broker.tick.schedule()

    # ---- links ----

    def find_link(self, host: str, port: int, transport: str) -> FederatedLink | None:
        """The link that was configured with this address."""
        wanted = Remote(host, port, transport)
        return next((link for link in self.links.values() if link.settings.remote == wanted), None)

    async def connect(self, remote: Remote, *, durable: bool, login: RemoteLogin, caller: Caller) -> FederatedLink:
        """Make a link without a name, unless there is one to this address. One that has failed is tried again.

        Raises:
            As `create_link`.
        """
        check_remote(remote)
        self._check(caller)
        existing = self.find_link(*remote)
        if existing is not None:
            if existing.link.state is LinkState.FAILED:
                existing.settings = existing.settings._replace(login=login)
                existing.link.restart()
            return existing
        name = f"{RESERVED}{remote.transport}:{remote.host}:{remote.port}"
        return await self._create_link(LinkSettings(name, remote, durable, login), caller)

    async def create_link(self, settings: LinkSettings, caller: Caller) -> FederatedLink:
        """Make a link.

        Raises:
            UnauthorizedError: the caller may not create links.
            InvalidArgumentError: the name or the address is not valid.
            NotAllowedError: the name is reserved, or there is such a link.
            NotImplementedByBrokerError: the transport is not supported.
            ResourceLimitExceededError: there are too many.
            InternalError: the store cannot store it.
        """
        self._check(caller)
        if settings.name.startswith(RESERVED):
            raise NotAllowedError(f'link "{settings.name}": names that begin with {RESERVED} are reserved')
        return await self._create_link(settings, caller)

    async def _create_link(self, settings: LinkSettings, caller: Caller) -> FederatedLink:
        check_remote(settings.remote)
        check_texts("link", settings.name, *settings.remote[:1], *settings.login)
        async with self._lock:
            if settings.name in self.links:
                raise NotAllowedError(f'there is already a link "{settings.name}"')
            if len(self.links) >= MAX_LINKS:
                raise ResourceLimitExceededError(f"there are {MAX_LINKS:,} links; this is the maximum")
            link = FederatedLink(self, settings, caller.user)
            if settings.durable:
                link.number = await self._store(
                    Record(LINK_KIND, (settings.name,)),
                    caller.user,
                    records.Link("link.v2", settings.name, *settings.remote, True, *settings.login),
                )
            self.links[settings.name] = link
        _LOG.info('Link "%s" to %s was made by %s', settings.name, settings.remote, caller.user or "the broker")
        link.link.start()
        return link

    async def delete_link(self, name: str, caller: Caller) -> None:
        """Close a link and its bridges for good.

        Raises:
            UnauthorizedError: the caller may not.
            NotFoundError: there is no such link.
            InternalError: the store cannot delete it.
        """
        self._check(caller)
        async with self._lock:
            link = self.links.get(name)
            if link is None:
                raise NotFoundError(f'there is no link "{name}"')
            for bridge in list(link.bridges.values()):
                await self._delete_bridge(bridge)
            await self._forget(link.number, Record(LINK_KIND, (name,)))
            del self.links[name]
            link.link.close()
        _LOG.info('Link "%s" to %s was deleted by %s', name, link.settings.remote, caller.user or "the broker")

    # ---- bridges ----

    def find_bridge(self, link: str, source: str, destination: str, key: str) -> Bridge | None:
        """The bridge of a link with this source, destination and key."""
        wanted = (link, source, destination, key)
        for bridge in self.bridges.values():
            settings = bridge.settings
            if (settings.link, settings.source, settings.destination, settings.key) == wanted:
                return bridge
        return None

    async def bridge(self, settings: BridgeSettings, caller: Caller) -> Bridge:
        """Make a bridge without a name, unless its link has one with this source, destination and key.

        Raises:
            As `create_bridge`.
        """
        existing = self.find_bridge(settings.link, settings.source, settings.destination, settings.key)
        if existing is not None:
            self._check(caller)
            return existing
        name = f"{settings.link}!{settings.source}!{settings.destination}!{settings.key}"
        return await self.create_bridge(settings._replace(name=name), caller)

    async def create_bridge(self, settings: BridgeSettings, caller: Caller) -> Bridge:
        """Make a bridge.

        Raises:
            UnauthorizedError: the caller may not.
            InvalidArgumentError: the settings are not valid.
            NotAllowedError: there is such a bridge.
            NotFoundError: there is no such link, or the exchange of a dynamic route does not exist here.
            ResourceLimitExceededError: there are too many.
            InternalError: the store cannot store it.
        """
        self._check(caller)
        check_texts("bridge", settings.name, settings.source, settings.destination, settings.key, settings.tag,
                     settings.excludes, settings.queue)  # fmt: skip
        self._check_bridge(settings, caller)
        async with self._lock:
            link = self.links.get(settings.link)
            if link is None:
                raise NotFoundError(f'there is no link "{settings.link}"')
            if settings.durable and not link.settings.durable:
                raise InvalidArgumentError("Can't create a durable route on a non-durable link")
            if settings.name in self.bridges:
                raise NotAllowedError(f'there is already a bridge "{settings.name}"')
            if len(self.bridges) >= MAX_BRIDGES:
                raise ResourceLimitExceededError(f"there are {MAX_BRIDGES:,} bridges; this is the maximum")
            bridge = Bridge(link, settings, link.free_channel(), caller.user)
            if settings.durable:
                bridge.number = await self._store(
                    Record(BRIDGE_KIND, (settings.name,)), caller.user, _bridge_record(settings), settings.queue
                )
            self.bridges[settings.name] = link.bridges[settings.name] = bridge
        link.visit()
        self.broker.tick.schedule()
        return bridge

    def _check_bridge(self, settings: BridgeSettings, caller: Caller) -> None:
        if not 0 <= settings.sync <= MAX_SYNC or not 0 <= settings.credit <= UNLIMITED:
            raise InvalidArgumentError("the acknowledgement interval or the credit of the bridge is out of range")
        if settings.credit and settings.sync > settings.credit:
            raise InvalidArgumentError("The credit value must be greater than configured sync (ack) interval.")
        if not settings.source or not settings.destination:
            raise InvalidArgumentError("a bridge needs a source and a destination")
        host = self.broker.default_host
        if settings.dynamic:
            if settings.source_is_local:
                raise InvalidArgumentError("Dynamic routing not supported for push routes")
            if settings.source_is_queue:
                raise InvalidArgumentError("a dynamic route is between exchanges, and not from a queue")
            exchange = host.exchanges.get(settings.source)
            if exchange is None:
                raise NotFoundError(f"Exchange not found: {settings.source}")
            if exchange.type_name not in DYNAMIC_TYPES or not exchange.name:
                text = f"Exchange type does not support dynamic routing: {exchange.type_name}"
                raise InvalidArgumentError(text)
        authorization = self.broker.authorization
        if not settings.source_is_local:
            purpose = f'bridge "{settings.name}"'
            authorization.check_forwarding(caller, settings.destination, EVERY_KEY, purpose)
        elif settings.source_is_queue:
            authorization.check(caller, Action.CONSUME, ObjectType.QUEUE, settings.source)
        else:
            authorization.check(
                caller, Action.BIND, ObjectType.EXCHANGE, settings.source, queuename="", routingkey=settings.key
            )

    async def delete_bridge(self, name: str, caller: Caller) -> None:
        """Close a bridge for good.

        Raises:
            UnauthorizedError: the caller may not.
            NotFoundError: there is no such bridge.
            InternalError: the store cannot delete it.
        """
        self._check(caller)
        async with self._lock:
            bridge = self.bridges.get(name)
            if bridge is None:
                raise NotFoundError(f'there is no bridge "{name}"')
            await self._delete_bridge(bridge)

    async def _delete_bridge(self, bridge: Bridge) -> None:
        name = bridge.settings.name
        await self._forget(bridge.number, Record(BRIDGE_KIND, (name,)))
        del self.bridges[name]
        del bridge.link.bridges[name]
        bridge.close()
        if bridge.settings.durable and bridge.settings.source_is_local and bridge.has_own_queue:
            with suppress(NotFoundError):  # the route has never run
                await self.broker.default_host.topology.delete_queue(bridge.queue)
        self.broker.tick.schedule()

    def _check(self, caller: Caller) -> None:
        self.broker.authorization.check(caller, Action.CREATE, ObjectType.LINK, "")

    # ---- the store ----

    async def _store(
        self, record: Record, creator: str, kept: records.Link | records.Bridge, queue: str = ""
    ) -> int | None:
        store = self.broker.store
        if store is None:
            return None
        await self.broker.configuration.change({record: {"creator": creator, "queue": queue}})
        return await make_in(store, lambda done: store.changes.create_general(kept, done))

    async def _forget(self, number: int | None, record: Record) -> None:
        store = self.broker.store
        if store is None or number is None:
            return
        await run_in(store, lambda done: store.changes.delete_general(number, done))
        await self.broker.configuration.change({}, (record,))

    def _recover(self) -> None:
        store = self.broker.store
        if store is None:
            return
        stored = sorted(store.topology.general.items())
        for number, record in stored:
            if isinstance(record, records.Link):
                self._recover_link(number, record)
        for number, record in stored:
            if isinstance(record, records.Bridge):
                self._recover_bridge(number, record)
        for link in self.links.values():
            link.link.start()

    def _recover_link(self, number: int, record: records.Link) -> None:
        remote = Remote(record.host, record.port, record.transport or "tcp")
        name = record.name or f"{RESERVED}{remote.transport}:{remote.host}:{remote.port}"
        login = RemoteLogin(record.mechanism, record.user, record.password)
        try:
            check_remote(remote)
        except (InvalidArgumentError, NotImplementedByBrokerError) as error:
            _LOG.error('Link "%s" of the store is not used: %s', name, error)
            return
        creator = self._creator(Record(LINK_KIND, (name,)), login)
        link = self.links[name] = FederatedLink(self, LinkSettings(name, remote, True, login), creator)
        link.number = number

    def _recover_bridge(self, number: int, record: records.Bridge) -> None:
        link = self.links.get(record.link_name or "")
        if record.link_name is None:
            link = next(
                (
                    each
                    for each in self.links.values()
                    if each.settings.remote[:2] == (record.link_host, record.link_port)
                ),
                None,
            )
        if link is None:
            name = record.link_name or f"{record.link_host}:{record.link_port}"
            _LOG.error('Bridge "%s" of the store is not used: there is no link "%s"', record.name, name)
            return
        name = record.name or f"{link.name}!{record.source}!{record.destination}!{record.key}"
        settings = BridgeSettings(
            name, link.name, True, record.source, record.destination, record.key, record.source_is_queue,
            record.source_is_local, record.dynamic, record.tag, record.excludes, record.sync, record.credit,
        )  # fmt: skip
        values = self.broker.configuration.get(Record(BRIDGE_KIND, (name,))) or {}
        settings = settings._replace(queue=str(values.get("queue", "")))
        creator = self._creator(Record(BRIDGE_KIND, (name,)), link.settings.login)
        bridge = Bridge(link, settings, link.free_channel(), creator)
        bridge.number = number
        self.bridges[name] = link.bridges[name] = bridge

    def _creator(self, record: Record, login: RemoteLogin) -> str:
        values: Mapping[str, Any] | None = self.broker.configuration.get(record)
        if values is not None:
            return str(values.get("creator", ""))
        return f"{login.user or 'anonymous'}@{self.broker.settings.realm}"


def _bridge_record(settings: BridgeSettings) -> records.Bridge:
    return records.Bridge(
        "bridge.v2", settings.name, settings.link, None, None, True, settings.source, settings.destination,
        settings.key, settings.source_is_queue, settings.source_is_local, settings.tag, settings.excludes,
        settings.dynamic, settings.sync, settings.credit,
    )  # fmt: skip


def check_remote(remote: Remote) -> None:
    """Raise InvalidArgumentError or NotImplementedByBrokerError unless the broker can connect to such an address."""
    if remote.transport not in TRANSPORTS:
        text = f"transport type not supported: {remote.transport!a} is not one of {', '.join(TRANSPORTS)}"
        raise NotImplementedByBrokerError(text)
    if not remote.host or not 0 < remote.port < 1 << 16:
        raise InvalidArgumentError(f"{remote.host!a}, port {remote.port}, is not the address of a broker")


def check_texts(what: str, *texts: str) -> None:
    """Raise InvalidArgumentError unless the first text, a name, is not empty, and none is too long."""
    if not texts[0]:
        raise InvalidArgumentError(f"a {what} needs a name")
    for text in texts:
        if len(text.encode("utf-8", "surrogateescape")) > _MAX_NAME:
            raise InvalidArgumentError(f"the {what} has a name or another text of more than {_MAX_NAME} bytes")
