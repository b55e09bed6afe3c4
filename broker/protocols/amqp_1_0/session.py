"""A session: its links, the numbers and outcomes of deliveries in both directions, and its windows.

    states      open -> ending (end was sent, what arrives is discarded) -> ended
    incoming    the messages of the client, each with a number: the ledger (`model/completion`) tracks which are done.
                One is done when it is on the disk in every durable queue that it was put on; runs of done numbers with
                the same outcome are reported as one disposition, which settles them
    outgoing    deliveries until they are settled, by number. The outcome of the client is applied by the model
                (`settlement`). If the client waits for the broker to settle (receiver settle mode `second`), that is
                sent when the outcome is on the disk

    outcome     model
    ---------   ----------------------------------------------------------------------------------------------------
    accepted    the message is dequeued
    rejected    it moves to the dead-letter or alternate exchange of its queue; without one it is dequeued
    released    it is available again, as if it had not been delivered
    modified    it is available again; with delivery-failed it counts as delivered, with undeliverable-here it is
                rejected. Its message-annotations are set before

**Credit.** A link gets credit for `CREDIT` messages, and more when half of it is used, unless as many messages of the
session wait for the disk or for a queue that flow control has stopped.

**Receiver settle mode second.** A message of the client has its outcome, and stays unsettled until the client settles
it. A link with more than `CREDIT` of these gets no credit, and a session has at most `MAX_UNSETTLED`. Links that can be
resumed: `resuming`.

**Windows.** Each end says how many transfer frames it accepts. The broker's window is renewed when half of it is used;
the client's is kept by `window`: with none left, nothing is sent.

Attaching a link may create nodes, which takes time: the input of the connection is paused meanwhile, so that later
frames see the effect (`attaching`).

Source: AMQP 1.0, part "transport", sections 2.5 to 2.7; part "messaging", sections 3.4 and 3.5.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from heapq import merge
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.log.logs import log_of
from qstore.broker.model.completion import CompletionLedger, Done, Runs
from qstore.broker.model.errors import (
    InvalidArgumentError,
    ModelError,
    QueueOverflowError,
    ResourceDeletedError,
    UnauthorizedError,
)
from qstore.broker.model.events import SessionEnded
from qstore.broker.model.message import Buffer, Content
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.queues.stream import Stream
from qstore.broker.model.run import RunEntry
from qstore.broker.model.settlement import (
    AT_ONCE,
    MOVED_AT_ONCE,
    Settled,
    accept,
    drained,
    reject,
    reject_in_turns,
    release,
    release_in_turns,
    unsubscribe,
)
from qstore.broker.model.topology.deletion import DELETED_AT_ONCE
from qstore.broker.protocols.amqp_1_0.attaching import Attach, prepare
from qstore.broker.protocols.amqp_1_0.errors import ConditionError, Ends, error_value
from qstore.broker.protocols.amqp_1_0.fetched import FetchLink, QueuelessLink, among
from qstore.broker.protocols.amqp_1_0.links import (
    CREDIT,
    MAX_UNSETTLED,
    NO_ANNOTATIONS,
    Delivery,
    IncomingLink,
    Link,
    OutgoingLink,
    TransferStream,
    has_foreign_annotations,
)
from qstore.broker.protocols.amqp_1_0.management import do_request
from qstore.broker.protocols.amqp_1_0.message import SectionMessage, mentions_delivery
from qstore.broker.protocols.amqp_1_0.publishing import ACCEPTED, publish, publish_run
from qstore.broker.protocols.amqp_1_0.resuming import (
    CONNECTION_CLOSE,
    LINK_DETACH,
    SESSION_END,
    LinkKey,
    Resumption,
    Tracked,
    encode_unsettled,
)
from qstore.broker.protocols.amqp_1_0.resuming import MAX_UNSETTLED as MAX_RESUMABLE
from qstore.broker.protocols.amqp_1_0.transactions import (
    OpenTransaction,
    Transactions,
    is_left_to_model,
    is_transactional,
    transaction_in,
)
from qstore.broker.protocols.amqp_1_0.transfers import MASK, difference
from qstore.broker.protocols.broker_connection import ignore_error
from qstore.broker.protocols.consumer import (
    COST_OF_DELETION,
    DROPPED_AT_ONCE,
    NO_NUMBER,
    HeldRun,
    HeldRuns,
    give_back,
    has_many,
    numbers_among,
)
from qstore.broker.protocols.machine import ManagedLink, SessionModes
from qstore.broker.protocols.publishing import HeldMessages
from qstore.formats.amqp_1_0.codes import Condition
from qstore.formats.amqp_1_0.composites import OUTCOMES, Composite, encode_composite
from qstore.formats.amqp_1_0.neutral import neutral_map
from qstore.formats.amqp_1_0.values import Amqp10Error, Value
from qstore.formats.kernels.bodies import Bodies
from qstore.formats.named_tuple import NamedTuple

if TYPE_CHECKING:
    from qstore.broker.federation.relay import Relay
    from qstore.broker.model.broker import Broker
    from qstore.broker.protocols.amqp_1_0.connection import ServerConnection

_LOG: Final = log_of("Protocol")

WINDOW: Final = 4_096
"""Transfer frames that the client may send before the broker renews its window."""

MAX_LINKS: Final = 10_000
"""Links of one session."""

RUNS_AT_ONCE: Final = 4_000
"""Messages in runs that are accepted in one turn."""

_SENDER, _RECEIVER = False, True
_FIRST: Final = 0  # receiver-settle-mode

ROOM_FOR_REST: Final = 64
"""Bytes of attach, besides a map of unsettled deliveries: heads of the frame, of the map and of the field after it."""

_UNLIMITED: Final = (1 << 31) - 1


class Session:
    """A session.

    Args:
        channel: its channel.
        connection: its connection.
        broker: the model.
        fields: those of the client's begin.

    Attributes:
        channel, connection, broker: as above.
        virtual_host: that of its connection.
        is_open: whether frames are accepted: end was neither sent nor received.
        can_send: whether messages may be sent: it is open, sends no stream, socket and window have room, and it has
            fewer than `max_unsettled` messages unsettled.
        window: transfer frames that the client accepts.
        next_delivery: the number of the next delivery to the client.
        unsettled: number -> delivery, until it is settled; those that were in runs may come later.
        held_runs: unsettled deliveries in runs.
        fetched: the numbers of unsettled deliveries of domains, and their links.
        max_unsettled: how many there may be.
        ledger: the messages of the client, by number.
        received: how many there are.
        links: handle of the client -> link.
        transactions: its transactions.
        owned: queues that end with it.
        rate: limits how fast it may publish; None for no limit.
        name, user, timeout, txn_starts, txn_commits, txn_rejects: as in `ManagedSession`.
    """

    __slots__ = (
        "__weakref__", "_awaited", "_detaching", "_drains", "_endings", "_handle_max", "_held", "_incoming",
        "_incoming_window", "_is_blocked", "_next_id", "_next_incoming", "_next_outgoing", "_offsets", "_outcomes",
        "_presettled", "_reported", "_stream", "_told", "_tracked", "_unfinished_drains", "broker", "can_send",
        "channel", "connection", "fetched", "held_runs", "is_open", "ledger", "links", "max_unsettled", "name",
        "next_delivery",
        "owned", "rate", "received", "timeout", "transactions", "txn_commits", "txn_rejects", "txn_starts", "unsettled",
        "user", "virtual_host", "window",
    )  # fmt: skip

    def __init__(self, channel: int, connection: ServerConnection, broker: Broker, fields: dict[str, Any]) -> None:
        self.channel, self.connection, self.broker = channel, connection, broker
        self.virtual_host = connection.virtual_host
        self.name, self.user = f"{connection.peer}.{channel}".encode(), connection.user
        self.timeout = 0  # a session ends with its connection
        self.is_open = True
        self.can_send = connection.can_send
        self.txn_starts = self.txn_commits = self.txn_rejects = 0
        connection.limit_rate()
        self.rate = connection.new_rate()
        self.transactions = Transactions(self)
        # the client's transfers
        self._next_incoming: int = fields["next_outgoing_id"]
        self._incoming_window = WINDOW
        self._next_id = -1  # the delivery-id of the next message; -1 before the first
        self._offsets = Offsets()
        self.received = 0
        self.ledger = CompletionLedger(0)
        self._reported, self._presettled = Done(0), Done(0)
        self._outcomes: dict[int, Composite] = {}  # number -> outcome, of those that are not accepted
        self._held: HeldMessages | None = None
        self._tracked: dict[int, Tracked] = {}  # number -> message of a link with `tracked` ones, until it was told
        self._told: dict[int, Tracked] = {}  # delivery-id -> one that was told, and is not settled
        self._awaited: list[tuple[list[Tracked], Callable[[], None]]] = []  # called when they have outcomes
        self._incoming: dict[IncomingLink, None] = {}  # those that have had messages since the last report
        # transfers to the client
        self._next_outgoing = self.next_delivery = 0
        self.window: int = fields["incoming_window"]
        self.unsettled: dict[int, Delivery] = {}
        self.held_runs = HeldRuns()
        self.max_unsettled = MAX_UNSETTLED
        self.fetched: dict[int, FetchLink] = {}
        self._stream: TransferStream | None = None
        self._is_blocked = False  # whether the stream waits for the window
        self._drains: dict[OutgoingLink, None] = {}
        self._unfinished_drains: dict[OutgoingLink, None] = {}
        # links
        self._handle_max: int = fields["handle_max"]
        self.links: dict[int, Link] = {}
        self.owned: list[Queue] = []
        self._detaching: set[int] = set()  # handles for which detach was sent
        self._endings: Endings | None = None  # of the detach that is being handled

    # ---- as management sees it ----

    @property
    def subscriptions(self) -> Mapping[str, OutgoingLink]:
        """Name -> link, of those on which the broker sends."""
        return {link.name: link for link in self.links.values() if isinstance(link, OutgoingLink)}

    @property
    def remote_host(self) -> str:
        """Address and port of the client."""
        return self.connection.peer

    @property
    def actor(self) -> str:
        """As `Caller.actor`: the connection, and its channel."""
        return f"{self.connection.actor}/ch:{self.channel}"

    @property
    def vhost(self) -> str:
        """As `Caller.vhost`."""
        return self.virtual_host.name

    @property
    def is_full(self) -> bool:
        """Whether it can hold no more messages that are not settled, or that leave with the commit of a transaction."""
        return self.unsettled_count + self.transactions.taken_count >= self.max_unsettled

    @property
    def unsettled_count(self) -> int:
        """Messages delivered to the client and not settled."""
        return len(self.unsettled) + self.held_runs.count

    @property
    def credit(self) -> int:
        """As `ManagedSession.credit`."""
        return min(MASK, sum(link.credit for link in self.links.values() if isinstance(link, OutgoingLink)))

    @property
    def outstanding_commands(self) -> int:
        """Messages of the client that are not done."""
        return self.received - self.ledger.done.count_below(self.received)

    @property
    def suspended_count(self) -> int:
        """Deliveries that would be kept if the connection was lost now."""
        singles = sum(
            len(each.unsettled if isinstance(each, OutgoingLink) else each.tracked)
            for each in self.links.values()
            if not isinstance(each, QueuelessLink) and each.resumption is not None
        )
        return singles + sum(run.entry.count for run in self.held_runs if run.consumer.resumption is not None)

    @property
    def modes(self) -> SessionModes:
        """As `ManagedSession.modes`: the client learns the outcome of each message that it has not sent settled."""
        transactions = self.transactions.open
        return SessionModes(
            confirms=True,
            is_transactional=bool(transactions),
            prefetch=0,
            shared_prefetch=0,
            published=sum(len(each.work.messages) for each in transactions),
            settled=sum(len(each.retired) for each in transactions),
        )

    @property
    def attached_links(self) -> Iterator[ManagedLink]:
        """As `ManagedSession.attached_links`; not those of transactions and management."""
        container = self.connection.container
        for link in list(self.links.values()):
            if isinstance(link, OutgoingLink | FetchLink):
                yield ManagedLink(False, container, link.name, *link.ends, link.delivered)
            elif isinstance(link, IncomingLink) and not link.is_control and not link.is_management:
                count = (link.delivery_count - link.first_count) & MASK
                yield ManagedLink(True, container, link.name, *link.ends, count)

    def close_subscription(self, destination: str) -> None:
        """As `ManagedSession.close_subscription`."""
        link = self.subscriptions.get(destination)
        if link is not None:
            self.fail_link(link.handle, ResourceDeletedError(f'link "{destination}" was closed by management'))

    # ---- frames ----

    def begin(self) -> None:
        """Answer begin."""
        self._send(
            "begin",
            remote_channel=self.channel,
            next_outgoing_id=self._next_outgoing,
            incoming_window=self._incoming_window,
            outgoing_window=_UNLIMITED,
            handle_max=MAX_LINKS - 1,
        )

    def _send(self, performative: str, /, **values: Any) -> bool:
        """Send a frame. Returns whether the client accepts one of its size; only attach may be too large."""
        return self.connection.send_performative(self.channel, performative, **values)

    def on(self, performative: Composite) -> None:
        """A frame without content was received, other than begin and end.

        Raises:
            ConditionError: it is not valid.
        """
        name, fields = performative
        if name == "flow":
            self._on_flow(fields)
        elif name == "disposition":
            self._on_disposition(fields)
        elif name == "attach":
            self._on_attach(fields)
        else:
            self._on_detach(fields)

    def fail_with(self, error: Exception) -> None:
        """End the session because of an error."""
        if not self.is_open:
            return
        _LOG.info("Client %s, session on channel %d: %s", self.connection.peer, self.channel, error)
        self.end(is_orderly=False)
        self._send("end", error=error_value(error))
        self.connection.assembler.forget_channel(self.channel)

    # ---- links ----

    def _on_attach(self, fields: dict[str, Any]) -> None:
        handle: int = fields["handle"]
        if handle >= MAX_LINKS or handle > self._handle_max:
            text = f"handle {handle} is above the maximum of {min(MAX_LINKS - 1, self._handle_max)}"
            raise ConditionError(Condition.NOT_ALLOWED, text, Ends.SESSION)
        if handle in self.links or handle in self._detaching:
            raise ConditionError(Condition.HANDLE_IN_USE, f"handle {handle} is in use", Ends.SESSION)
        attach = Attach(self, fields)
        try:
            work = prepare(attach)
        except (ConditionError, ModelError) as error:
            self._refuse_link(attach, error)
            return
        if work is None:
            self._attached(attach)
        else:
            self.run(work, partial(self._prepared, attach), attach.abandon)

    def run(
        self,
        work: Coroutine[Any, Any, None],
        done: Callable[[ModelError | None], None],
        abandon: Callable[[], None] | None = None,
    ) -> None:
        """Run a coroutine with the connection's input paused; `abandon` is called if the session ends meanwhile."""
        connection = self.connection
        connection.pause()

        def then(error: ModelError | None) -> None:
            if self.is_open:
                done(error)
            elif abandon is not None:
                abandon()
            connection.unpause()

        connection.run(work, then)

    def _prepared(self, attach: Attach, error: ModelError | None) -> None:
        if error is None:
            self._attached(attach)
        else:
            attach.abandon()
            self._refuse_link(attach, error)

    def _attached(self, attach: Attach) -> None:
        resumable, key = self.connection.resumable, attach.key
        before = resumable.attached.get(key)
        if before is not None and not before.session.is_open:
            before.session.suspend(before)
            before = None
        if not attach.kept_seconds:
            resumable.discard(key)
            self._make_link(attach)
            return
        if before is not None:
            text = f"it was attached on connection {self.connection.peer}"
            before.session.fail_link(before.handle, ConditionError(Condition.STOLEN, text), is_suspended=True)
        undecided = resumable.undecided(key)
        if undecided:
            self.connection.pause()
            undecided[0].session.when_decided(undecided, partial(self._make_decided, attach))
        else:
            self._make_link(attach)

    def _make_decided(self, attach: Attach) -> None:
        """The messages of a suspended link have outcomes: attach it, with those that other sessions had."""
        if self.is_open:
            self._attached(attach)
        else:
            attach.abandon()
        self.connection.unpause()

    def _make_link(self, attach: Attach) -> None:
        try:
            link = attach.make()
        except (ConditionError, ModelError) as error:
            attach.abandon()
            self._refuse_link(attach, error)
            return
        self.links[link.handle] = link
        if not isinstance(link, QueuelessLink) and link.resumption is not None:
            self._resume_link(attach, link, link.resumption)
        if not self._send("attach", **attach.answer(link)):
            self._drop_link(link, is_orderly=True, is_suspended=True)
            attach.abandon()
            text = f"the answer exceeds the client's max-frame-size of {self.connection.max_frame}"
            self._refuse_link(attach, ConditionError(Condition.FRAME_SIZE_TOO_SMALL, text))
            return
        if isinstance(link, FetchLink):
            link.fetch.start()
        elif isinstance(link, IncomingLink):
            if link.relay is not None:
                link.relay.start()
            elif self.outstanding_commands < CREDIT:
                self._give_credit(link)
            else:
                self._incoming[link] = None

    def _resume_link(self, attach: Attach, link: IncomingLink | OutgoingLink, resumption: Resumption) -> None:
        """Compare the unsettled deliveries of a link with those that the client has told."""
        resumable, is_outgoing = self.connection.resumable, isinstance(link, OutgoingLink)
        resumable.attached[resumption.key] = link
        if is_outgoing:
            self.max_unsettled = MAX_RESUMABLE
        waiting, told = resumable.take(resumption.key, resumption.node), attach.told
        if told is None:
            resumable.give_back(resumption.node, waiting.values())
            return
        if not attach.is_incomplete:
            missing = {tag: each for tag, each in waiting.items() if tag not in told}
            resumable.give_back(resumption.node, missing.values())
            waiting = {tag: each for tag, each in waiting.items() if tag in told}
        states = dict.fromkeys(waiting) if is_outgoing else {tag: each.outcome for tag, each in waiting.items()}
        room = self.connection.max_frame - len(encode_composite("attach", attach.answer(link))) - ROOM_FOR_REST
        attach.unsettled = encode_unsettled(states, room)
        resumption.waiting = waiting
        resumption.is_partial = attach.unsettled[1] or (is_outgoing and attach.is_incomplete)
        if is_outgoing:
            resumption.to_send.extend((tag, told[tag]) for tag in waiting if tag in told)

    def _refuse_link(self, attach: Attach, error: Exception) -> None:
        _LOG.info("Client %s, link %a: %s", self.connection.peer, attach.name, error)
        answer = attach.answer(None)
        if not self._send("attach", **answer) and not self._send(
            "attach", **{**answer, "source": None, "target": None}
        ):
            text = f"the name of a link exceeds the client's max-frame-size of {self.connection.max_frame}"
            self.fail_with(ConditionError(Condition.FRAME_SIZE_TOO_SMALL, text, Ends.SESSION))
            return
        self._send("detach", handle=attach.handle, closed=True, error=error_value(error))
        self._detaching.add(attach.handle)

    def _link(self, handle: int) -> Link | None:
        """The link of a handle; None for one that the broker has detached. Raises ConditionError."""
        link = self.links.get(handle)
        if link is None and handle not in self._detaching:
            raise ConditionError(Condition.UNATTACHED_HANDLE, f"handle {handle} is not attached", Ends.SESSION)
        return link

    def _on_detach(self, fields: dict[str, Any]) -> None:
        handle, is_closed = fields["handle"], fields["closed"]
        link = self._link(handle)
        self.connection.assembler.forget_link(self.channel << 32 | handle)
        if link is None:
            self._detaching.discard(handle)
            return
        endings = self._endings = Endings()
        self._drop_link(link, is_orderly=True, is_suspended=not is_closed, is_closed=is_closed)
        self._endings = None
        turns = self.broker.tick.turns
        if turns.has(self):
            self.connection.pause()  # later frames see the effect
            turns.after(self, partial(self._dropped, link, is_closed, endings, self.connection.unpause))
        else:
            self._dropped(link, is_closed, endings)

    def _dropped(self, link: Link, is_closed: bool, endings: Endings, done: Callable[[], None] | None = None) -> None:
        """The deliveries of a link that the client has detached are given back: end its subscription, and answer."""
        if self.is_open:
            answer = partial(self._detached, link.handle, is_closed)
            if is_closed and isinstance(link, OutgoingLink) and isinstance(link.queue, Stream) and link.keeps_offset:
                link.queue.forget_name(link.keeps_offset)
            if is_closed and isinstance(link, OutgoingLink) and link.is_durable and not link.queue.consumer_count:
                self.run(self.virtual_host.topology.delete_queue(link.queue.name, caller=self), answer)
            elif endings.count:
                self._answer_after(endings, answer)
            else:
                answer(None)
        if done is not None:
            done()

    def _answer_after(self, endings: Endings, answer: Callable[[ModelError | None], None]) -> None:
        """Answer when the nodes that end with a link are gone; later frames see it, too."""
        self.connection.pause()

        def then() -> None:
            if self.is_open:
                answer(None)
            self.connection.unpause()

        endings.done = then

    def _detached(self, handle: int, is_closed: bool, error: ModelError | None) -> None:
        """Answer detach; with an error if the durable subscription of the link cannot be deleted."""
        self._send("detach", handle=handle, closed=is_closed, error=None if error is None else error_value(error))

    def fail_link(self, handle: int, error: Exception, *, is_suspended: bool = False) -> None:
        """Detach a link because of an error; with `is_suspended` it can be resumed."""
        link = self.links.get(handle)
        if link is None or not self.is_open:
            return
        _LOG.info("Client %s, link %a: %s", self.connection.peer, link.name, error)
        self._drop_link(link, is_orderly=False, is_suspended=is_suspended)
        self._send("detach", handle=handle, closed=True, error=error_value(error))
        self._detaching.add(handle)

    def link_lost(self, link: OutgoingLink) -> None:
        """The queue of a link was deleted."""
        self.fail_link(link.handle, ResourceDeletedError(f'queue "{link.queue.name}" was deleted'))

    def _drop_link(self, link: Link, *, is_orderly: bool, is_suspended: bool = False, is_closed: bool = False) -> None:
        """End a link; its deliveries have the outcome for those without one.

        Args:
            link: the link.
            is_orderly: whether the client has asked for it; if not, its deliveries count as delivered.
            is_suspended: whether its deliveries and its nodes are kept, if it can be resumed.
            is_closed: whether the client has closed it: its nodes end at once.
        """
        self.links.pop(link.handle, None)
        if not isinstance(link, QueuelessLink) and link.resumption is not None:
            self._leave(link, link.resumption, LINK_DETACH, is_suspended=is_suspended)
        if isinstance(link, OutgoingLink):
            self._end_outgoing(link)
            if link.unsettled or self.held_runs.count:
                self._give_back(link, is_redelivered=not is_orderly)
        elif isinstance(link, QueuelessLink):
            self._end_stream_of(link)
            link.close()
        else:
            self._incoming.pop(link, None)
            self._forget_tracked(link)
            if link.relay is not None:
                link.relay.close()
            if not is_orderly:
                self.transactions.missed(link.state)
            if link.is_control:
                self.transactions.roll_back_of(link)
        self._leave_nodes(link, LINK_DETACH if is_suspended else None, is_closed=is_closed)

    def _leave_nodes(self, link: Link, event: int | None, *, is_closed: bool = False) -> None:
        """A link ends: so do its nodes, at once or with an event that is still to come.

        Args:
            link: the link.
            event: what has happened (`resuming.POLICIES`); None if it is as good as closed.
            is_closed: whether the client has closed it: there is no time-out.
        """
        if isinstance(link, IncomingLink) and link.kept is not None:
            self._leave_target(link)
        owned, link.owned = link.owned, []
        if not owned:
            return
        assert not isinstance(link, QueuelessLink)
        if event is not None and link.policy > (CONNECTION_CLOSE if self.connection.is_over else event):
            self._keep_nodes(link, owned)
            return
        for queue in owned:
            self.let_go(queue, at_once=is_closed)

    def _leave_target(self, link: IncomingLink) -> None:
        """A link no longer sends to a node that stays as long as it is used, which may end now."""
        kept, link.kept = link.kept, None
        if isinstance(kept, Queue):
            kept.keepers -= 1
            self._end_by(self.connection.leave, kept)
        elif kept is not None:
            kept.senders -= 1
            if not kept.is_in_use and not kept.is_deleted:
                done = ignore_error if self._endings is None else self._endings.one
                self.connection.run(self.virtual_host.topology.delete_if_left(kept), done)
                if self._endings is not None:
                    self._endings.count += 1

    def _keep_nodes(self, link: IncomingLink | OutgoingLink, owned: list[Queue]) -> None:
        connection, holder = self.connection, self._holder(link.policy, LINK_DETACH if self.is_open else SESSION_END)
        for queue in owned:
            if queue.owner is self:
                queue.owner = holder
        is_source = isinstance(link, OutgoingLink)
        key = LinkKey(self.virtual_host.name, self.user, connection.container, link.name, is_source)
        for queue in connection.resumable.take_nodes(key):  # of another link with the name
            self.let_go(queue)
        connection.resumable.keep_nodes(key, owned, holder)

    def _holder(self, policy: int, event: int) -> object | None:
        """What keeps what a link has left, after an event: this session, or the connection; None for neither."""
        if policy <= event or self.connection.is_over:
            return None
        if policy == SESSION_END:
            return self
        return self.connection if policy == CONNECTION_CLOSE else None

    def _leave(
        self, link: IncomingLink | OutgoingLink, resumption: Resumption, event: int, *, is_suspended: bool
    ) -> None:
        """A link that can be resumed ends: suspend it, or give back what was not resumed."""
        resumable = self.connection.resumable
        if resumable.attached.get(resumption.key) is link:
            del resumable.attached[resumption.key]
        waiting, link.resumption = resumption.waiting, None
        if not is_suspended:
            resumable.give_back(resumption.node, waiting.values())
            return
        kept: dict[bytes, Any] = {}
        if isinstance(link, OutgoingLink):
            for run in [each for each in self.held_runs if each.consumer is link]:
                self._unfold(run)
            for number in sorted(link.unsettled):
                delivery = self.unsettled[number]
                if delivery.retired is None:
                    kept[link.tag_of(number, delivery)] = self.take(number).entry
        else:
            kept |= {tag: each for tag, each in link.tracked.items() if self._held is None or each.is_decided}
        resumable.suspend(resumption, kept | waiting, self.connection.now(), self._holder(resumption.policy, event))

    def _end_outgoing(self, link: OutgoingLink) -> None:
        link.is_attached = False
        if link.transaction is not None:
            link.transaction.links.pop(link, None)
            link.transaction = None
        self._end_stream_of(link)
        queue = link.queue
        unsubscribe(self.virtual_host, self, queue, link, link.name)
        if not queue.is_deleted and queue not in link.owned:
            self._end_by(self.connection.leave, queue)

    def _end_stream_of(self, link: OutgoingLink | QueuelessLink) -> None:
        stream = self._stream
        if stream is not None and stream.link is link:
            self._stream, self._is_blocked = None, False
            self.connection.streams.pop(self.channel, None)
            self.wake_all()

    def _give_back(self, link: OutgoingLink, *, is_redelivered: bool) -> None:
        """Settle the deliveries of a link that has ended, with its default outcome."""
        unsettled, default = self.unsettled, link.default
        numbers = [number for number in link.unsettled if unsettled[number].retired is None]
        if is_redelivered and default.name == "released":
            default = Composite("modified", {"delivery_failed": True})
        runs = [run for run in self.held_runs if run.consumer is link]
        if len(numbers) + sum([run.entry.count for run in runs]) > AT_ONCE:
            in_runs = chain.from_iterable(self._singles_of(run) for run in runs)
            self._do_in_turns(self._settle_in_turns(chain(numbers, in_runs), default, answers=False))
        else:
            for run in runs:
                numbers += self._singles_of(run)
            self._settle(numbers, default, answers=False)

    # ---- deliveries in runs ----

    def _singles_of(self, run: HeldRun, most: int = NO_NUMBER) -> list[int]:
        """Make the messages of a run single deliveries, or the first `most` of a whole one.

        Returns their numbers; none if the session has ended.
        """
        return self._unfold(run, most) if self.is_open else []

    def _unfold(self, run: HeldRun, most: int = NO_NUMBER) -> list[int]:
        """As `_singles_of`, also if the session has ended."""
        link: OutgoingLink = run.consumer
        numbers: list[int] = []
        for number, entry in self.held_runs.take(run, most).singly():
            self.unsettled[number] = Delivery(link, entry)
            link.unsettled[number] = None
            numbers.append(number)
        return numbers

    def _numbers_in(self, first: int, last: int) -> Iterator[int]:
        """The numbers of unsettled deliveries in a range; those in runs become single deliveries, as they are read."""
        singles = numbers_among([(first, last)], self.unsettled, self.next_delivery)
        if self.held_runs.overlapping(first, last) is None:
            return singles
        return merge(list(singles), self._singles_in(first, last))

    def _singles_in(self, first: int, last: int) -> Iterator[int]:
        while (run := self._run_in(first, last)) is not None:
            yield from [each for each in self._singles_of(run, last + 1 - run.first) if first <= each <= last]

    def _run_in(self, first: int, last: int) -> HeldRun | None:
        """The first run with numbers in a range; if it is whole, from the beginning of the range on."""
        found = self.held_runs.overlapping(first, last)
        return None if found is None else self.held_runs.beginning_with(max(first, found.first))

    def _accept_runs(self, first: int, last: int, *, answers: bool, most: int) -> bool:
        """Accept about `most` messages in runs that have numbers in a range. Returns whether there were any."""
        acquired: list[tuple[Queue, Entry]] = []
        ranges: list[tuple[int, int]] = []
        while most > 0 and (run := self._run_in(first, last)) is not None:
            if run.is_whole:
                taken = self.held_runs.take(run, last + 1 - run.first)
                acquired.append((taken.queue, taken.entry))
                ranges.append((taken.first, taken.end - 1))
                most -= taken.entry.count
            else:
                most -= len(self._singles_of(run))
        if acquired:
            done = partial(self._tell_ranges, ranges if answers else [], _ACCEPTED)
            self._when(accept(self.broker.tick, acquired, done), done)
            self.have_settled()
        return most < RUNS_AT_ONCE

    def _accept_runs_in_turns(self, first: int, last: int, *, answers: bool) -> Iterator[None]:
        while self.is_open and self._accept_runs(first, last, answers=answers, most=RUNS_AT_ONCE):
            yield
        numbers = numbers_among([(first, last)], self.unsettled, self.next_delivery)
        if self.transactions.retired_count:
            yield from self._settle_free_in_turns(numbers, _ACCEPTED, answers=answers)
        else:
            yield from self._settle_in_turns(numbers, _ACCEPTED, answers=answers)

    def dequeue_run(self, queue: Queue, run: RunEntry) -> None:
        """Dequeue the messages of a run that were sent settled."""
        try:
            queue.dequeue_run(run, run.count)
        except ModelError as error:
            self.fail_with(error)

    def let_go(self, queue: Queue, *, at_once: bool = False) -> None:
        """A link with a node of its own has expired: the node ends, after its time-out unless that is `at_once`."""
        queue.keepers -= 1
        if at_once and not queue.keepers and not queue.consumer_count:
            queue.auto_delete_seconds = 0
            self.virtual_host.idle_queues.forget(queue)
        self.disown(queue)

    def disown(self, queue: Queue) -> None:
        """A queue of this session, or of a link, ends."""
        if queue.owner is self:
            queue.owner = None
        self._end_by(self.connection.end_queue, queue)

    def _end_by(self, end: Callable[[Queue, Callable[[ModelError | None], None]], bool], queue: Queue) -> None:
        """Have a queue end; the answer to a detach that is the reason waits for it."""
        endings = self._endings
        if endings is None:
            end(queue, ignore_error)
        elif end(queue, endings.one):
            endings.count += 1

    # ---- flow ----

    def _on_flow(self, fields: dict[str, Any]) -> None:
        begin = fields.get("next_incoming_id", 0)
        self.window = fields["incoming_window"] - difference(self._next_outgoing, begin)
        self._window_opened()
        handle = fields.get("handle")
        if handle is None:
            if fields["echo"]:
                self._send_flow()
            return
        link = self._link(handle)
        if isinstance(link, OutgoingLink):
            self._on_credit(link, fields)
        elif isinstance(link, QueuelessLink):
            self._on_credit_without_queue(link, fields)
        elif link is not None and fields["echo"]:
            self._send_flow(link)

    def _on_credit_without_queue(self, link: QueuelessLink, fields: dict[str, Any]) -> None:
        credit = fields.get("link_credit")
        if credit is not None:
            link.credit = max(0, credit - difference(link.delivery_count, fields.get("delivery_count", 0)))
        link.on_credit(is_draining=fields["drain"])
        if fields["echo"] and not fields["drain"]:
            self._send_flow(link)

    def give_back(self, link: QueuelessLink) -> None:
        """Give the credit of a link back, which the client drains: it has nothing more to send."""
        link.delivery_count, link.credit = (link.delivery_count + link.credit) & MASK, 0
        self._send_flow(link, drain=True)

    def _window_opened(self) -> None:
        if self.window <= 0:
            self.can_send = False
        elif self._is_blocked:
            self._is_blocked = False
            assert self._stream is not None
            self.connection.streams[self.channel] = self._stream
            self.connection.has_output()
        elif not self.can_send:
            self.wake_all()

    def _on_credit(self, link: OutgoingLink, fields: dict[str, Any]) -> None:
        count, credit = fields.get("delivery_count", 0), fields.get("link_credit")
        if credit is not None:
            link.credit = max(0, credit - difference(link.delivery_count, count))
        link.is_draining = fields["drain"]
        txn_id = transaction_in(fields.get("properties"))
        if txn_id is not None and not self._acquire_in(link, txn_id):
            return
        link.wake()
        if link.is_draining:
            self._drain_later(link)
        elif fields["echo"]:
            self._send_flow(link)

    def _drain_later(self, link: OutgoingLink) -> None:
        """Drain a link once all input was processed: it may release messages, which come first."""
        self._unfinished_drains[link] = None
        self.broker.tick.workers[self] = None

    def _acquire_in(self, link: OutgoingLink, txn_id: Value) -> bool:
        """Have a link acquire messages in a transaction. Returns whether there is one; if not, the link has ended."""
        if link.transaction is not None:
            del link.transaction.links[link]
            link.transaction = None
        if txn_id.value is None:
            return True
        try:
            link.transaction = self.transactions.find(txn_id)
        except ConditionError as error:
            self.fail_link(link.handle, error)
            return False
        link.transaction.links[link] = None
        return True

    def _continue_draining(self) -> None:
        """Continue with the links that are being drained, as long as anything can be sent."""
        for link in list(self._drains):
            if not self.can_send or self.connection.room <= 0:
                return
            self._drain(link)

    def _drain(self, link: OutgoingLink) -> None:
        """Deliver what a link has credit for, and take away the credit that is left."""
        self._drains.pop(link, None)
        if not link.is_attached or not link.is_draining:
            return
        if link.resumption is not None and link.resumption.to_send:
            link.wake()
            if link.resumption is not None and link.resumption.to_send and link.credit:
                self._drains[link] = None
                return
        if not link.queue.is_deleted:
            link.queue.dispatch()
        if link.is_blocked:
            self._drains[link] = None
        elif link.credit and link.queue.is_unfinished:
            self._drain_later(link)
        else:
            self._drained(link)

    def _drained(self, link: OutgoingLink) -> None:
        link.delivery_count = (link.delivery_count + link.credit) & MASK
        link.credit = 0
        link.is_draining = False
        self._send_flow(link, drain=True)

    def _send_flow(self, link: Link | None = None, *, drain: bool = False) -> None:
        values: dict[str, Any] = {
            "next_incoming_id": self._next_incoming,
            "incoming_window": self._incoming_window,
            "next_outgoing_id": self._next_outgoing,
            "outgoing_window": _UNLIMITED,
        }
        if link is not None:
            values |= {
                "handle": link.handle,
                "delivery_count": link.delivery_count,
                "link_credit": link.credit,
                "drain": drain or None,
            }
            if isinstance(link, OutgoingLink):
                values["available"] = min(link.queue.available_count, MASK)
        self._send("flow", **values)

    def _give_credit(self, link: IncomingLink) -> bool:
        """Give a link credit. Returns whether that has sent a flow: a relay may have no more than there is."""
        credit = CREDIT if self.rate is None else min(CREDIT, self.rate.rate)
        if link.relay is not None:
            credit = min(credit, link.relay.room)
            if credit <= link.credit:
                return False
        link.credit = credit
        self._send_flow(link)
        return True

    # ---- messages of the client ----

    def takes(self, transfer: dict[str, Any], *, is_first: bool) -> bool:
        """Count a frame of a transfer. Returns whether its content is accepted.

        Raises:
            ConditionError: it is not valid.
        """
        self._next_incoming = (self._next_incoming + 1) & MASK
        self._incoming_window -= 1
        if self._incoming_window < 0:
            raise ConditionError(Condition.WINDOW_VIOLATION, "more transfers than the window allows", Ends.SESSION)
        if self._incoming_window < WINDOW // 2:
            self.broker.tick.workers[self] = None
        link = self._link(transfer["handle"])
        if is_first:
            self._count(transfer)
        if link is None:
            self.transactions.missed(transfer.get("state"))
            return False
        if not isinstance(link, IncomingLink):
            text = f"a transfer on handle {link.handle}, on which the broker sends"
            raise ConditionError(Condition.NOT_ALLOWED, text, Ends.SESSION)
        if is_first:
            self._begins(link, transfer)
        return link.handle in self.links

    def _count(self, transfer: dict[str, Any]) -> None:
        """Count a message, also one that is discarded, by its first frame. Raises ConditionError for the session."""
        delivery_id = transfer.get("delivery_id")
        if delivery_id is None or "delivery_tag" not in transfer:
            text = "a transfer without delivery-id or delivery-tag"
            raise ConditionError(Condition.INVALID_FIELD, text, Ends.SESSION)
        if self._next_id not in (-1, delivery_id):
            text = f"delivery-id {delivery_id} instead of {self._next_id}"
            raise ConditionError(Condition.INVALID_FIELD, text, Ends.SESSION)
        self._next_id = (delivery_id + 1) & MASK

    def _begins(self, link: IncomingLink, transfer: dict[str, Any]) -> None:
        """A message begins; may detach the link."""
        link.delivery_count = (link.delivery_count + 1) & MASK
        link.credit -= 1
        link.state = transfer.get("state")
        self._incoming[link] = None
        self.broker.tick.workers[self] = None
        if link.credit < 0:
            text = "more messages than the credit of the link allows"
            self.fail_link(link.handle, ConditionError(Condition.TRANSFER_LIMIT_EXCEEDED, text))
        elif link.is_tracked and len(self._tracked) + len(self._told) >= MAX_UNSETTLED:
            text = f"more than {MAX_UNSETTLED:,} messages that are not settled"
            raise ConditionError(Condition.RESOURCE_LIMIT_EXCEEDED, text, Ends.SESSION)
        elif link.resumption is not None and transfer["resume"] and transfer["aborted"]:
            link.resumption.waiting.pop(transfer["delivery_tag"], None)
        elif link.resumption is not None and link.resumption.is_partial and not transfer["resume"]:
            text = "a new delivery on a link whose map of unsettled deliveries was incomplete"
            self.fail_link(link.handle, ConditionError(Condition.NOT_ALLOWED, text), is_suspended=True)

    def begin_run(self, transfer: dict[str, Any], data: bytes, begin: int, end: int) -> IncomingRun | None:
        """As `FrameReceiver.begin_run`."""
        link = self.links.get(transfer["handle"])
        if not isinstance(link, IncomingLink) or link.node is None or link.is_control or link.is_management:
            return None
        if link.is_tracked:
            return None
        if transfer["delivery_id"] != self._next_id or transfer.get("message_format"):
            return None
        template = self.connection.publishing.template(data, begin, end)
        if template is None:
            return None
        most = min(link.credit, self._incoming_window)
        if self.rate is not None:
            most = min(most, self.rate.credit)
        return IncomingRun(self, link, transfer, template, begin + len(template.header), most)

    def transferred_run(self, incoming: IncomingRun, bodies: Bodies) -> int:
        """As `FrameReceiver.transferred_run`: publish them, which gives them their numbers."""
        link, transfer, template = incoming.link, incoming.transfer, incoming.template
        assert link.node is not None
        try:
            count = publish_run(self, link.node, template, bodies)
        except ModelError:
            return 0  # the first is published by itself, and refused
        if not count:
            return 0
        if self.rate is not None:
            self.rate.take(count, self.connection)
        first = self.received
        last, self.received = first + count - 1, first + count
        self._next_incoming = (self._next_incoming + count) & MASK
        self._incoming_window -= count
        self._next_id = (self._next_id + count) & MASK
        link.delivery_count = (link.delivery_count + count) & MASK
        link.credit -= count
        link.state = None
        self._incoming[link] = None
        self._offsets.add(first, transfer["delivery_id"])
        if transfer.get("settled"):
            self._presettled.add(first, last)
        if self.broker.router.is_run_stored:
            self.ledger.hold_run(first, last)
        self.broker.tick.workers[self] = None
        return count

    def transferred(self, transfer: dict[str, Any], content: Content, problem: ModelError | None = None) -> None:
        """Publish a message that is complete, which gives it its number; or refuse it, because of a problem."""
        link = self.links.get(transfer["handle"])
        if not isinstance(link, IncomingLink):
            return
        if transfer["resume"]:
            self._resumed(link, transfer)
            return
        host = self.virtual_host
        if host.schedule.queue is None and problem is None and mentions_delivery(content):
            self.run(host.topology.open_schedule(), partial(self.transferred, transfer, content))
            return
        link.state = None
        number, is_settled = self.received, bool(transfer.get("settled"))
        self.received = number + 1
        self._offsets.add(number, transfer["delivery_id"])
        self.broker.tick.workers[self] = None
        if is_settled:
            self._presettled.add(number, number)
        state, transaction = transfer.get("state"), None
        if link.is_tracked and not is_settled and not is_transactional(state):
            self._track(link, transfer, number)
        try:
            if problem is not None:
                raise problem
            if transfer.get("message_format"):
                text = f"message format {transfer['message_format']} is not implemented"
                raise ConditionError(Condition.NOT_IMPLEMENTED, text)
            if link.is_control:
                command = self.transactions.command(link, number, content, is_settled=is_settled)
                if command is not None:
                    self._outcomes[number] = command
                return
            if link.is_management:
                do_request(self, link.name, content)
                return
            if link.relay is not None:
                self._pass_on(link.relay, number, content, state)
                return
            if isinstance(state, Composite) and is_transactional(state):
                transaction = self.transactions.find(state.fields["txn_id"])
            work = None if transaction is None else transaction.work
            outcome = publish(self, link.node, content, number, work)
        except (ModelError, Amqp10Error, ConditionError) as error:
            if transaction is not None:
                transaction.failure = transaction.failure or error
            self._refuse(link, number, error, transaction, is_settled=is_settled)
            return
        if is_settled:
            return
        if transaction is not None:
            accepted = transaction.accepted
            self._outcomes[number] = accepted if outcome == ACCEPTED else transaction.state_of(Composite(outcome, {}))
        elif outcome != ACCEPTED:
            self._outcomes[number] = Composite(outcome, {})

    def _refuse(
        self,
        link: IncomingLink,
        number: int,
        error: Exception,
        transaction: OpenTransaction | None,
        *,
        is_settled: bool,
    ) -> None:
        """Reject a message. If its sender has settled it, or may not publish it, the link is detached instead."""
        if isinstance(error, UnauthorizedError) and not is_settled:
            self._presettled.add(number, number)
            self.fail_link(link.handle, error)
        elif not is_settled:
            outcome = Composite("rejected", {"error": error_value(error)})
            self._outcomes[number] = outcome if transaction is None else transaction.state_of(outcome)
        elif not isinstance(error, QueueOverflowError):
            self.fail_link(link.handle, error)

    def _resumed(self, link: IncomingLink, transfer: dict[str, Any]) -> None:
        """The client resumes a message, which has an outcome; one that is not known is ignored."""
        number, tag, resumption = self.received, transfer["delivery_tag"], link.resumption
        self.received = number + 1
        self._offsets.add(number, transfer["delivery_id"])
        self.broker.tick.workers[self] = None
        tracked: Tracked | None = None if resumption is None else resumption.waiting.pop(tag, None)
        if tracked is None or transfer.get("settled"):
            self._presettled.add(number, number)
            return
        outcome = tracked.outcome
        if outcome.name != ACCEPTED:
            self._outcomes[number] = outcome
        self._track(link, transfer, number)

    def _track(self, link: IncomingLink, transfer: dict[str, Any], number: int) -> None:
        """Keep a message of a link with `tracked` ones until it is settled."""
        is_first = link.settles_first or transfer.get("rcv_settle_mode") == _FIRST
        tag: bytes = transfer["delivery_tag"]
        tracked = Tracked(self, link, number, transfer["delivery_id"], tag, is_first=is_first)
        self._tracked[number] = link.tracked[tag] = tracked

    def _forget_tracked(self, link: IncomingLink) -> None:
        """A link with `tracked` messages has ended: those that are not told yet are settled then."""
        for each in link.tracked.values():
            self._told.pop(each.delivery_id, None)
            each.is_first = True
        link.tracked = {}

    def outcome_of(self, number: int) -> Composite:
        """The outcome of a message that is done."""
        return self._outcomes.get(number, _ACCEPTED)

    def when_decided(self, tracked: list[Tracked], done: Callable[[], None]) -> None:
        """Call a function when messages, one of them of this session, have outcomes."""
        self._awaited.append((tracked, done))

    def _decide(self) -> None:
        """Messages are done: call those who wait for that, once the session that has told it has ended its work."""
        awaited, self._awaited = self._awaited, []
        for tracked, done in awaited:
            left = [each for each in tracked if not each.is_decided]
            if left:
                left[0].session.when_decided(left, done)
            else:
                done()

    def hold(self, number: int, *, is_stored: bool) -> None:
        """Hold a number until its message's records are on the disk and no stopped queue holds it."""
        router = self.broker.router
        if not router.stops and router.fanout is None:
            self.ledger.hold(number)
            return
        if self._held is None:
            self._held = HeldMessages(self.broker, self.ledger, self._wait_for, self._message_done, self)
        self._held.hold(number, is_stored=is_stored)

    def _wait_for(self, owner: object) -> None:
        connection, turns = self.connection, self.broker.tick.turns
        if turns.has(owner):
            connection.pause()
            turns.after(owner, connection.unpause)

    def _message_done(self, number: int, error: Exception | None) -> None:
        if not self.is_open:
            return
        if error is not None and any(self._presettled.missing(number, number)):
            self._outcomes[number] = Composite("rejected", {"error": error_value(error)})
        self.ledger.complete([[number, number]])
        if self._awaited:
            self._decide()
        self.broker.tick.workers[self] = None
        self.broker.tick.schedule()

    # ---- links that are relayed ----

    def _pass_on(self, relay: Relay, number: int, content: Content, state: object) -> None:
        """Send a message to a domain. Raises ModelError, Amqp10Error or ConditionError."""
        if is_transactional(state):
            raise ConditionError(Condition.NOT_IMPLEMENTED, "a message to a domain cannot be part of a transaction")
        publishing = self.connection.publishing
        if publishing.checks_user_ids:
            publishing.check_user_id(publishing.read(content, self.broker.clock), self.connection.publisher)
        if self.rate is not None:
            self.rate.take(1, self.connection)
        self.ledger.postpone(number)
        relay.send(number, content)

    def settle_relayed(self, number: int, outcome: Composite) -> None:
        """A message that was sent to a domain has an outcome."""
        if self.is_open and outcome.name != ACCEPTED and any(self._presettled.missing(number, number)):
            self._outcomes[number] = outcome
        self._message_done(number, None)

    def look_for_credit(self, link: IncomingLink) -> None:
        """A relay has room: see whether its link gets credit."""
        if self.is_open and self.links.get(link.handle) is link:
            self._incoming[link] = None
            self.broker.tick.workers[self] = None
            self.broker.tick.schedule()

    def fail_relayed(self, link: IncomingLink | FetchLink, error: Exception) -> None:
        """A relay has ended: tell the outcomes of its messages, and detach the link."""
        if self.is_open and self.links.get(link.handle) is link:
            self._report()
            self.fail_link(link.handle, error)
            self.broker.tick.schedule()

    def set_outcome(self, number: int, outcome: Composite) -> None:
        """A message that was postponed is done."""
        self._outcomes[number] = outcome
        self._message_done(number, None)

    # ---- as a worker of the tick ----

    @property
    def is_in_step(self) -> bool:
        """Unknown: a sender may have as many messages on their way as it has credit."""
        return False

    def complete_received(self) -> Runs:
        """Complete the messages that do not wait. Returns the runs of those that wait for the disk."""
        held = self.ledger.complete_below(self.received)
        if self._awaited:
            self._decide()
        return held

    def complete(self, runs: Runs) -> None:
        """Complete messages whose records are on the disk."""
        self.ledger.complete(runs)
        if self._awaited:
            self._decide()

    def fail(self, runs: Runs, error: Exception) -> None:
        """Reject messages whose records could not be written."""
        _LOG.info("Client %s, channel %d: messages were not stored: %s", self.connection.peer, self.channel, error)
        outcome = Composite("rejected", {"error": error_value(error)})
        for first, last in runs:
            for begin, end in self._presettled.missing(first, last):
                for number in range(begin, end + 1):
                    self._outcomes[number] = outcome
        self.ledger.complete(runs)
        if self._awaited:
            self._decide()

    def report_completed(self) -> None:
        """Send the outcomes that are due, and renew credit and window."""
        if not self.is_open:
            return
        if self._unfinished_drains:
            drains, self._unfinished_drains = self._unfinished_drains, {}
            for draining in drains:
                self._drain(draining)
        self._report()
        is_due = self._incoming_window < WINDOW // 2
        if is_due:
            self._incoming_window = WINDOW
        if self._incoming and self.outstanding_commands < CREDIT:
            for link in self._incoming:
                if link.credit < CREDIT // 2 and len(link.tracked) < CREDIT and self._give_credit(link):
                    is_due = False
            self._incoming.clear()
        if is_due:
            self._send_flow()

    def _report(self) -> None:
        reported, done = self._reported, self.ledger.done
        runs = [(reported.below, done.below - 1)] if done.below > reported.below else []
        runs += done.beyond
        for begin, end in runs:
            for first, last in list(reported.missing(begin, end)):
                for part in list(self._presettled.missing(first, last)):
                    self._send_outcomes(*part)
                reported.add(first, last)
        self._offsets.forget(reported.below)
        if reported.below > self._presettled.below:
            self._presettled.add(0, reported.below - 1)

    def _send_outcomes(self, first: int, last: int) -> None:
        """Send the outcomes of consecutive numbers."""
        outcomes, at = self._outcomes, first
        if outcomes:
            begin, state = first, _ACCEPTED  # those from `begin` on that have an outcome in common
            for number in sorted(each for each in outcomes if first <= each <= last):
                outcome = outcomes.pop(number)
                if outcome is state and at == number:
                    at += 1
                    continue
                if begin < at:
                    self._send_outcome(begin, at - 1, state)
                if at < number:
                    self._send_outcome(at, number - 1, _ACCEPTED)
                begin, at, state = number, number + 1, outcome
            if begin < at:
                self._send_outcome(begin, at - 1, state)
        if at <= last:
            self._send_outcome(at, last, _ACCEPTED)

    def _send_outcome(self, first: int, last: int, state: Composite) -> None:
        if not self._tracked:
            self._tell(first, last, state, is_settled=True)
            return
        begin, is_settled = first, True  # those from `begin` on that are told in one way
        for number in range(first, last + 1):
            tracked = self._tracked.pop(number, None)
            is_first = tracked is None or tracked.is_first
            if is_first is not is_settled:
                if begin < number:
                    self._tell(begin, number - 1, state, is_settled=is_settled)
                begin, is_settled = number, is_first
            if tracked is not None:
                self._was_told(tracked, state)
        self._tell(begin, last, state, is_settled=is_settled)

    def _was_told(self, tracked: Tracked, state: Composite) -> None:
        tracked.state = state
        if not tracked.is_first:
            self._told[tracked.delivery_id] = tracked
        else:
            self._settled(tracked)

    def _settled(self, tracked: Tracked) -> None:
        """A message is settled: its link forgets it."""
        link = tracked.link
        if link.tracked.get(tracked.tag) is tracked:
            del link.tracked[tracked.tag]
        if link.credit < CREDIT // 2 and self.links.get(link.handle) is link:
            self._incoming[link] = None
            self.broker.tick.workers[self] = None

    def _tell(self, first: int, last: int, state: Composite, *, is_settled: bool) -> None:
        for begin, end in self._offsets.ids(first, last):
            self._send(
                "disposition",
                role=_RECEIVER,
                first=begin,
                last=None if begin == end else end,
                settled=is_settled,
                state=state,
            )

    # ---- messages to the client ----

    def sent_frame(self) -> None:
        """Count a transfer frame that was sent."""
        self._next_outgoing = (self._next_outgoing + 1) & MASK
        self.window -= 1
        if self.window <= 0:
            self.can_send = False

    def sent_frames(self, count: int) -> None:
        """Count transfer frames that were sent."""
        self._next_outgoing = (self._next_outgoing + count) & MASK
        self.window -= count
        if self.window <= 0:
            self.can_send = False

    def stream(self, link: OutgoingLink | QueuelessLink, frames: Iterator[tuple[Buffer, ...]]) -> None:
        """Send a message of several frames, in portions."""
        stream = self._stream = TransferStream(self, link)
        stream.add(frames)
        self.can_send = False
        self.connection.streams[self.channel] = stream
        self.connection.has_output()

    def stream_ended(self) -> None:
        """Continue after the stream: all of it was sent, or the window is closed."""
        stream = self._stream
        if stream is not None and not stream.is_sent:
            self._is_blocked = True
            return
        self._stream = None
        self.wake_all()

    def wake_all(self) -> None:
        """Messages may be sent again."""
        is_free = self.is_open and self._stream is None and self.window > 0 and not self.is_full
        self.can_send = is_free and self.connection.can_send
        if self.can_send:
            for link in list(self.links.values()):
                if not isinstance(link, IncomingLink):
                    link.wake()
            if self._drains:
                self._continue_draining()

    def dequeue(self, queue: Queue, entry: Entry) -> None:
        """Dequeue a message that was sent settled."""
        try:
            queue.dequeue(entry)
        except ModelError as error:
            self.fail_with(error)

    # ---- outcomes of the client ----

    def _on_disposition(self, fields: dict[str, Any]) -> None:
        if fields["role"] is _SENDER:
            if fields["settled"] and self._told:
                self._sender_settles(fields["first"], fields.get("last", fields["first"]))
            return
        first = self._number(fields["first"])
        last = first if fields.get("last") is None else self._number(fields["last"])
        state, is_settled = fields.get("state"), fields["settled"]
        if state is not None and not isinstance(state, Composite):
            raise ConditionError(Condition.NOT_IMPLEMENTED, "unknown delivery state", Ends.SESSION)
        if last < first:
            return  # there is no delivery in it
        if self.fetched:
            self._settle_fetched(first, last, state, is_settled=is_settled)
        most = min(last - first + 1, self.unsettled_count)
        if state is not None and is_transactional(state):
            self._retire(state, self._numbers_in(first, last), most, is_settled=is_settled)
            return
        if (state is None or state.name not in OUTCOMES) and not is_settled:
            return
        if self.held_runs.count and state is not None and state.name == ACCEPTED:
            if min(last - first + 1, self.held_runs.count) > RUNS_AT_ONCE:
                self._do_in_turns(self._accept_runs_in_turns(first, last, answers=not is_settled))
                return
            self._accept_runs(first, last, answers=not is_settled, most=RUNS_AT_ONCE)
            most = min(most, self.unsettled_count)
        numbers = self._numbers_in(first, last)
        is_retired = self.transactions.retired_count > 0
        if most > AT_ONCE:
            settle = self._settle_free_in_turns if is_retired else self._settle_in_turns
            self._do_in_turns(settle(numbers, state, answers=not is_settled))
        else:
            if is_retired:
                numbers = self.transactions.free(numbers, is_settled=is_settled)
            self._settle_any(list(numbers), state, answers=not is_settled)

    def _settle_fetched(self, first: int, last: int, state: Composite | None, *, is_settled: bool) -> None:
        """Pass an outcome for deliveries of domains on."""
        by_link: dict[FetchLink, list[int]] = {}
        for number in among(self.fetched, first, last):
            by_link.setdefault(self.fetched[number], []).append(number)
        if by_link and state is not None and is_transactional(state):
            text = "a message of a domain cannot be part of a transaction"
            raise ConditionError(Condition.NOT_IMPLEMENTED, text, Ends.SESSION)
        if is_settled or (state is not None and state.name in OUTCOMES):
            for link, numbers in by_link.items():
                link.settle(numbers, state, is_settled=is_settled)

    def _sender_settles(self, first: int, last: int) -> None:
        """The client settles messages that have outcomes."""
        ranges = [(first, last)] if first <= last else [(first, MASK), (0, last)]
        settling = self._forget_told(numbers_among(ranges, self._told, MASK + 1))
        if min(((last - first) & MASK) + 1, len(self._told)) > AT_ONCE:
            self._do_in_turns(settling)
        else:
            for _ in settling:
                pass

    def _forget_told(self, delivery_ids: Iterator[int]) -> Iterator[None]:
        while portion := list(islice(delivery_ids, AT_ONCE)):
            for delivery_id in portion:
                tracked = self._told.pop(delivery_id, None)
                if tracked is not None:  # otherwise its link has ended meanwhile
                    self._settled(tracked)
            yield

    def settle_resumed(self, number: int, state: Composite) -> None:
        """Apply the outcome that the client has given to a delivery that was resumed, and settle it then."""
        try:
            self._settle([number], state, answers=True)
        except ModelError as error:
            self.fail_with(error)

    def resume_later(self) -> None:
        """Wake the links again when output was sent."""
        turns = self.broker.tick.turns
        if not turns.has(self):
            turns.do(self, self._waking())

    def _waking(self) -> Iterator[None]:
        yield
        if self.is_open:
            self.wake_all()

    def _retire(self, state: Composite, numbers: Iterator[int], count: int, *, is_settled: bool) -> None:
        """Have an outcome applied to so many deliveries, at most, when a transaction is committed."""
        if count > AT_ONCE:
            self._do_in_turns(self._retire_in_turns(state, numbers, is_settled=is_settled))
            return
        try:
            self.transactions.retire(state.fields, list(numbers), is_settled=is_settled)
        except ConditionError as error:
            error.ends = Ends.SESSION
            raise

    def _retire_in_turns(self, state: Composite, numbers: Iterator[int], *, is_settled: bool) -> Iterator[None]:
        while self.is_open and (portion := list(islice(numbers, AT_ONCE))):
            present = [each for each in portion if each in self.unsettled]
            try:
                self.transactions.retire(state.fields, present, is_settled=is_settled)
            except ConditionError as error:
                self.fail_with(error)
                return
            yield

    def _settle_free_in_turns(
        self, numbers: Iterator[int], state: Composite | None, *, answers: bool
    ) -> Iterator[None]:
        """As `_settle_in_turns`, of those that are not retired in transactions."""
        free: list[int] = []
        while portion := list(islice(numbers, AT_ONCE)):
            free += self.transactions.free(portion, is_settled=not answers)
            yield
        yield from self._settle_in_turns(iter(free), state, answers=answers)

    def _settle_in_turns(self, numbers: Iterator[int], state: Composite | None, *, answers: bool) -> Iterator[None]:
        """As `_settle_any`, for many deliveries, as work in turns."""
        if state is not None and _is_release(state):
            settled: list[int] = []
            acquired = _changed(_acquired(self._popped(numbers, settled)), state)
            yield from release_in_turns(acquired, is_redelivered=_counts(state))
            for at in range(0, len(settled) if answers else 0, AT_ONCE):
                self.tell_settled(settled[at : at + AT_ONCE], state, None)
                yield
            self.have_settled()
            return
        at_once = AT_ONCE if state is not None and state.name == "accepted" else MOVED_AT_ONCE
        while self.is_open and (portion := list(islice(numbers, at_once))):
            self._settle_any([each for each in portion if each in self.unsettled], state, answers=answers)
            yield

    def _popped(self, numbers: Iterator[int], settled: list[int]) -> Iterator[Delivery]:
        """Remove and yield deliveries; adds their numbers to a list."""
        for number in numbers:
            if number in self.unsettled:
                settled.append(number)
                yield self.take(number)

    def take(self, number: int) -> Delivery:
        """Remove and return an unsettled delivery."""
        delivery = self.unsettled.pop(number)
        del delivery.link.unsettled[number]
        return delivery

    def _settle_any(self, numbers: list[int], state: Composite | None, *, answers: bool) -> None:
        """Settle deliveries with an outcome, or with those of their links for deliveries without one."""
        if state is not None and state.name in OUTCOMES:
            self._settle(numbers, state, answers=answers)
            return
        by_link: dict[OutgoingLink, list[int]] = {}
        for number in numbers:
            by_link.setdefault(self.unsettled[number].link, []).append(number)
        for link, of_link in by_link.items():
            self._settle(of_link, link.default, answers=False)

    def _number(self, delivery_id: int) -> int:
        """The number of a delivery."""
        return self.next_delivery + difference(delivery_id, self.next_delivery & MASK)

    def _settle(self, numbers: list[int], state: Composite, *, answers: bool) -> None:
        """Apply an outcome to unsettled deliveries.

        Args:
            numbers: theirs.
            state: the outcome.
            answers: whether the client waits for the broker to settle them.
        """
        if not numbers:
            return
        if has_foreign_annotations(state):
            for link in dict.fromkeys(self.unsettled[number].link for number in numbers):
                self.fail_link(link.handle, ConditionError(Condition.NOT_IMPLEMENTED, NO_ANNOTATIONS))
            return
        deliveries = [self.take(number) for number in numbers]
        acquired = list(_acquired(deliveries))
        done = partial(self.tell_settled, numbers if answers else [], state)
        self.apply(acquired, state, done)
        self.have_settled()

    def have_settled(self) -> None:
        """There are fewer unsettled deliveries: send again if only their number has prevented it."""
        if not self.can_send:
            self.wake_all()

    def apply(
        self, acquired: list[tuple[Queue, Entry]], state: Composite, done: Callable[[Exception | None], None]
    ) -> None:
        """Apply an outcome to messages; `done` is called when that is on the disk. Raises ModelError."""
        if state.fields.get("message_annotations"):
            acquired = list(_changed(acquired, state))
        if state.name == "accepted":
            self._when(accept(self.broker.tick, acquired, done), done)
        elif _is_release(state):
            release(acquired, is_redelivered=_counts(state))
            done(None)
        elif len(acquired) > MOVED_AT_ONCE:
            self._do_in_turns(reject_in_turns(self.broker, iter(acquired), done))
        else:
            self._when(reject(self.broker, acquired, done), done)

    def _when(self, settled: Settled, done: Callable[[Exception | None], None]) -> None:
        if settled is Settled.NOW:
            done(None)
        elif settled is Settled.SYNCED:
            self.broker.tick.when_synced(done)

    def tell_settled(self, numbers: list[int], state: Composite | None, error: Exception | None) -> None:
        """Settle deliveries whose outcome is on the disk; after an error the session ends."""
        self._tell_ranges(_runs(numbers), state, error)

    def _tell_ranges(self, ranges: Iterable[tuple[int, int]], state: Composite | None, error: Exception | None) -> None:
        """As `tell_settled`, for ranges of numbers, inclusive."""
        if error is not None:
            self.fail_with(error)
        if not self.is_open or error is not None:
            return
        for first, last in ranges:
            self._send(
                "disposition",
                role=_SENDER,
                first=first & MASK,
                last=None if first == last else last & MASK,
                settled=True,
                state=state,
            )

    def _do_in_turns(self, work: Iterator[None]) -> None:
        """Do work in turns, with the connection's input paused, so that later frames see its effect."""
        self.connection.pause()
        self.broker.tick.turns.do(self, self._guarded(work))

    def _guarded(self, work: Iterator[None]) -> Iterator[None]:
        try:
            yield from work
            yield  # also if there was nothing to do: to find that out takes long, and the next frame may ask again
        except ModelError as error:
            self.fail_with(error)
        finally:
            self.connection.unpause()

    # ---- end ----

    def shut(self) -> None:
        """Accept and send no more frames: the session is about to end."""
        self.is_open = self.can_send = False

    def suspend(self, link: IncomingLink | OutgoingLink) -> None:
        """Suspend a link of a session that was shut and has not ended yet, if it can be resumed."""
        if link.resumption is not None:
            self._leave(link, link.resumption, SESSION_END, is_suspended=True)

    def end(self, *, is_orderly: bool) -> None:
        """End the session: release what it holds. If that is orderly, its deliveries do not count as such."""
        self.shut()
        self.broker.events.emit(SessionEnded(), self)
        self.connection.streams.pop(self.channel, None)
        self._stream = None
        for each in self.links.values():
            if not isinstance(each, QueuelessLink):
                self.suspend(each)
            if isinstance(each, IncomingLink) and each.relay is not None:
                each.relay.close()
            elif isinstance(each, FetchLink):
                each.close()
        self._told.clear()
        if self._held is not None:
            self._held.drop()
            self._held = None
        self.transactions.end()
        links, self.links = list(self.links.values()), {}
        outgoing = [link for link in links if isinstance(link, OutgoingLink)]
        ending = self.connection.resumable.end_holder(self, self.connection.now())
        for queue in ending:
            queue.keepers -= 1
        owned, self.owned = [*self.owned, *ending], []
        turns = self.broker.tick.turns
        ending_count = len(owned) + sum(len(link.owned) + _ends_target(link) for link in links)
        if has_many(outgoing) or ending_count > DELETED_AT_ONCE:
            turns.do(self, self._drop_links(links, owned))
        else:
            for _ in self._drop_links(links, owned):
                pass
        count, unsettled, self.unsettled = self.unsettled_count, self.unsettled, {}
        held = _acquired(each for each in drained(unsettled) if not is_left_to_model(each))
        in_runs = ((run.queue, entry) for run in self.held_runs.take_all() for _, entry in run.singly())
        give_back(self, turns, count, chain(held, in_runs), is_redelivered=not is_orderly)

    def _drop_links(self, links: list[Link], owned: list[Queue]) -> Iterator[None]:
        """End links, and the queues that end with them: an auto-delete queue only once it has no consumer.

        Args:
            links: the links.
            owned: further queues that end.
        """
        left = DROPPED_AT_ONCE
        for link in links:
            if left <= 0:
                yield
                left = DROPPED_AT_ONCE
            if isinstance(link, OutgoingLink):
                ends_node = bool(link.owned) or link.queue.auto_delete
            else:
                ends_node = bool(link.owned) or _ends_target(link)
            left -= COST_OF_DELETION if ends_node else 1
            if isinstance(link, OutgoingLink):
                self._end_outgoing(link)
            self._leave_nodes(link, SESSION_END)
        for queue in owned:
            if left <= 0:
                yield
                left = DROPPED_AT_ONCE
            left -= COST_OF_DELETION
            self.disown(queue)


class Endings:
    """The deletions of nodes that a detach has begun.

    Attributes:
        count: how many are not done.
        done: called when all are.
    """

    __slots__ = ("count", "done")

    def __init__(self) -> None:
        self.count = 0
        self.done: Callable[[], None] | None = None

    def one(self, _error: ModelError | None) -> None:
        """One is done, or was logged as failed."""
        self.count -= 1
        if not self.count and self.done is not None:
            self.done()


class IncomingRun(NamedTuple):
    """What the messages of a run have in common.

    Attributes:
        session, link: on which they come.
        transfer: the fields of the first transfer.
        template: the message, but for its body.
        body_at, most: as in `Incoming`.
    """

    session: Session
    link: IncomingLink
    transfer: dict[str, Any]
    template: SectionMessage
    body_at: int
    most: int


class Offsets:
    """The delivery-ids of the client's messages, which are numbered as they are complete.

    Messages of several frames may be complete in another order than they have begun, and some never are.
    """

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: deque[tuple[int, int]] = deque()  # first number, and what to add for the delivery-id; ascending

    def add(self, number: int, delivery_id: int) -> None:
        """Add the next number."""
        offset = (delivery_id - number) & MASK
        if not self._runs or self._runs[-1][1] != offset:
            self._runs.append((number, offset))

    def forget(self, below: int) -> None:
        """Forget numbers below a number."""
        while len(self._runs) > 1 and self._runs[1][0] <= below:
            self._runs.popleft()

    def ids(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The runs of delivery-ids for consecutive numbers: first and last of each."""
        runs = self._runs
        for place, (begin, offset) in enumerate(runs):
            end = runs[place + 1][0] - 1 if place + 1 < len(runs) else last
            if begin <= last and first <= end:
                yield (max(first, begin) + offset) & MASK, (min(last, end) + offset) & MASK


_ACCEPTED: Final = Composite("accepted", {})


def _ends_target(link: Link) -> bool:
    """Whether the node that a client sends to may end with the link."""
    return isinstance(link, IncomingLink) and link.kept is not None


def _is_release(state: Composite) -> bool:
    """Whether an outcome makes messages available again."""
    return state.name == "released" or (state.name == "modified" and not state.fields.get("undeliverable_here"))


def _counts(state: Composite) -> bool:
    """Whether messages that an outcome makes available again count as delivered."""
    return state.name == "modified" and bool(state.fields.get("delivery_failed"))


def _acquired(deliveries: Iterable[Delivery]) -> Iterator[tuple[Queue, Entry]]:
    """The queues and entries of deliveries, except for those of browsers."""
    for each in deliveries:
        if each.link.acquires:
            yield each.link.queue, each.entry


def _changed(acquired: Iterable[tuple[Queue, Entry]], state: Composite) -> Iterator[tuple[Queue, Entry]]:
    """The queues and entries of messages, after the message-annotations of an outcome were set.

    A message whose annotations would be too long keeps its own.
    """
    given = state.fields.get("message_annotations") if state.name == "modified" else None
    changes = dict(neutral_map(given).entries) if given else {}
    for queue, entry in acquired:
        if changes:
            with contextlib.suppress(InvalidArgumentError):
                queue.change(entry, changes)
        yield queue, entry


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """The runs of ascending numbers."""
    first = last = -1
    for number in numbers:
        if last >= 0 and number == last + 1:
            last = number
            continue
        if last >= 0:
            yield first, last
        first = last = number
    if last >= 0:
        yield first, last
