"""A bridge: one route over a link, from an exchange or a queue of one broker to an exchange of the other.

    pull    the messages come here: a session of the link subscribes to a queue of the other broker
    push    they go there: a subscription here delivers to the other broker (`source_is_local`)

    queue route       the source is a queue, which other consumers may share; or a stream, whose source keeps the
                      offset of the route
    exchange route    the source is an exchange: a queue of the bridge's own is bound to it, with one key
    dynamic route     likewise, with the keys of all bindings of the exchange of the same name here; pull only

The queue of an exchange route is exclusive and ends with the session; that of a durable route is durable, so that
messages wait there while the brokers cannot reach each other. It has `qpid.trace.id` and `qpid.trace.exclude`, so that
messages do not return to a broker that they have passed.

With acknowledgements (`sync`) a message leaves its source when it is on the disk of its destination; whichever broker
is killed, none is lost, and some may come twice. They are possible for queues that outlive the session: others lose
what they have with it anyway. Without them a message leaves its source when it is sent.

A durable route's bindings at the other broker outlive its sessions. What vanished here in the meantime is taken back
by the next session: what this broker remembers, and, if the other broker can find it out, whatever was not announced
again.

A session that fails, because the source is missing, for example, is tried again at each maintenance interval.

Source: Qpid wiki, "Using Broker Federation" (seed 004); MRG 2 Messaging Installation and Configuration Guide, 8.4;
qpidd, Bridge.cpp (names, arguments).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.log.logs import log_of
from qstore.broker.model.arguments import FED_OP, FED_ORIGIN, FED_TAGS, XQUERY
from qstore.broker.model.errors import ModelError
from qstore.broker.model.exchanges.origins import BIND, MARK, SWEEP, UNBIND, Origins, Wanted
from qstore.broker.model.queues.arguments import TRACE_EXCLUDES, TRACE_ID
from qstore.broker.protocols.amqp_0_10.link_connection import LinkConnection, LinkSession
from qstore.formats.checksum import extend_crc32c
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import EMPTY_MAP, STR16, TypedMap, TypedValue

if TYPE_CHECKING:
    from qstore.broker.federation.federation import FederatedLink

_LOG: Final = log_of("Broker")

UNLIMITED: Final = 0xFFFFFFFF

WINDOW: Final = 5_000
"""Messages under way on a bridge without a limit of its own: the destination's disk has some flushes of them."""

MAX_SYNC: Final = 0xFFFF

_AT_ONCE: Final = 100
"""Bindings announced in one turn: some milliseconds."""


class BridgeSettings(NamedTuple):
    """What identifies and describes a bridge; the names are those of management.

    Attributes:
        name: its name.
        link: the name of its link.
        durable: whether it survives a restart.
        source, destination: an exchange or a queue, and an exchange.
        key: the binding key of an exchange route.
        source_is_queue, source_is_local, dynamic: see above.
        tag, excludes: instead of the brokers' own names, for `qpid.trace.id` and `qpid.trace.exclude`.
        sync: messages that are acknowledged together; 0 for no acknowledgements.
        credit: messages that may be under way; 0 or `UNLIMITED` for no limit.
        queue: an existing queue of the source, in place of one of the bridge's own; empty for none.
    """

    name: str
    link: str
    durable: bool = False
    source: str = ""
    destination: str = ""
    key: str = ""
    source_is_queue: bool = False
    source_is_local: bool = False
    dynamic: bool = False
    tag: str = ""
    excludes: str = ""
    sync: int = 0
    credit: int = UNLIMITED
    queue: str = ""


class Bridge:
    """A bridge.

    Args:
        link: its link.
        settings: its settings.
        channel: its channel on the link's connections.
        creator: the user on whose behalf it publishes and consumes.

    Attributes:
        link, settings, channel, creator: as above.
        created_at: when it was made or recovered, in seconds since 1970.
        last_error: why its last session has ended; empty while one is attached.
        number: its number in the store; None if it is not stored.
    """

    def __init__(self, link: FederatedLink, settings: BridgeSettings, channel: int, creator: str) -> None:
        self.link, self.settings, self.channel, self.creator = link, settings, channel, creator
        self.created_at = link.broker.clock()
        self.last_error = ""
        self.number: int | None = None
        self._session: LinkSession | None = None
        self._announcer: Announcer | None = None
        self._kept: dict[Wanted, str] = {}  # announced for a queue that outlives the session
        self._logged = ""

    @property
    def has_own_queue(self) -> bool:
        """Whether its queue is made for it, and ends with it."""
        return not self.settings.source_is_queue and not self.settings.queue

    @property
    def queue(self) -> str:
        """The queue that it takes messages from."""
        if not self.has_own_queue:
            return self.settings.queue or self.settings.source
        return f"qpid.bridge_queue_{self.settings.name}_{self.link.tag}"[:255]

    @property
    def is_accepting(self) -> bool:
        """Whether messages are acknowledged."""
        return bool(self.settings.sync) and (not self.has_own_queue or self.settings.durable)

    @property
    def is_active(self) -> bool:
        """Whether it has a session."""
        return self._session is not None

    # ---- its session ----

    def activate(self, connection: LinkConnection) -> None:
        """Attach a session, unless there is one, or what it needs here is missing."""
        settings = self.settings
        if self._session is not None:
            self._logged = ""
            return
        if not settings.source_is_local and settings.destination not in connection.virtual_host.exchanges:
            self._failed(f"Exchange not found: {settings.destination}")
            return
        name = f"qpid.bridge_session_{settings.name}_{self.link.tag}".encode()
        session = LinkSession(
            name,
            connection,
            self.creator,
            None if settings.source_is_local else settings.destination,
            self,
            settings.sync if self.is_accepting and not settings.source_is_local else 0,
        )
        self._session = session
        if not connection.begin_session(session, self.channel):
            self._session = None

    def session_attached(self, session: LinkSession) -> None:
        """As `SessionOwner.session_attached`."""
        self.last_error = ""
        if self.settings.source_is_local:
            self._push(session)
        else:
            self._pull(session)

    def session_ended(self, session: LinkSession, reason: str) -> None:
        """As `SessionOwner.session_ended`."""
        if self._announcer is not None:
            self._announcer.stop()
            if self.settings.durable:
                self._kept = self._announcer.announced
            self._announcer = None
        if self._session is session:
            self._session = None
            if reason:
                self._failed(reason)

    def _failed(self, reason: str) -> None:
        self.last_error = reason
        if reason != self._logged:
            self._logged = reason
            _LOG.warning('Bridge "%s" of link "%s": %s', self.settings.name, self.link.name, reason)

    def close(self) -> None:
        """End its session; its own queue goes with it."""
        session, self._session = self._session, None
        has_queue_there = self.settings.durable and self.has_own_queue and not self.settings.source_is_local
        if session is None:
            if has_queue_there:
                text = 'Bridge "%s" is deleted while its link is down: delete its queue "%s" at %s, if it is there'
                _LOG.warning(text, self.settings.name, self.queue, self.link.link.remote)
            return
        if self._announcer is not None and session.is_usable and not self.has_own_queue:
            self._announcer.withdraw()
        if has_queue_there and session.is_usable:
            session.send("queue.delete", queue=self.queue)
        session.drop()

    # ---- pull ----

    def _pull(self, session: LinkSession) -> None:
        settings, queue = self.settings, self.queue
        if self.has_own_queue:
            session.send(
                "queue.declare", queue=queue, durable=settings.durable, exclusive=True,
                auto_delete=not settings.durable, arguments=self._trace(self.link.peer_tag, self.link.tag),
            )  # fmt: skip
        if not settings.source_is_queue and not settings.dynamic:
            session.send("exchange.bind", queue=queue, exchange=settings.source, binding_key=settings.key)
        destination = settings.destination
        session.send(
            "message.subscribe", queue=queue, destination=destination, accept_mode=0 if self.is_accepting else 1,
            acquire_mode=0,
        )  # fmt: skip
        session.send("message.set-flow-mode", destination=destination, flow_mode=1)
        session.send("message.flow", destination=destination, unit=0, value=self._window)
        session.send("message.flow", destination=destination, unit=1, value=UNLIMITED)
        if settings.dynamic:
            exchange = session.virtual_host.exchanges.get(settings.destination)
            if exchange is not None:
                self._announcer = Announcer(self, session, exchange.federate(), self._kept)

    @property
    def _window(self) -> int:
        credit = self.settings.credit
        return WINDOW if credit in (0, UNLIMITED) else credit

    def _trace(self, source: str, destination: str) -> TypedMap:
        """The arguments of its own queue, by the names of the brokers."""
        named = ((TRACE_ID, self.settings.tag or source), (TRACE_EXCLUDES[0], self.settings.excludes or destination))
        return TypedMap(tuple((name, TypedValue(STR16, value)) for name, value in named if value))

    # ---- push ----

    def _push(self, session: LinkSession) -> None:
        if self.settings.source_is_queue:
            self._consume(session, self.settings.source)
        else:
            session.connection.run(self._declare(session), lambda error: self._declared(session, error))

    async def _declare(self, session: LinkSession) -> None:
        settings, topology = self.settings, session.virtual_host.topology
        if self.has_own_queue:
            await self._declare_own(session)
        await topology.bind(self.queue, settings.source, settings.key, EMPTY_MAP, caller=session)

    async def _declare_own(self, session: LinkSession) -> None:
        settings, topology = self.settings, session.virtual_host.topology
        queue = await topology.declare_queue(
            self.queue, durable=settings.durable, exclusive=True, auto_delete=not settings.durable,
            arguments=self._trace(self.link.tag, self.link.peer_tag), caller=session,
        )  # fmt: skip
        if queue.owner is session:
            session.add_exclusive_queue(queue)

    def _declared(self, session: LinkSession, error: ModelError | None) -> None:
        if session is not self._session:
            return
        if error is None:
            self._consume(session, self.queue)
        else:
            session.fail_command(-1, b"", error)

    def _consume(self, session: LinkSession, queue: str) -> None:
        try:
            session.consume(
                queue, self.settings.destination, is_accepting=self.is_accepting, window=self._window
            )  # fmt: skip
        except ModelError as error:
            session.fail_command(-1, b"", error)


# ---- dynamic routes ----

_NOTHING: Final = Wanted("", EMPTY_MAP, "")


class Announcer:
    """Announces what the exchange here wants to the source of a dynamic route, and takes it back.

    Args:
        bridge: the route.
        session: its session.
        origins: what is wanted.
        before: what was announced by the session before, and may be bound there still.

    Attributes:
        announced: what is announced -> the key at the other broker.
    """

    def __init__(self, bridge: Bridge, session: LinkSession, origins: Origins, before: dict[Wanted, str]) -> None:
        self._bridge, self._session, self._origins, self._before = bridge, session, origins, before
        self.announced: dict[Wanted, str] = {}
        self._keys: dict[str, Wanted] = {}
        self._changed: dict[Wanted, None] = dict.fromkeys((*before, *origins.wanted()))
        self._is_over = False
        connection = session.connection
        assert isinstance(connection, LinkConnection)
        self._is_sweeping = bridge.settings.durable and bridge.has_own_queue and connection.peer_sweeps
        if self._is_sweeping:
            self._send(MARK, "", _NOTHING, "")
        origins.followers.append(self)
        self._work()

    def stop(self) -> None:
        """The session has ended."""
        self._is_over = True
        self._changed.clear()
        if self in self._origins.followers:
            self._origins.followers.remove(self)

    def withdraw(self) -> None:
        """Take everything back: the queue outlives the route."""
        for wanted, key in self.announced.items():
            self._send(UNBIND, key, wanted, self._bridge.link.tag)
        self.stop()

    def wanted_changed(self, wanted: Wanted) -> None:
        """As `Follower.wanted_changed`."""
        self._changed[wanted] = None
        self._work()

    def announce_again(self) -> None:
        """As `Follower.announce_again`."""
        self.announced.clear()
        self._keys.clear()
        self._changed = dict.fromkeys(self._origins.wanted())
        self._work()

    def _work(self) -> None:
        turns = self._bridge.link.broker.tick.turns
        if not turns.has(self):
            turns.do(self, self._in_turns())

    def _in_turns(self) -> Iterator[None]:
        while self._changed and not self._is_over:
            for wanted in list(self._changed)[:_AT_ONCE]:
                del self._changed[wanted]
                self._announce(wanted)
            yield
        if self._is_sweeping and not self._is_over:
            self._is_sweeping = False
            self._send(SWEEP, "", _NOTHING, "")

    def _announce(self, wanted: Wanted) -> None:
        link = self._bridge.link
        tags = self._origins.tags_for(wanted, link.peer_tag)
        if tags is not None and wanted not in self.announced:
            key = self._key_for(wanted)
            self.announced[wanted], self._keys[key] = key, wanted
            self._send(BIND, key, wanted, f"{tags},{link.tag}" if tags else link.tag)
        elif tags is None and (wanted in self.announced or wanted in self._before):
            key = self.announced.pop(wanted) if wanted in self.announced else self._before[wanted]
            self._keys.pop(key, None)
            self._send(UNBIND, key, wanted, link.tag)
        self._before.pop(wanted, None)

    def _key_for(self, wanted: Wanted) -> str:
        """The key at the other broker: unequal for unequal criteria, but that of a query has a meaning."""
        held = self._keys.get(wanted.key)
        has_meaning = wanted.arguments.get(XQUERY) is not None
        if not wanted.arguments.entries or held is None or held.arguments == wanted.arguments or has_meaning:
            return wanted.key
        return f"{wanted.key[:200]}.{extend_crc32c(0, repr(wanted.arguments).encode()):08x}"

    def _send(self, operation: str, key: str, wanted: Wanted, tags: str) -> None:
        link, settings = self._bridge.link, self._bridge.settings
        given: list[tuple[str, Any]] = [(FED_OP, operation), (FED_TAGS, tags), (FED_ORIGIN, wanted.origin or link.tag)]
        entries = tuple((name, TypedValue(STR16, value)) for name, value in given)
        if operation == BIND:
            entries = (*wanted.arguments.entries, *entries)
        self._session.send(
            "exchange.bind", queue=self._bridge.queue, exchange=settings.source, binding_key=key,
            arguments=TypedMap(entries),
        )  # fmt: skip
