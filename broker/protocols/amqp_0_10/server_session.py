"""The broker's side of a session: its state, and the objects it owns. `commands` has the effect of each command.

A command is completed at the end of the tick or, if it has written records, when those are on the disk (`ledger`). A
message.transfer also waits for the queues that flow control has stopped (`hold_transfer`). A command that takes time
pauses the connection's input until it is done (`run`), so that later commands see its effect.

A delivery is recorded under the number of its transfer until it is settled; when the session ends, unsettled messages
are available again, and marked as redelivered.

Commands that are too large to be added to a connection's output at once are sent as a stream: their frames are built
when the socket accepts them, a portion in each tick, straight from the pieces of the content. While a session has such
a stream, its other commands wait until the stream was sent. So do controls whose position among the commands is
significant: gap counts on from the last command; completed implies that a result, or the messages of flush or stop,
were sent before it; and no command may follow detach. Other controls, and the other sessions of the connection, do not
wait.

A command that fails ends the session: execution.exception reports the command and the reason, and detach follows.

Source: AMQP 0-10; transport (assemblies: frames of different channels, and of the tracks of one, may alternate).
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.log.logs import log_of
from qstore.broker.model import errors
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.completion import Runs
from qstore.broker.model.errors import (
    IllegalArgumentError,
    InternalError,
    ModelError,
    NotFoundError,
    ResourceDeletedError,
    ResourceLimitExceededError,
    ResourceLockedError,
)
from qstore.broker.model.message import Content
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.run import RunEntry
from qstore.broker.model.settlement import unsubscribe
from qstore.broker.model.topology.deletion import DELETED_AT_ONCE
from qstore.broker.protocols.amqp_0_10.assembly import content_frames
from qstore.broker.protocols.amqp_0_10.session import Session, State, shown_name, wrap, wrap_ranges
from qstore.broker.protocols.amqp_0_10.subscription import UNLIMITED, Deliveries, Subscription
from qstore.broker.protocols.broker_connection import ignore_error
from qstore.broker.protocols.consumer import first_portion, give_back, has_many
from qstore.broker.protocols.machine import ManagedLink, SessionAction, SessionModes
from qstore.broker.protocols.output import COST_OF_MESSAGE, Stream, is_large
from qstore.broker.protocols.publishing import HeldMessages, SessionRate
from qstore.formats.amqp_0_10.codes import CreditUnit, DetachCode, ErrorCode, FlowMode
from qstore.formats.amqp_0_10.frames import encode_command_frames, encode_control_frame

if TYPE_CHECKING:
    from qstore.broker.model.broker import Broker
    from qstore.broker.model.tick import Portion
    from qstore.broker.model.transactions.local import LocalTransaction
    from qstore.broker.model.virtual_host import VirtualHost
    from qstore.broker.protocols.amqp_0_10.server_connection import ServerConnection
    from qstore.broker.protocols.amqp_0_10.transactions import SessionBranches


_CODES: Final[dict[type[errors.ModelError], ErrorCode]] = {
    errors.UnauthorizedError: ErrorCode.UNAUTHORIZED_ACCESS,
    errors.NotFoundError: ErrorCode.NOT_FOUND,
    errors.ResourceLockedError: ErrorCode.RESOURCE_LOCKED,
    errors.PreconditionFailedError: ErrorCode.PRECONDITION_FAILED,
    errors.ResourceDeletedError: ErrorCode.RESOURCE_DELETED,
    errors.IllegalStateError: ErrorCode.ILLEGAL_STATE,
    errors.CommandInvalidError: ErrorCode.COMMAND_INVALID,
    errors.ResourceLimitExceededError: ErrorCode.RESOURCE_LIMIT_EXCEEDED,
    errors.QueueOverflowError: ErrorCode.RESOURCE_LIMIT_EXCEEDED,
    errors.RoutingLimitError: ErrorCode.RESOURCE_LIMIT_EXCEEDED,
    errors.NotAllowedError: ErrorCode.NOT_ALLOWED,
    errors.IllegalArgumentError: ErrorCode.ILLEGAL_ARGUMENT,
    errors.NotImplementedByBrokerError: ErrorCode.NOT_IMPLEMENTED,
    errors.InternalError: ErrorCode.INTERNAL_ERROR,
    errors.InvalidArgumentError: ErrorCode.INVALID_ARGUMENT,
    errors.HeaderTooLargeError: ErrorCode.INVALID_ARGUMENT,
}


def code_of(error: errors.ModelError) -> ErrorCode:
    """The code of an error."""
    return _CODES[type(error)]


#: Controls whose position among the commands is significant.
_IN_ORDER: Final = frozenset(("session.completed", "session.detach", "session.gap"))


_LOG: Final = log_of("Protocol")

_FRAMES_OF_TRANSFER: Final = 512  # bytes reserved for the frame headers of a message, with some to spare


MESSAGE_TRANSFER: Final = b"\x04\x01"
"""The first bytes of a message.transfer's payload: class and code."""


class ServerSession(Session):
    """A session on the broker's side.

    Args:
        name: its name.
        user: its user.
        broker: the model.
        host: its virtual host.

    Attributes:
        broker, user: as above.
        virtual_host: its virtual host, which does not change when it is attached again.
        connection: the connection that it is, or was last, attached to.
        can_send: whether the connection accepts messages; subscriptions are woken when it does again.
        is_failed: whether the session has ended.
        max_plain_bytes: the size up to which header and body each fit one frame.
        clock: seconds since 1970.
        tick: the broker's.
        destinations: cache: payload of a message.transfer -> its destination.
        exclusive_queues: queues exclusive to it.
        subscriptions: destination -> subscription.
        deliveries: its deliveries.
        transaction: the open local transaction that publishes and accepts belong to; None if they take effect at once.
        branches: its branches of distributed transactions; None unless selected for these.
        accept_batch: how many commands of another broker are accepted together, sooner if no more are under way; 0 for
            clients, which expect completions only.
        is_committing: a commit waits for the disk: completions are reported together with its own.
        awaited: the last transfer held for the disk whose sender waits for its completion; -1 for none.
        rate: limits how fast it may publish; None for no limit.
        is_flow_stopped: whether message.stop has taken away the credit of all its subscriptions.
        txn_starts, txn_commits, txn_rejects: transactions begun, committed, and rolled back or refused. The rest are
            under way, or their outcome is unknown because the store has failed.
    """

    __slots__ = (
        "__weakref__", "_accepted", "_announced", "_flushes", "_held_messages", "_paused", "_plain_before", "_reported",
        "_stream", "_unfinished_flushes", "accept_batch", "awaited", "branches", "broker", "can_send", "clock",
        "connection", "deliveries", "destinations", "exclusive_queues", "is_committing", "is_failed",
        "is_flow_stopped", "max_plain_bytes", "rate", "subscriptions", "tick", "transaction",
        "txn_commits", "txn_rejects", "txn_starts", "user", "virtual_host",
    )  # fmt: skip

    connection: ServerConnection

    def __init__(self, name: bytes, user: str, broker: Broker, host: VirtualHost) -> None:
        super().__init__(name, 0, None)
        self.broker, self.virtual_host, self.user, self.clock = broker, host, user, broker.clock
        self.can_send = self.is_failed = False
        self.max_plain_bytes = 0
        self._stream: Stream | None = None
        self.exclusive_queues: dict[Queue, None] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.tick = broker.tick
        self.destinations: dict[bytes, str] = {}
        self.deliveries = Deliveries()
        self.transaction: LocalTransaction | None = None
        self.branches: SessionBranches | None = None
        self._flushes: list[tuple[int, Subscription]] = []
        self._unfinished_flushes: list[tuple[int, Subscription]] = []  # for unfinished queues (`Queue.is_unfinished`)
        self._held_messages: HeldMessages | None = None
        self._paused: list[ServerConnection] = []  # connections paused until a command in `run` is done
        self._reported = -1  # all below it are reported, and none above it is completed
        self._plain_before = 0  # `sent` minus `encoded`, when it was attached
        self._announced: dict[tuple[str, str, str], None] = {}
        self.awaited = -1
        self.accept_batch = self._accepted = 0
        self.is_committing = self.is_flow_stopped = False
        self.rate: SessionRate | None = None
        self.txn_starts = self.txn_commits = self.txn_rejects = 0

    # ---- attached to a connection ----

    def attach_to(self, connection: ServerConnection, channel: int) -> None:
        """Attach the session to a connection."""
        self.connection = connection
        self._plain_before = self.sent - self.encoded
        self.reattach(channel, connection)
        if self._paused:
            connection.pause()
            self._paused.append(connection)
        self.max_plain_bytes = connection.max_frame - _FRAMES_OF_TRANSFER
        self.can_send = connection.can_send
        connection.limit_rate()
        if self.rate is None:
            self.rate = connection.new_rate()
        for subscription in self.subscriptions.values():
            subscription.forget_heads()

    def attached(self) -> None:
        """As `Session.attached`; also continue what has waited for a connection."""
        super().attached()
        self._reported = -1  # report all completions again
        self.tick.workers[self] = None
        if self.rate is not None and self.connection.obeys_flow:
            self.send("message.set-flow-mode", destination="", flow_mode=FlowMode.CREDIT)
            self.rate.begin_credit(self._give_credit)
        self.wake_all()

    def _give_credit(self, count: int) -> None:
        """Let the client publish so many messages more."""
        if not self.is_failed:
            self.send("message.flow", destination="", unit=CreditUnit.MESSAGE, value=count)

    def detached(self) -> None:
        """The session is detached from its connection; the rest of a stream is discarded."""
        super().detached()
        if self.rate is not None:
            self.rate.end_credit()
        self._stream = None
        self.can_send = False

    def wake_all(self) -> None:
        """The connection accepts messages again."""
        is_attached = self.transport is not None and not self.is_failed
        self.can_send = is_attached and self._stream is None and self.connection.can_send
        if self.can_send:
            for subscription in list(self.subscriptions.values()):
                subscription.wake()  # ends the session if the queue was deleted
            if self._flushes:
                self._continue_flushing()

    @property
    def plain_transfers(self) -> int:
        """Messages put directly into the output of this connection, in three frames each."""
        return self.sent - self.encoded - self._plain_before

    @property
    def unsettled_count(self) -> int:
        """Messages acquired by the client and not settled."""
        return self.deliveries.count

    @property
    def credit(self) -> int:
        """As `ManagedSession.credit`."""
        return min(UNLIMITED, sum(each.message_credit for each in self.subscriptions.values()))

    @property
    def outstanding_commands(self) -> int:
        """As `ManagedSession.outstanding_commands`."""
        return self.received - self.ledger.done.count_below(self.received)

    @property
    def modes(self) -> SessionModes:
        """As `ManagedSession.modes`: the client learns of each command that it is completed."""
        works = [] if self.branches is None else [each.work for each in self.branches.branches]
        if self.transaction is not None:
            works.append(self.transaction)
        return SessionModes(
            confirms=True,
            is_transactional=self.transaction is not None or self.branches is not None,
            prefetch=0,
            shared_prefetch=0,
            published=sum(len(each.messages) for each in works),
            settled=sum(len(each.accepted) for each in works),
        )

    @property
    def remote_host(self) -> str:
        """Address and port of the client that it is, or was last, attached to."""
        return self.connection.peer

    @property
    def actor(self) -> str:
        """As `Caller.actor`: the connection that it is, or was last, attached to, and its channel there."""
        return f"{self.connection.actor}/ch:{self.channel}"

    @property
    def vhost(self) -> str:
        """As `Caller.vhost`."""
        return self.virtual_host.name

    @property
    def publisher(self) -> object:
        """Identifies messages published over its current or last connection."""
        return self.connection.transfers.publisher

    def grant_timeout(self, seconds: int) -> int:
        """The timeout to grant, in seconds that it is kept while detached."""
        return min(seconds, self.broker.settings.session_timeout_max_seconds)

    # ---- input ----

    def on_control(self, name: str, values: dict[str, Any]) -> None:
        """As `Session.on_control`; a failed session ignores controls that count commands, because it drops commands."""
        if not (self.is_failed and name in _COUNTING):
            super().on_control(name, values)
            if name == "session.command-point":
                self._accepted = self.received

    def run(self, number: int, payload: bytes, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine with the connection's input paused; the command is completed when it is done."""
        self.ledger.postpone(number)
        connection = self.connection

        connection.pause()
        self._paused.append(connection)

        def done(error: ModelError | None) -> None:
            if error is None:
                self.completed_later(number)
            else:
                self.fail_command(number, payload, error)
            self._resume_paused()

        connection.run(work, done)

    def do_in_turns(self, number: int, work: Iterator[Portion], payload: bytes = b"") -> None:
        """Do a command's work in turns, with the connection's input paused, so that later commands see its effect.

        The command is postponed, and the work completes it.
        """
        self.ledger.postpone(number)
        if not self.tick.turns.do(self, self._guarded(number, work, payload)):
            self.connection.pause()
            self._paused.append(self.connection)

    def wait_for(self, owner: object) -> None:
        """Pause the connection's input until the owner's work in turns is done."""
        turns = self.tick.turns
        if turns.has(owner):
            self.connection.pause()
            self._paused.append(self.connection)
            turns.after(owner, self._resume_paused)

    def _guarded(self, number: int, work: Iterator[Portion], payload: bytes) -> Iterator[Portion]:
        try:
            yield from work
        except ModelError as error:
            self.fail_command(number, payload, error)
        finally:
            self._resume_paused()

    def _resume_paused(self) -> None:
        paused, self._paused = self._paused, []
        for each in paused:  # several if other connections took the session over meanwhile
            each.unpause()

    def completed_later(self, number: int) -> None:
        """Complete a postponed command."""
        self.ledger.complete([[number, number]])
        self.tick.workers[self] = None
        self.tick.schedule()

    def hold_transfer(self, number: int, *, is_stored: bool) -> None:
        """Hold a message.transfer until its records are on the disk and no stopped queue holds it.

        If it is put on many queues in turns, the connection's input is paused meanwhile.

        Args:
            number: its command number.
            is_stored: whether it may have written records.
        """
        router = self.broker.router
        if not router.stops and router.fanout is None:
            self.ledger.hold(number)
            return
        if self._held_messages is None:
            self._held_messages = HeldMessages(self.broker, self.ledger, self.wait_for, self._transfer_done, self)
        self._held_messages.hold(number, is_stored=is_stored)

    def _transfer_done(self, number: int, error: Exception | None) -> None:
        if self.is_failed:
            return
        if error is not None:
            self.fail([[number, number]], error)
        else:
            self.completed_later(number)

    def send_result(self, number: int, result: bytes) -> None:
        """Send the result of a command."""
        self.send("execution.result", command_id=wrap(number), value=result)

    def too_large(self) -> None:
        """End the session: a message exceeded the limit, and was discarded."""
        limit = self.broker.settings.max_message_bytes
        error = ResourceLimitExceededError(f"the message is larger than {limit} bytes")
        self.fail_command(self.received, MESSAGE_TRANSFER, error)

    def stalled(self) -> None:
        """End the session: the sender of a message has stalled, and the received part was discarded."""
        error = ResourceLimitExceededError("the sender of an incomplete message has stalled")
        self.fail_command(self.received, MESSAGE_TRANSFER, error)

    # ---- large commands ----

    def _write(self, payload: bytes, header: bytes | None, body: Content | None) -> None:
        if self._stream is None and not is_large(body):
            super()._write(payload, header, body)
            return
        connection = self.connection
        connection.messages_sent += header is not None
        if self._stream is None:
            self._stream = connection.streams[self.channel] = Stream()
            self.can_send = False  # no message is sent before its end
        if body:
            self._stream.add(content_frames(self.channel, payload, header, body, connection.max_frame))
        else:
            empty = None if body is None else b""
            frames = encode_command_frames(self.channel, payload, header, empty, connection.max_frame)
            self._stream.add(zip(frames))
        connection.has_output()

    def send_encoded_control(self, control: str, payload: bytes) -> None:
        """As `Session.send_encoded_control`; a control whose position is significant waits for the stream."""
        if self._stream is None or control not in _IN_ORDER:
            super().send_encoded_control(control, payload)
        else:
            self._stream.add([(encode_control_frame(self.channel, payload),)])

    def stream_ended(self) -> None:
        """Continue after the stream: all of it was sent."""
        self._stream = None
        self.tick.workers[self] = None  # to report completions that had to wait
        self.wake_all()

    # ---- deliveries ----

    def delivered(self, number: int, subscription: Subscription, entry: Entry, size: int) -> None:
        """Record a delivery."""
        connection = self.connection
        connection.room -= size + COST_OF_MESSAGE
        self.tick.outputs[connection] = None
        self.deliveries.add(number, subscription, entry, size)
        if subscription.acquires and not subscription.is_accepting:
            try:
                subscription.queue.dequeue(entry)
            except ModelError as error:
                self.fail_command(self.received, b"", error)

    def delivered_run(self, number: int, subscription: Subscription, run: RunEntry, size: int) -> None:
        """Record the delivery of a run, from that number on, with messages of at most `size` bytes."""
        connection = self.connection
        connection.room -= run.size + COST_OF_MESSAGE * run.count
        self.tick.outputs[connection] = None
        self.deliveries.add_run(number, subscription, run, size)
        if not subscription.is_accepting:
            try:
                subscription.queue.dequeue_run(run, run.count)
            except ModelError as error:
                self.fail_command(self.received, b"", error)

    def on_peer_completed_ranges(self, ranges: list[tuple[int, int]]) -> None:
        """The client has completed transfers."""
        self.deliveries.completed(ranges)

    def on_exception(self, values: Mapping[str, Any]) -> None:
        """The peer reports that a command has failed. A client's broker sends none that can fail (`LinkSession`)."""

    # ---- queues and subscriptions ----

    def find_queue(self, name: str | None, action: Action, *, is_browsed: bool = False) -> Queue:
        """The queue with that name, if this session may use it.

        Any session may browse an exclusive queue, as in qpidd, but not one that is private to a connection of AMQP
        0-9-1.

        Before a refusal this checks whether the user may do `action`: an unauthorized user does not learn the reason.
        Raises IllegalArgumentError, UnauthorizedError, NotFoundError or ResourceLockedError.
        """
        if not name:
            raise IllegalArgumentError("No queue name is given")
        queue = self.virtual_host.queues.get(name)
        if queue is not None and (queue.owner in (None, self) or (is_browsed and not queue.is_private)):
            return queue
        self.broker.authorization.check(self, action, ObjectType.QUEUE, name)
        if queue is None:
            raise NotFoundError(f"Queue not found: {name}")
        raise ResourceLockedError(f"Cannot grant exclusive access to queue {name}")

    def drop_subscription(self, subscription: Subscription) -> None:
        """End a subscription; its deliveries stay unsettled."""
        del self.subscriptions[subscription.destination]
        subscription.cancel()
        if self._flushes:
            self._continue_flushing()
        queue = subscription.queue
        unsubscribe(self.virtual_host, self, queue, subscription, subscription.destination)
        if not queue.is_deleted:
            self.connection.leave(queue)

    def flush(self, number: int, subscription: Subscription) -> None:
        """Deliver as many messages as a subscription has credit for, and take away the rest of its credit.

        If the connection cannot accept all of it now, or the queue is unfinished, the command is completed later.
        """
        self._flushes.append((number, subscription))
        if self._continue_flushing():
            self.ledger.postpone(number)

    def _continue_flushing(self) -> bool:
        """Deliver for all subscriptions that are being flushed. Returns whether the last one must continue later."""
        left: list[tuple[int, Subscription]] = []
        flushes, self._flushes = self._flushes, left
        for number, subscription in flushes:
            if not subscription.queue.is_deleted:
                subscription.queue.dispatch()
            if subscription.is_blocked:
                left.append((number, subscription))
            elif subscription.has_credit and subscription.queue.is_unfinished:
                self._unfinished_flushes.append((number, subscription))
                self.tick.workers[self] = None
            else:
                subscription.stop()
                self.completed_later(number)
        last = flushes[-1:]
        return last in (left[-1:], self._unfinished_flushes[-1:])

    def _complete_flushes(self) -> None:
        """Complete flushes that are finished, after the tick has dispatched their queues."""
        flushes, self._unfinished_flushes = self._unfinished_flushes, []
        for number, subscription in flushes:
            if self.is_failed:
                continue
            if subscription.is_blocked:
                self._flushes.append((number, subscription))
            elif subscription.has_credit and subscription.queue.is_unfinished:
                self._unfinished_flushes.append((number, subscription))
                self.tick.workers[self] = None
            else:
                subscription.stop()
                self.completed_later(number)

    def subscription_lost(self, subscription: Subscription) -> None:
        """End the session: the queue of a subscription was deleted."""
        if self.subscriptions.pop(subscription.destination, None) is not None:
            unsubscribe(self.virtual_host, self, subscription.queue, subscription, subscription.destination)
        if not self.is_failed and self.state is State.ATTACHED:
            name = subscription.queue.name
            self._send_exception(None, b"", ResourceDeletedError(f"Queue {name} has been deleted."))

    @property
    def attached_links(self) -> tuple[ManagedLink, ...]:
        """As `ManagedSession.attached_links`: none."""
        return ()

    def close_subscription(self, destination: str) -> None:
        """As `ManagedSession.close_subscription`: the protocol can tell a client of it only by ending the session."""
        subscription = self.subscriptions.get(destination)
        if subscription is None:
            return
        text = f"Subscription {destination} was closed by management."
        self.subscription_failed(subscription, ResourceDeletedError(text))

    def subscription_failed(self, subscription: Subscription, error: Exception) -> None:
        """End a subscription, and with it the session: the protocol has no other way to tell the client."""
        self.drop_subscription(subscription)
        if not self.is_failed and self.state is State.ATTACHED:
            assert isinstance(error, ModelError)
            self._send_exception(None, b"", error)

    # ---- completion ----

    @property
    def is_in_step(self) -> bool:
        """Whether the client waits for the completion of what it has sent."""
        return self.awaited >= 0

    def report_completed(self) -> None:
        """Report completions to the client if there are new ones, after the end of a stream."""
        if self._unfinished_flushes:
            self._complete_flushes()
        if self.transport is not None and self.state is State.ATTACHED and self._stream is None:
            self._report_completed()

    def _report_completed(self) -> None:
        if self.is_committing:
            return
        if self.accept_batch:
            self._accept()
        done = self.ledger.done
        if done.below != self._reported or done.beyond:
            self._reported = -1 if done.beyond else done.below
            self.send_completed()

    def _accept(self) -> None:
        below = self.ledger.done.below
        count = below - self._accepted
        if count >= self.accept_batch or (count > 0 and below >= self.received):
            self.send("message.accept", transfers=wrap_ranges([(self._accepted, below - 1)]))
            self._accepted = below

    def complete(self, runs: Runs) -> None:
        """Complete commands whose records are on the disk."""
        self.ledger.complete(runs)
        if 0 <= self.awaited < self.ledger.done.below:
            self.awaited = -1
            self.tick.awaited[self] = None

    def fail(self, runs: Runs, error: Exception) -> None:
        """End the session: the records of these commands could not be written."""
        model_error = error if isinstance(error, ModelError) else InternalError(str(error))
        self.fail_command(runs[0][0] if runs else self.received, b"", model_error)

    # ---- routes of other brokers ----

    def announced(self, queue: str, exchange: str, key: str) -> None:
        """Another broker's dynamic route has bound a queue: the binding ends with the session.

        That of a durable queue stays, as the queue does, until the route is there again.
        """
        found = self.virtual_host.queues.get(queue)
        if found is not None and not found.durable:
            self._announced[queue, exchange, key] = None

    async def _withdraw(self, bindings: Iterable[tuple[str, str, str]]) -> None:
        host = self.virtual_host
        for queue, exchange, key in bindings:
            found, bound_to = host.queues.get(queue), host.exchanges.get(exchange)
            if found is not None and bound_to is not None and bound_to.find_binding(found, key) is not None:
                await host.topology.unbind(queue, exchange, key)

    # ---- failure and end ----

    def manage(self, action: SessionAction) -> None:
        """Execute a request of management: end it, detach it, or ask the client what it has completed."""
        if self.state is not State.ATTACHED:
            return
        if action is SessionAction.CLOSE:
            self.fail([], ResourceDeletedError("closed by management"))
        elif action is SessionAction.DETACH:
            self.connection.hand_over(self, DetachCode.NORMAL)
        else:
            self.send_control("session.flush", expected=False, confirmed=False, completed=True)

    def fail_command(self, number: int, payload: bytes, error: ModelError) -> None:
        """End the session: a command failed."""
        if self.is_failed:
            return
        _LOG.info('Session "%s" of %s: %s', shown_name(self.name), self.user, error)
        self._send_exception(number, payload, error)

    def _send_exception(self, number: int | None, payload: bytes, error: ModelError) -> None:
        self.is_failed = True
        if self.transport is not None and self.state is State.ATTACHED:
            if number is not None:
                self.ledger.postpone(number)
            self.complete_received()
            self._report_completed()
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
        """End the session: release what it holds."""
        self.is_failed = True
        self.can_send = False
        if self.rate is not None:
            self.rate.end_credit()
        if self.branches is not None:
            self.branches.close()
        elif self.transaction is not None:
            self.txn_rejects += 1
            self.broker.end_transaction(self.transaction)
            self.transaction.count_end(is_committed=False)
        self.transaction = None
        if self._held_messages is not None:
            self._held_messages.drop()
            self._held_messages = None
        turns = self.tick.turns
        is_large = has_many(self.subscriptions.values()) or len(self.exclusive_queues) > DELETED_AT_ONCE
        if is_large:
            turns.do(self, self._drop_subscriptions())
        else:
            for subscription in list(self.subscriptions.values()):
                self.drop_subscription(subscription)
        if self._announced:
            announced, self._announced = list(self._announced), {}
            self.connection.run(self._withdraw(announced), ignore_error)
        give_back(self, turns, self.deliveries.count, self.deliveries.take_all())
        owned, self.exclusive_queues = list(self.exclusive_queues), {}
        if is_large:
            turns.do(self, self._disown_in_turns(owned))
        else:
            for queue in owned:
                self._disown(queue)

    def _drop_subscriptions(self) -> Iterator[None]:
        """End many subscriptions, which get no more messages, in turns."""
        while subscriptions := first_portion(self.subscriptions.values()):
            for subscription in subscriptions:
                self.drop_subscription(subscription)
            yield

    def _disown_in_turns(self, queues: list[Queue]) -> Iterator[None]:
        for begin in range(0, len(queues), DELETED_AT_ONCE):
            for queue in queues[begin : begin + DELETED_AT_ONCE]:
                self._disown(queue)
            yield

    def add_exclusive_queue(self, queue: Queue) -> None:
        """Make a queue exclusive to the session, which may have ended by now."""
        if self.is_failed:
            self._disown(queue)
        else:
            self.exclusive_queues[queue] = None

    def _disown(self, queue: Queue) -> None:
        if queue.owner is self:
            queue.owner = None
        self.connection.leave(queue)


_COUNTING: Final = frozenset(("session.command-point", "session.gap"))
