"""The broker's side of a session: its state, and what it owns. What each command does to it is said in `commands`.

A command is completed at the end of the turn, or, if something was written for it, when that is on the disk (`ledger`).
One that takes time stops the connection until it is done (`run`), so that whatever comes after it finds what it has
made.

A message that was delivered is remembered by the number of its transfer until it is settled; what is not settled when
the session ends is available again, and marked as redelivered.

Whatever cannot be done ends the session: execution.exception says which command it was and why, and detach follows.

Source: AMQP 0-10.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol

from broker.log.logs import log_of
from broker.model.completion import Runs
from broker.model.errors import (
    IllegalArgumentError,
    InternalError,
    ModelError,
    NotFoundError,
    ResourceDeletedError,
    ResourceLimitExceededError,
    ResourceLockedError,
)
from broker.model.queues.entry import ACQUIRED, Entry
from broker.model.queues.queue import Queue
from broker.model.settlement import unsubscribe
from broker.model.turn import Output
from broker.protocols.amqp_0_10.deliveries import Deliveries
from broker.protocols.amqp_0_10.error_codes import code_of
from broker.protocols.amqp_0_10.sequence import wrap
from broker.protocols.amqp_0_10.session import State, shown_name
from broker.protocols.amqp_0_10.streaming import StreamingSession, StreamTransport
from broker.protocols.amqp_0_10.subscription import Subscription
from broker.protocols.amqp_0_10.transfer_reader import TransferReader

if TYPE_CHECKING:
    from broker.model.broker import Broker
    from broker.model.transactions.local import LocalTransaction

_LOG: Final = log_of("Protocol")

_FRAMES_OF_TRANSFER: Final = 512  # bytes of a frame that a header or body does not have: its head, with room to spare


MESSAGE_TRANSFER: Final = b"\x04\x01"
"""What the payload of message.transfer begins with."""


class SessionConnection(StreamTransport, Output, Protocol):
    """The connection that a session is attached to, as the session sees it.

    Attributes:
        peer: the client's address, for people.
        room: bytes that may be sent before others have their turn.
        can_send: whether the socket takes messages.
    """

    peer: str
    room: int
    can_send: bool

    @property
    def transfers(self) -> TransferReader:
        """Reads the messages that come."""

    def pause(self) -> None:
        """Keep what comes until `resume`."""

    def resume(self) -> None:
        """One pause less."""

    def run(self, work: Coroutine[Any, Any, None], done: Callable[[ModelError | None], None]) -> None:
        """Run what takes time, and call `done` with what went wrong."""

    def resume_message(self, resume_id: str) -> int:
        """The client goes on with a message. Returns how many bytes of its content are here."""

    def give_up(self, session: ServerSession) -> None:
        """Another connection wants the session."""

    def end_session(self, session: ServerSession) -> None:
        """A session has failed: give back what it holds, and ask the client to detach."""


class ServerSession(StreamingSession):
    """A session, as the broker has it.

    Args:
        name: its name.
        user: whose it is.
        broker: the model.

    Attributes:
        broker, user: as above.
        connection: what it is attached to.
        turn: the broker's.
        can_send: whether the connection takes messages; else those who wait for some are woken when it does.
        most_plain_bytes: a message as large as that fits one frame, header and body each.
        destinations: payload of a message.transfer -> where it goes to, of those that have come lately.
        exclusive_queues: the queues that are its own.
        subscriptions: destination -> subscription.
        deliveries: what it was sent.
        transaction: what it has done since the last commit; None if it is not transactional.
        txn_starts, txn_commits, txn_rejects: transactions that were begun, committed, and rolled back or refused. What
            is left is under way; or nobody knows what became of it, since the store has failed.
    """

    connection: SessionConnection

    __slots__ = (
        "__weakref__", "_flushes", "_plain_before", "_stopped", "_told", "broker", "can_send", "clock", "deliveries",
        "destinations", "exclusive_queues", "is_failed", "most_plain_bytes", "subscriptions", "transaction", "turn",
        "txn_commits", "txn_rejects", "txn_starts", "user",
    )  # fmt: skip

    def __init__(self, name: bytes, user: str, broker: Broker) -> None:
        super().__init__(name)
        self.broker, self.user = broker, user
        self.clock = broker.clock
        self.can_send = False
        self.most_plain_bytes = 0
        self.is_failed = False
        self.exclusive_queues: dict[Queue, None] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.turn = broker.turn
        self.destinations: dict[bytes, str] = {}
        self.deliveries = Deliveries()
        self.transaction: LocalTransaction | None = None
        self._flushes: list[tuple[int, Subscription]] = []
        self._stopped: list[SessionConnection] = []  # until a command that takes time is done
        self._told: tuple[int, int] = (-1, 0)
        self._plain_before = 0  # `sent` without `encoded`, when it was attached
        self.txn_starts = self.txn_commits = self.txn_rejects = 0

    # ---- attached to a connection ----

    def attach_to(self, connection: SessionConnection, channel: int) -> None:
        """A connection has it."""
        self.connection = connection
        self._plain_before = self.sent - self.encoded
        self.reattach(channel, connection)
        if self._stopped:
            connection.pause()
            self._stopped.append(connection)
        self.most_plain_bytes = connection.max_frame - _FRAMES_OF_TRANSFER
        self.can_send = connection.can_send
        for subscription in self.subscriptions.values():
            subscription.forget_heads()

    def attached(self) -> None:
        """As `Session.attached`; and what was waiting for a connection goes on."""
        super().attached()
        self._told = (-1, 0)  # what is completed is told again
        self.turn.workers[self] = None
        self.wake_all()

    def detached(self) -> None:
        """The connection has it no more."""
        super().detached()
        self.can_send = False

    def wake_all(self) -> None:
        """The connection takes messages again."""
        is_attached = self.transport is not None and not self.is_failed
        self.can_send = is_attached and not self.is_streaming and self.connection.can_send
        if self.can_send:
            for subscription in list(self.subscriptions.values()):
                subscription.wake()  # which may find that its queue is gone, and end the session
            if self._flushes:
                self._go_on_flushing()

    @property
    def plain_transfers(self) -> int:
        """Messages that were put into the output of this connection as they are, in three frames each."""
        return self.sent - self.encoded - self._plain_before

    @property
    def unsettled_count(self) -> int:
        """Messages that the client has, and has not settled."""
        return len(self.deliveries.unsettled)

    @property
    def remote_host(self) -> str:
        """Address and port of the client that has it, or had it last."""
        return self.connection.peer

    @property
    def publisher(self) -> object:
        """What messages that come over its connection, the last one that it had, are known by."""
        return self.connection.transfers.publisher

    def grant_timeout(self, seconds: int) -> int:
        """How long it may be kept when it is detached."""
        return min(seconds, self.broker.settings.session_timeout_max_seconds)

    # ---- what comes ----

    def on_control(self, name: str, values: dict[str, Any]) -> None:
        """As `Session.on_control`; one that counts commands says nothing when those of a failed session are dropped."""
        if not (self.is_failed and name in _COUNTING):
            super().on_control(name, values)

    def run(self, number: int, payload: bytes, work: Coroutine[Any, Any, None]) -> None:
        """Do what takes time, with the connection stopped; the command is completed when it is done."""
        self.ledger.postpone(number)
        connection = self.connection
        connection.pause()
        self._stopped.append(connection)

        def done(error: ModelError | None) -> None:
            if error is None:
                self.completed_later(number)
            else:
                self.fail_command(number, payload, error)
            stopped, self._stopped = self._stopped, []
            for each in stopped:  # others may have taken the session over meanwhile, one from another
                each.resume()

        connection.run(work, done)

    def completed_later(self, number: int) -> None:
        """A command that was postponed is done."""
        self.ledger.release([[number, number]])
        self.turn.workers[self] = None
        self.turn.schedule()

    def send_result(self, number: int, result: bytes) -> None:
        """Send the result of a command."""
        self.send("execution.result", command_id=wrap(number), value=result)

    def too_large(self) -> None:
        """A message was larger than may be, and was dropped."""
        most = self.broker.settings.max_message_bytes
        error = ResourceLimitExceededError(f"a message is larger than {most} bytes")
        self.fail_command(self.received, MESSAGE_TRANSFER, error)

    def stream_began(self) -> None:
        """A command goes out in portions: no message goes out before it has."""
        self.can_send = False

    def stream_ended(self) -> None:
        """It is out."""
        super().stream_ended()
        self.turn.workers[self] = None  # what was completed meanwhile is told
        self.wake_all()

    # ---- deliveries ----

    def delivered(self, number: int, subscription: Subscription, entry: Entry, size: int) -> None:
        """A message was sent."""
        connection = self.connection
        connection.room -= size
        self.turn.outputs[connection] = None
        self.deliveries.add(number, subscription, entry, size)
        if subscription.acquires and not subscription.is_accepting:
            try:
                subscription.queue.dequeue(entry)
            except ModelError as error:
                self.fail_command(self.received, b"", error)

    def on_peer_completed_ranges(self, ranges: list[tuple[int, int]]) -> None:
        """The client has completed transfers."""
        self.deliveries.completed(ranges)

    # ---- queues and subscriptions ----

    def find_queue(self, name: str | None) -> Queue:
        """The queue of that name, if this session may use it.

        Raises:
            IllegalArgumentError: no name is given; NotFoundError, ResourceLockedError.
        """
        if not name:
            raise IllegalArgumentError("No queue name is given")
        queue = self.broker.queues.get(name)
        if queue is None:
            raise NotFoundError(f"Queue not found: {name}")
        if queue.owner is not None and queue.owner is not self:
            raise ResourceLockedError(f"Cannot grant exclusive access to queue {name}")
        return queue

    def drop_subscription(self, subscription: Subscription) -> None:
        """A subscription is over; what it has delivered stays unsettled."""
        del self.subscriptions[subscription.destination]
        subscription.cancel()
        if self._flushes:
            self._go_on_flushing()
        queue = subscription.queue
        unsubscribe(self.broker, self, queue, subscription, subscription.destination)
        if not queue.is_deleted:
            self._leave(queue)

    def _leave(self, queue: Queue) -> None:
        """A queue has lost a consumer or its owner: if it is auto-delete, and nobody is left, it goes, now or later."""
        if not queue.auto_delete or not queue.is_unused or queue.is_deleted:
            return
        if queue.auto_delete_seconds:
            self.broker.idle_queues.begin(queue)
        else:
            self.connection.run(self.broker.wiring.delete_if_unused(queue), _ignore)

    def flush(self, number: int, subscription: Subscription) -> None:
        """Send what a subscription has credit for, and take the rest of its credit.

        If the connection does not take all of it now, the command is completed when it has.
        """
        self._flushes.append((number, subscription))
        if self._go_on_flushing():
            self.ledger.postpone(number)

    def _go_on_flushing(self) -> bool:
        """Send for all subscriptions that are being flushed. Whether the last one has to go on later."""
        left: list[tuple[int, Subscription]] = []
        flushes, self._flushes = self._flushes, left
        for number, subscription in flushes:
            if not subscription.queue.is_deleted:
                subscription.queue.dispatch()
            if subscription.is_blocked:
                left.append((number, subscription))
            else:
                subscription.stop()
                self.completed_later(number)
        return bool(left) and left[-1] == flushes[-1]

    def subscription_lost(self, subscription: Subscription) -> None:
        """The queue of a subscription was deleted."""
        self.subscriptions.pop(subscription.destination, None)
        if not self.is_failed and self.state is State.ATTACHED:
            name = subscription.queue.name
            self._send_exception(None, b"", ResourceDeletedError(f"Queue {name} has been deleted."))

    # ---- completion ----

    def tell_completed(self) -> None:
        """Tell the client what is completed, if that is news, and when all that was sent before is out."""
        if self.transport is not None and self.state is State.ATTACHED and not self.is_streaming:
            self._tell_completed()

    def _tell_completed(self) -> None:
        completed = self.completed
        ranges = completed.ranges()
        told = (self.ledger.done.below, len(ranges))
        if ranges and (told != self._told or len(ranges) > 1):
            self._told = told
            self.send_completed()

    def release(self, runs: Runs) -> None:
        """What was written for these commands is on the disk."""
        self.ledger.release(runs)

    def fail(self, runs: Runs, error: Exception) -> None:
        """What was written for these commands will never be on the disk."""
        model_error = error if isinstance(error, ModelError) else InternalError(str(error))
        self.fail_command(runs[0][0] if runs else self.received, b"", model_error)

    # ---- the end ----

    def fail_command(self, number: int, payload: bytes, error: ModelError) -> None:
        """A command cannot be done: the session ends."""
        if self.is_failed:
            return
        _LOG.info('Session "%s" of %s: %s', shown_name(self.name), self.user, error)
        self._send_exception(number, payload, error)

    def _send_exception(self, number: int | None, payload: bytes, error: ModelError) -> None:
        self.is_failed = True
        if self.transport is not None and self.state is State.ATTACHED:
            if number is not None:
                self.ledger.postpone(number)
            self.settle()
            self._tell_completed()
            self.send(
                "execution.exception",
                error_code=code_of(error),
                command_id=None if number is None else wrap(number),
                class_code=payload[0] if payload else None,
                command_code=payload[1] if len(payload) > 1 else None,
                description=str(error)[:4096],
            )
            self.connection.end_session(self)

    def end(self) -> None:
        """The session is over: give back what it holds."""
        self.is_failed = True
        self.can_send = False
        self.txn_rejects += self.transaction is not None
        self.transaction = None
        for subscription in list(self.subscriptions.values()):
            self.drop_subscription(subscription)
        for subscription, entry in self.deliveries.take_all():
            if not subscription.queue.is_deleted and entry.state == ACQUIRED:
                subscription.queue.release(entry, is_redelivered=True)
        owned, self.exclusive_queues = list(self.exclusive_queues), {}
        for queue in owned:
            self._disown(queue)

    def owns(self, queue: Queue) -> None:
        """A queue was made the session's own, which may be over by now."""
        if self.is_failed:
            self._disown(queue)
        else:
            self.exclusive_queues[queue] = None

    def _disown(self, queue: Queue) -> None:
        if queue.owner is self:
            queue.owner = None
        self._leave(queue)


def _ignore(_error: ModelError | None) -> None:
    """Nobody waits for this."""


_COUNTING: Final = frozenset(("session.command-point", "session.gap"))
