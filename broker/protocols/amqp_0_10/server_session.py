"""The broker's side of a session: what each command does.

A command that comes is numbered and done at once, in order. It is completed at the end of the turn, or, if something
was written for it, when that is on the disk; a command of the wiring (declare, delete, bind, unbind) stops the
connection until it is done, so that whatever comes after it finds what it has made.

A message that was delivered is remembered by the number of its transfer until it is settled; what is not settled when
the session ends is available again, and marked as redelivered.

Whatever cannot be done ends the session: execution.exception says which command it was and why, and detach follows.

Here are message.transfer and class execution; `message_commands`, `transaction_commands` and `declarations` have the
others.

Source: AMQP 0-10.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from broker.log.logs import log_of
from broker.model.authorization import Action, ObjectType
from broker.model.completion import Runs
from broker.model.content import Content
from broker.model.errors import (
    IllegalArgumentError,
    InternalError,
    InvalidArgumentError,
    ModelError,
    NotFoundError,
    NotImplementedByBrokerError,
    ResourceDeletedError,
    ResourceLimitExceededError,
    ResourceLockedError,
    UnauthorizedError,
)
from broker.model.queues.entry import ACQUIRED, Entry
from broker.model.queues.queue import Queue
from broker.model.settlement import unsubscribe
from broker.protocols.amqp_0_10 import declarations
from broker.protocols.amqp_0_10.deliveries import Deliveries
from broker.protocols.amqp_0_10.error_codes import code_of
from broker.protocols.amqp_0_10.message_commands import MESSAGE_COMMANDS
from broker.protocols.amqp_0_10.sequence import wrap
from broker.protocols.amqp_0_10.session import State, shown_name
from broker.protocols.amqp_0_10.streaming import StreamingSession
from broker.protocols.amqp_0_10.subscription import Subscription
from broker.protocols.amqp_0_10.transaction_commands import TRANSACTION_COMMANDS
from broker.protocols.amqp_0_10.transfer import TransferMessage, user_id_of
from formats.amqp_0_10.commands import decode_command
from formats.amqp_0_10.errors import Amqp010Error

if TYPE_CHECKING:
    from broker.model.broker import Broker
    from broker.model.exchanges.exchange import Exchange
    from broker.model.transactions.local import LocalTransaction
    from broker.protocols.amqp_0_10.server_connection import ServerConnection

_LOG: Final = log_of("Protocol")

_TRANSFER: Final = b"\x04\x01"
_DESTINATIONS_KEPT: Final = 256
_FRAMES_OF_TRANSFER: Final = 512  # bytes of a frame that a header or body does not have: its head, with room to spare


class ServerSession(StreamingSession):
    """A session, as the broker has it.

    Args:
        name: its name.
        user: whose it is.
        broker: the model.

    Attributes:
        broker, user: as above.
        connection: what it is attached to.
        can_send: whether the connection takes messages; else those who wait for some are woken when it does.
        most_plain_bytes: a message as large as that fits one frame, header and body each.
        exclusive_queues: the queues that are its own.
        subscriptions: destination -> subscription.
        deliveries: what it was sent.
        transaction: what it has done since the last commit; None if it is not transactional.
    """

    connection: ServerConnection

    __slots__ = (
        "__weakref__", "_destinations", "_flushes", "_stopped", "_told", "_turn", "broker", "can_send", "clock",
        "deliveries", "exclusive_queues", "is_failed", "most_plain_bytes", "subscriptions", "transaction", "user",
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
        self._turn = broker.turn
        self._destinations: dict[bytes, str] = {}
        self.deliveries = Deliveries()
        self.transaction: LocalTransaction | None = None
        self._flushes: list[tuple[int, Subscription]] = []
        self._stopped: list[ServerConnection] = []  # until a command that takes time is done
        self._told: tuple[int, int] = (-1, 0)

    # ---- attached to a connection ----

    def attach_to(self, connection: ServerConnection, channel: int) -> None:
        """A connection has it."""
        self.connection = connection
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
        self._turn.workers[self] = None
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

    def on_command(self, payload: bytes, header: bytes | None, body: Content | None) -> None:
        """A command has come: do it."""
        if self.is_failed:
            return
        turn = self._turn
        turn.workers[self] = None
        turn.schedule()
        number = self.begin_command()
        if number < 0:
            return
        try:
            if payload[:2] == _TRANSFER:
                self._transfer(number, payload, header, body)
            else:
                self._do(number, payload)
        except ModelError as error:
            self.fail_command(number, payload, error)

    def _do(self, number: int, payload: bytes) -> None:
        try:
            command, _, values = decode_command(payload)
        except Amqp010Error:
            if payload[:1] in _CLASSES:
                raise
            raise NotImplementedByBrokerError(f"there are no commands of class {payload[:1].hex()}") from None
        handler = _COMMANDS.get(command.name)
        if handler is not None:
            handler(self, number, values)
            return
        query = declarations.QUERIES.get(command.name)
        if query is not None:
            self.send_result(number, query(self, values))
            return
        declaration = declarations.DECLARATIONS.get(command.name)
        if declaration is None:
            raise NotImplementedByBrokerError(f"{command.name} is not implemented")
        self.run(number, payload, declaration(self, values))

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
        self._turn.workers[self] = None
        self._turn.schedule()

    def send_result(self, number: int, result: bytes) -> None:
        """Send the result of a command."""
        self.send("execution.result", command_id=wrap(number), value=result)

    # ---- message.transfer ----

    def _transfer(self, number: int, payload: bytes, header: bytes | None, body: Content | None) -> None:
        destination = self._destinations.get(payload)
        if destination is None:
            destination = self._read_destination(payload)
        broker = self.broker
        exchange = broker.exchanges.get(destination)
        if exchange is None:
            raise NotFoundError(f"Exchange not found: {destination}")
        transfers = self.connection.transfers
        try:
            message = transfers.read(header or b"", body, destination, self.clock)
        except Amqp010Error as error:
            raise InvalidArgumentError(f"message.transfer: {error}") from error
        if transfers.has_rare:
            if transfers.is_memory_short:
                transfers.has_published = True
                broker.memory.check()
            if transfers.checks_user_ids:
                self._check_user_id(message.header)
            if transfers.checks_publish:
                broker.authorize(self, Action.PUBLISH, ObjectType.EXCHANGE, destination, routingkey=message.routing_key)
            if message.handling.is_immediate:
                self._transfer_immediate(number, message, exchange)
                return
        if self.transaction is not None:
            self.transaction.publish(message, exchange)
        elif broker.publish(message, exchange):
            self.ledger.hold(number)

    def _transfer_immediate(self, number: int, message: TransferMessage, exchange: Exchange) -> None:
        queues = self.broker.route_immediate(message, exchange)
        if self.transaction is not None:
            self.transaction.publish_to(message, exchange, queues)
        elif self.broker.publish_to(message, exchange, queues):
            self.ledger.hold(number)

    def _read_destination(self, payload: bytes) -> str:
        _, _, values = decode_command(payload)
        destination: str = values["destination"] or ""
        if len(self._destinations) >= _DESTINATIONS_KEPT:
            self._destinations.clear()
        self._destinations[payload] = destination
        return destination

    def _check_user_id(self, header: bytes) -> None:
        user_id = user_id_of(header)
        if user_id is not None and user_id not in (self.user, self.user.rpartition("@")[0]):
            raise UnauthorizedError(f"user id {user_id!r} of a message is not that of the connection")

    def too_large(self) -> None:
        """A message was larger than may be, and was dropped."""
        most = self.broker.settings.max_message_bytes
        error = ResourceLimitExceededError(f"a message is larger than {most} bytes")
        self.fail_command(self.received, _TRANSFER, error)

    def stream_began(self) -> None:
        """A command goes out in portions: no message goes out before it has."""
        self.can_send = False

    def stream_ended(self) -> None:
        """It is out."""
        super().stream_ended()
        self._turn.workers[self] = None  # what was completed meanwhile is told
        self.wake_all()

    # ---- deliveries ----

    def delivered(self, number: int, subscription: Subscription, entry: Entry, size: int) -> None:
        """A message was sent."""
        connection = self.connection
        connection.room -= size
        self._turn.outputs[connection] = None
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
        if not queue.auto_delete or not queue.is_left or queue.is_deleted:
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

    # ---- execution ----

    def _sync(self, number: int, _values: dict[str, Any]) -> None:
        self.ledger.hold_for_all_before(number)

    def _nothing(self, _number: int, _values: dict[str, Any]) -> None:
        """Results and exceptions of commands that the broker has sent: it sends none that could have any."""

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
_CLASSES: Final = frozenset(bytes((code,)) for code in range(3, 11))

_Handler = Callable[[ServerSession, int, dict[str, Any]], None]

#: Command -> what it does, of those that are done at once; `declarations` has the others.
_COMMANDS: Final[dict[str, _Handler]] = {
    "execution.sync": ServerSession._sync,
    "execution.result": ServerSession._nothing,
    "execution.exception": ServerSession._nothing,
    **MESSAGE_COMMANDS,
    **TRANSACTION_COMMANDS,
}
