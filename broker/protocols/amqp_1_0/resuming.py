"""Links that are suspended with unsettled deliveries, and resumed: after a detach without close, or a lost connection.

A link can be resumed if its client asks the broker to keep its terminus: with a time-out, or as one that never expires
and has a durable unsettled state. It is known by virtual host, user, container, name and direction, and belongs to one
node. The time runs from the moment when the link is suspended. An attach with the same names takes over a link that is
still attached elsewhere, which is closed with the error amqp:link:stolen.

Both ends tell in attach which deliveries they have not settled, by tag, and with their states. The broker's have

    broker sends       no state: the client decides on the outcome
    client sends       the outcome. Those whose message is not yet on the disk are waited for

What becomes of a delivery when the link is resumed:

    sender   receiver            the broker sends                           the client sends
    -------  ------------------  -----------------------------------------  ----------------------------------------
    has it   not known           the message is available again, and        nothing: the client sends a new delivery
                                 counts as delivered
    has it   no state, received  the message again, from the section and    a resumed transfer, whose content is
                                 the byte that the client is missing        ignored: it has its outcome
    has it   an outcome          a resumed transfer without content; the    the same
                                 outcome is applied, and told to be
                                 settled when it is on the disk
    unknown  has it              nothing: the sender has settled it         it is forgotten

A resumed transfer takes credit, and new messages follow those that are resumed. One that the client aborts is settled.
One whose message exceeds the client's max-message-size, which may be smaller than before, is aborted by the broker, and
is available again to other consumers. With a client's map that is incomplete, what is not in it stays as it is; if
either map is incomplete, the link has no new deliveries until it is attached again.

Without a map, or to another node, a link is attached anew, and what was kept for it ends.

**Expiry.** The policy of a terminus says which event starts its time-out, or ends it at once without one:

    link-detach         the link is detached
    session-end         the session that the link was attached to last ends
    connection-close    likewise, its connection
    never               none

It holds for the unsettled deliveries, if there is a time-out, and for the nodes that end with the link: the queue of a
subscription, and a dynamic node (`attaching`). A session or a connection is the *holder* of what it keeps until then.

Deliveries are kept in memory: after a restart of the broker, messages without an outcome are available again.

Source: AMQP 1.0, part "transport", sections 2.6.1 and 2.6.13, and part "messaging", sections 3.4.1 and 3.5.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.model.queues.entry import Entry
from qstore.broker.protocols.consumer import give_back
from qstore.formats.amqp_1_0.composites import OUTCOMES, Composite, encode_composite, read_composite
from qstore.formats.amqp_1_0.sections import begin_section
from qstore.formats.amqp_1_0.values import Amqp10Error, Value, encode_value, find_payload, read_value
from qstore.formats.named_tuple import NamedTuple

if TYPE_CHECKING:
    from qstore.broker.model.broker import Broker
    from qstore.broker.model.queues.queue import Queue
    from qstore.broker.protocols.amqp_1_0.links import IncomingLink, OutgoingLink
    from qstore.broker.protocols.amqp_1_0.session import Session

NEVER_SECONDS: Final = 300
"""How long the deliveries of a terminus that never expires are kept."""

MAX_UNSETTLED: Final = 10_000
"""Unsettled deliveries of a session that has a link which can be resumed: they are looked at in one turn."""

_NODES_SPARED: Final = 100
MAX_KEPT: Final = 1_000_000
"""Deliveries of all suspended links; the oldest links end first."""

MAX_IN_MAP: Final = 2_000
"""Deliveries that the broker tells in one attach."""

MAX_SECTIONS: Final = 64
"""Sections of a message up to which the rest of it is sent; of one with more, all is sent again."""

LINK_DETACH: Final = 0
SESSION_END: Final = 1
CONNECTION_CLOSE: Final = 2
NEVER: Final = 3
POLICIES: Final = ("link-detach", "session-end", "connection-close", "never")
"""The expiry policies by number: an event has that of the policy for which it is the one."""

RECEIVED: Final = "received"
_ACCEPTED: Final = Composite("accepted", {})


class LinkKey(NamedTuple):
    """What a link is known by: virtual host, user, container, its name, and whether the client receives."""

    host: str
    user: str
    container: str
    name: str
    is_source: bool


class Tracked:
    """A message of a client that the client or the broker has not settled.

    Args:
        session, link: on which it came.
        number: its number in the session.
        delivery_id, tag: the client's.
        is_first: whether the broker settles it: the receiver settles first.

    Attributes:
        session, link, number, delivery_id, tag, is_first: as above.
        state: its outcome, once it was told, or would have been.
    """

    __slots__ = ("delivery_id", "is_first", "link", "number", "session", "state", "tag")

    def __init__(
        self, session: Session, link: IncomingLink, number: int, delivery_id: int, tag: bytes, *, is_first: bool
    ) -> None:
        self.session, self.link, self.number, self.delivery_id = session, link, number, delivery_id
        self.tag, self.is_first = tag, is_first
        self.state: Composite | None = None

    @property
    def is_decided(self) -> bool:
        """Whether it has an outcome."""
        return self.state is not None or not any(self.session.ledger.done.missing(self.number, self.number))

    @property
    def outcome(self) -> Composite:
        """Its outcome; it is decided."""
        return self.state or self.session.outcome_of(self.number)


class Resumption:
    """What a link has that can be resumed.

    Args:
        key: what it is known by.
        seconds: how long it is kept.
        node: its queue, or the address of its target: it is resumed only with the same.
        policy: by number, when these seconds begin.

    Attributes:
        key, seconds, node, policy: as above.
        waiting: tag -> what is left of an earlier attachment and not resumed yet: a queue's entry, or a `Tracked`.
        to_send: the tags of those that the broker resumes, with the client's state.
        is_partial: whether there are no new deliveries, because a map was incomplete.
    """

    __slots__ = ("is_partial", "key", "node", "policy", "seconds", "to_send", "waiting")

    def __init__(self, key: LinkKey, seconds: int, node: Queue | str, policy: int) -> None:
        self.key, self.seconds, self.node, self.policy = key, seconds, node, policy
        self.waiting: dict[bytes, Any] = {}
        self.to_send: deque[tuple[bytes, Composite | None]] = deque()
        self.is_partial = False


class Suspended(NamedTuple):
    """A suspended link.

    Attributes:
        node: as in `Resumption`.
        waiting: tag -> its unsettled deliveries.
        until: when it ends, in seconds of a monotonic clock; infinite as long as it has a holder.
        seconds: how long it is kept after that.
        holder: a session or a connection that keeps it until it ends itself; None for none.
    """

    node: Queue | str
    waiting: dict[bytes, Any]
    until: float
    seconds: int
    holder: object | None


class Nodes(NamedTuple):
    """What ends with a link that is detached.

    Attributes:
        queues: these.
        holder: as in `Suspended`; None for what never expires.
    """

    queues: list[Queue]
    holder: object | None


class ResumableLinks:
    """The links of all connections that can be resumed.

    Args:
        broker: the model.

    Attributes:
        attached: those that are attached.
        deliveries: how many those that are suspended have.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.attached: dict[LinkKey, IncomingLink | OutgoingLink] = {}
        self._suspended: dict[LinkKey, Suspended] = {}  # the oldest first
        self._nodes: dict[LinkKey, Nodes] = {}
        self._most_nodes = _NODES_SPARED  # with more of them, those are forgotten whose queues were deleted
        self._held: dict[object, dict[LinkKey, None]] = {}  # by holder: what it keeps of either
        self.deliveries = 0

    def __len__(self) -> int:
        """How many links are suspended."""
        return len(self._suspended)

    def undecided(self, key: LinkKey) -> list[Tracked]:
        """The deliveries of a suspended link on which the client sends that have no outcome yet."""
        suspended = self._suspended.get(key)
        if suspended is None or key.is_source:
            return []
        return [each for each in suspended.waiting.values() if not each.is_decided]

    def suspend(self, link: Resumption, waiting: dict[bytes, Any], now: float, holder: object | None = None) -> None:
        """Keep the unsettled deliveries of a link, until its time is over that begins now, or with the holder's end."""
        self.discard(link.key)
        if not waiting:
            return
        until = now + link.seconds if holder is None else inf
        self._suspended[link.key] = Suspended(link.node, waiting, until, link.seconds, holder)
        if holder is not None:
            self._held.setdefault(holder, {})[link.key] = None
        self.deliveries += len(waiting)
        most = self._broker.settings.max_detached_sessions
        while self._suspended and (len(self._suspended) > most or self.deliveries > MAX_KEPT):
            self.discard(next(iter(self._suspended)))

    def take(self, key: LinkKey, node: Queue | str) -> dict[bytes, Any]:
        """Remove a suspended link that is resumed. Returns its deliveries; none if it was of another node."""
        suspended = self._suspended.get(key)
        if suspended is None or suspended.node != node:
            self.discard(key)
            return {}
        del self._suspended[key]
        self._unhold(key, suspended.holder)
        self.deliveries -= len(suspended.waiting)
        return {} if not isinstance(node, str) and node.is_deleted else suspended.waiting

    # ---- nodes, and holders ----

    def keep_nodes(self, key: LinkKey, queues: list[Queue], holder: object | None) -> None:
        """Keep what ends with a link that is detached."""
        assert key not in self._nodes, "an attach takes it"
        if len(self._nodes) >= self._most_nodes:
            self._forget_deleted()
        self._nodes[key] = Nodes(queues, holder)
        if holder is not None:
            self._held.setdefault(holder, {})[key] = None

    def take_nodes(self, key: LinkKey) -> list[Queue]:
        """What was kept of a link that is attached again."""
        found = self._nodes.pop(key, None)
        if found is None:
            return []
        self._unhold(key, found.holder)
        for queue in found.queues:
            if queue.owner is found.holder:
                queue.owner = None
        return found.queues

    def _forget_deleted(self) -> None:
        """Forget nodes that others have deleted."""
        for key, nodes in list(self._nodes.items()):
            if all(queue.is_gone for queue in nodes.queues):
                del self._nodes[key]
                self._unhold(key, nodes.holder)
        self._most_nodes = 2 * len(self._nodes) + _NODES_SPARED

    def _unhold(self, key: LinkKey, holder: object | None) -> None:
        """A holder keeps less of a link, perhaps nothing."""
        held = self._held.get(holder)
        if held is None or any(
            each is not None and each.holder is holder for each in (self._suspended.get(key), self._nodes.get(key))
        ):
            return
        held.pop(key, None)
        if not held:
            del self._held[holder]

    def end_holder(self, holder: object, now: float) -> list[Queue]:
        """A session or a connection has ended: the time of links that it holds begins. Returns their nodes, which end.

        Args:
            holder: the session or the connection.
            now: seconds of a monotonic clock.
        """
        ending: list[Queue] = []
        for key in self._held.pop(holder, ()):
            suspended, nodes = self._suspended.get(key), self._nodes.get(key)
            if suspended is not None and suspended.holder is holder:
                self._suspended[key] = suspended._replace(until=now + suspended.seconds, holder=None)
            if nodes is not None and nodes.holder is holder:
                ending += self.take_nodes(key)
        return ending

    def discard(self, key: LinkKey) -> None:
        """End a suspended link, if there is one: its messages are available again."""
        suspended = self._suspended.pop(key, None)
        if suspended is not None:
            self._unhold(key, suspended.holder)
            self.deliveries -= len(suspended.waiting)
            self.give_back(suspended.node, suspended.waiting.values())

    def discard_of(self, user: str) -> None:
        """End the suspended links of a user."""
        found = [(key, each) for key, each in self._suspended.items() if key.user == user]
        if found:
            self._broker.tick.turns.do(self, self._ending(found))

    def give_back(self, node: Queue | str, deliveries: Sequence[Any] | Any) -> None:
        """Make messages available again that were not resumed; they count as delivered."""
        if not isinstance(node, str):
            entries: list[Entry] = list(deliveries)
            held = ((node, entry) for entry in entries)
            give_back(object(), self._broker.tick.turns, len(entries), held, is_redelivered=True)

    def on_timer(self, now: float) -> None:
        """End links whose time is over; `now` is in seconds of a monotonic clock."""
        over = [(key, each) for key, each in self._suspended.items() if each.until <= now]
        if over:
            self._broker.tick.turns.do(self, self._ending(over))

    def _ending(self, links: list[tuple[LinkKey, Suspended]]) -> Iterator[None]:
        """End links, unless they were resumed meanwhile, one in each turn."""
        for key, each in links:
            if self._suspended.get(key) is each:
                self.discard(key)
                yield

    def close(self) -> None:
        """The broker stops: end all of them."""
        for key in list(self._suspended):
            self.discard(key)


def read_unsettled(given: tuple[tuple[Value, Value], ...]) -> dict[bytes, Composite | None]:
    """The deliveries that a client has not settled: tag -> outcome or part received; None for any other state."""
    return {key.value: _state_of(value) for key, value in given if isinstance(key.value, bytes)}


def _state_of(value: Value) -> Composite | None:
    encoded = encode_value(value)
    try:
        state = read_composite(encoded, 0, len(encoded))[0]
    except Amqp10Error:
        return None
    return state if state.name in OUTCOMES or state.name == RECEIVED else None


def encode_unsettled(
    states: Mapping[bytes, Composite | None], room: int
) -> tuple[tuple[tuple[Value, Value], ...], bool]:
    """A map of unsettled deliveries for attach, and whether it is incomplete.

    Args:
        states: tag -> state.
        room: bytes for the map.
    """
    pairs: list[tuple[Value, Value]] = []
    for tag, state in states.items():
        value = Value("null", None)
        if state is not None:
            encoded = encode_composite(state.name, state.fields)
            value = read_value(encoded, 0, len(encoded))[0]
        pair = Value("binary", tag), value
        room -= sum(len(encode_value(each)) for each in pair)
        if room < 0 or len(pairs) >= MAX_IN_MAP:
            return tuple(pairs), True
        pairs.append(pair)
    return tuple(pairs), False


def rest_at(content: bytes, section: int, offset: int) -> int:
    """Where the part of a message begins that a client has not received; 0 if that is not known.

    Args:
        content: the message as it is sent.
        section: the first section that the client is missing a part of; of at most `MAX_SECTIONS`.
        offset: the first byte of the section that it is missing. The section header may be another one than before.
    """
    if not 0 < section <= MAX_SECTIONS:
        return 0
    for number, (at, stop) in enumerate(_bounds(content)):
        if number == section:
            return at + offset if offset <= stop - at else 0
        if number == section - 1 and stop == len(content):
            return stop if not offset else 0
    return 0


def _bounds(content: bytes) -> Iterator[tuple[int, int]]:
    """Where the sections of a message begin and end, as far as they can be read."""
    at, end = 0, len(content)
    while at < end:
        try:
            _, constructor, value_at = begin_section(content, at, end)
            stop = find_payload(constructor, content, value_at, end)[1]
        except Amqp10Error:
            return
        yield at, stop
        at = stop
