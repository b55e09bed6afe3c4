"""The broker's side of a session: what each command does.

A command that comes is numbered and done at once, in order. It is completed at the end of the turn, or, if something
was written for it, when that is on the disk; a command of the wiring (declare, delete, bind, unbind) stops the
connection until it is done, so that whatever comes after it finds what it has made.

A message that was delivered is remembered by the number of its transfer, until it is settled:

    accept      it is dequeued; in a transaction, at commit
    release     it is available again, in its old place
    reject      it goes to the queue's alternate exchange; without one it is dequeued
    the end     of the session: it is available again, and marked as redelivered

Whatever cannot be done ends the session: execution.exception says which command it was and why, and detach follows.

Source: AMQP 0-10, classes execution, message, tx; `declarations` has exchange and queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final

from broker.errors import (
    IllegalStateError,
    InternalError,
    InvalidArgumentError,
    ModelError,
    NotAllowedError,
    NotFoundError,
    NotImplementedByBrokerError,
    ResourceDeletedError,
    ResourceLimitExceededError,
    ResourceLockedError,
    UnauthorizedError,
)
from broker.logs import log_of
from broker.protocols.amqp_0_10 import declarations
from broker.protocols.amqp_0_10.error_codes import code_of
from broker.protocols.amqp_0_10.sequence import unwrap_ranges, wrap, wrap_ranges
from broker.protocols.amqp_0_10.session import Session, State
from broker.protocols.amqp_0_10.subscription import Subscription
from broker.protocols.amqp_0_10.transfer import user_id_of
from broker.queues.entry import ACQUIRED, Entry
from broker.queues.queue import Queue
from broker.transactions.local import LocalTransaction
from formats.amqp_0_10.codes import AcceptMode, AcquireMode, CreditUnit, FlowMode
from formats.amqp_0_10.commands import decode_command, encode_result
from formats.amqp_0_10.errors import Amqp010Error

if TYPE_CHECKING:
    from broker.broker import Broker
    from broker.protocols.amqp_0_10.server_connection import ServerConnection

_LOG: Final = log_of("Protocol")

_TRANSFER: Final = b"\x04\x01"
_DESTINATIONS_KEPT: Final = 256
_MOST_SUBSCRIPTIONS: Final = 10_000  # of one session
_FRAMES_OF_TRANSFER: Final = 512  # bytes of a frame that a header or body does not have: its head, with room to spare

_Delivered = tuple[Subscription, Entry]


class _Run:
    """Transfers, one after the other, of one subscription, which the client has not completed."""

    __slots__ = ("first", "last", "size", "subscription")

    def __init__(self, number: int, subscription: Subscription, size: int) -> None:
        self.first = self.last = number
        self.subscription, self.size = subscription, size


class ServerSession(Session):
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
    """

    connection: ServerConnection

    def __init__(self, name: bytes, user: str, broker: Broker) -> None:
        super().__init__(name, 0, None)
        self.broker, self.user = broker, user
        self.clock = broker.clock
        self.can_send = False
        self.most_plain_bytes = 0
        self.is_failed = False
        self.exclusive_queues: dict[Queue, None] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self._turn = broker.turn
        self._destinations: dict[bytes, str] = {}
        self._delivered: dict[int, _Delivered] = {}
        self._looked_at: dict[int, _Delivered] = {}
        self._runs: deque[_Run] = deque()
        self._transaction: LocalTransaction | None = None
        self._accepted_in_transaction: dict[int, _Delivered] = {}
        self._told: tuple[int, int] = (-1, 0)
        self._failures: list[ModelError] = []

    # ---- attached to a connection ----

    def attach_to(self, connection: ServerConnection, channel: int) -> None:
        """A connection has it."""
        self.connection = connection
        self.reattach(channel, connection)
        self.most_plain_bytes = connection.max_frame - _FRAMES_OF_TRANSFER
        self.can_send = connection.can_send
        for subscription in self.subscriptions.values():
            subscription.forget_heads()

    def attached(self) -> None:
        """As `Session.attached`; and what was waiting for a connection goes on."""
        super().attached()
        self._told = (-1, 0)
        self.wake_all()

    def detached(self) -> None:
        """The connection has it no more."""
        super().detached()
        self.can_send = False

    def wake_all(self) -> None:
        """The connection takes messages again."""
        self.can_send = self.transport is not None and self.connection.can_send and not self.is_failed
        if self.can_send:
            for subscription in self.subscriptions.values():
                subscription.wake()

    def grant_timeout(self, seconds: int) -> int:
        """How long it may be kept when it is detached."""
        return min(seconds, self.broker.settings.session_timeout_max_seconds)

    # ---- commands come ----

    def on_command(self, payload: bytes, header: bytes | None, body: bytes) -> None:
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
        handler = _HANDLERS.get(command.name)
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
        self.postpone(number)
        connection = self.connection
        connection.pause()

        def done(error: ModelError | None) -> None:
            if error is not None and not self.is_failed:
                self.fail_command(number, payload, error)
            self.release([[number, number]])
            self._turn.workers[self] = None
            self._turn.schedule()
            connection.resume()

        connection.run(work, done)

    def send_result(self, number: int, result: bytes) -> None:
        """Send the result of a command."""
        self.send("execution.result", command_id=wrap(number), value=result)

    # ---- message.transfer ----

    def _transfer(self, number: int, payload: bytes, header: bytes | None, body: bytes) -> None:
        destination = self._destinations.get(payload)
        if destination is None:
            destination = self._read_destination(payload)
        broker = self.broker
        exchange = broker.exchanges.get(destination)
        if exchange is None:
            raise NotFoundError(f"Exchange not found: {destination}")
        try:
            message, _ = self.connection.transfers.read(header or b"", body, destination, self.clock)
        except Amqp010Error as error:
            raise InvalidArgumentError(f"message.transfer: {error}") from error
        if self.connection.checks_user_ids:
            self._check_user_id(message.header)
        if self._transaction is not None:
            self._transaction.publish(message, exchange)
        elif broker.publish(message, exchange):
            self.hold(number)

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

    # ---- deliveries ----

    def delivered(self, number: int, subscription: Subscription, entry: Entry, size: int) -> None:
        """A message was sent."""
        connection = self.connection
        connection.room -= size
        self._turn.outputs[connection] = None
        if subscription.acquires:
            if subscription.is_accepting:
                self._delivered[number] = (subscription, entry)
            else:
                subscription.queue.dequeue(entry)
        else:
            self._looked_at[number] = (subscription, entry)
        if not subscription.is_windowed and subscription.acquires:
            return
        runs = self._runs
        if runs:
            run = runs[-1]
            if run.subscription is subscription and run.last == number - 1 and run.size == size:
                run.last = number
                return
        runs.append(_Run(number, subscription, size))

    def on_peer_completed(self, first: int, last: int) -> None:
        """The client has completed transfers: those that were only looked at need not be remembered."""
        runs = self._runs
        if runs and runs[0].first < first and runs[0].last >= first:
            self._split(runs, first)
        behind: list[_Run] = []
        while runs and runs[0].first <= last:
            run = runs.popleft()
            if run.last < first:
                behind.append(run)
                continue
            end = min(run.last, last)
            self._completed(run, end)
            if end < run.last:
                run.first = end + 1
                runs.appendleft(run)
        runs.extendleft(reversed(behind))

    def _split(self, runs: deque[_Run], number: int) -> None:
        run = runs.popleft()
        rest = _Run(number, run.subscription, run.size)
        rest.last, run.last = run.last, number - 1
        runs.extendleft((rest, run))

    def _completed(self, run: _Run, last: int) -> None:
        count = last - run.first + 1
        subscription = run.subscription
        subscription.take_back(count, count * run.size)
        if not subscription.acquires and not subscription.is_accepting:
            for number in range(run.first, last + 1):
                self._looked_at.pop(number, None)

    def _each(self, ranges: Iterable[tuple[int, int]] | None, among: dict[int, _Delivered]) -> list[int]:
        """The numbers in `ranges` that are in `among`: a peer may name any range, so the smaller is gone through."""
        found: list[int] = []
        for first, last in unwrap_ranges(ranges or (), self.sent):
            if last - first < len(among):
                found.extend(number for number in range(first, last + 1) if number in among)
            else:
                found.extend(number for number in among if first <= number <= last)
        return found

    # ---- message.accept and so on ----

    def _accept(self, number: int, values: dict[str, Any]) -> None:
        delivered = self._delivered
        transaction = self._transaction
        is_written = False
        for each in self._each(values["transfers"], delivered):
            subscription, entry = taken = delivered.pop(each)
            queue = subscription.queue
            if queue.is_deleted:
                continue
            if transaction is not None:
                transaction.accept(queue, entry)
                self._accepted_in_transaction[each] = taken
            elif queue.dequeue(entry):
                is_written = True
        for each in self._each(values["transfers"], self._looked_at):
            del self._looked_at[each]
        if is_written:
            self.hold(number)

    def _reject(self, number: int, values: dict[str, Any]) -> None:
        moves: list[tuple[Queue, Entry]] = []
        is_written = False
        for each in self._each(values["transfers"], self._delivered):
            subscription, entry = self._delivered.pop(each)
            queue = subscription.queue
            if queue.is_deleted:
                continue
            if queue.alternate is not None:
                moves.append((queue, entry))
            elif queue.dequeue(entry):
                is_written = True
        if moves:
            self._move(number, moves)
        elif is_written:
            self.hold(number)

    def _move(self, number: int, moves: list[tuple[Queue, Entry]]) -> None:
        """Move rejected messages; the command is completed when they are where they go, and nowhere else."""
        self.postpone(number)
        left = len(moves)

        def done(error: Exception | None) -> None:
            nonlocal left
            left -= 1
            if error is not None:
                self.fail([[number, number]], error)
            elif not left:
                self.release([[number, number]])
                self._turn.workers[self] = None
                self._turn.schedule()

        for queue, entry in moves:
            assert queue.alternate is not None
            try:
                self.broker.move(queue, entry, queue.alternate, done)
            except ModelError:
                queue.release(entry, is_redelivered=True)
                raise

    def _release(self, _number: int, values: dict[str, Any]) -> None:
        is_redelivered = bool(values["set_redelivered"])
        for each in self._each(values["transfers"], self._delivered):
            subscription, entry = self._delivered.pop(each)
            if not subscription.queue.is_deleted:
                subscription.queue.release(entry, is_redelivered=is_redelivered)
        for each in self._each(values["transfers"], self._looked_at):
            del self._looked_at[each]

    def _acquire(self, number: int, values: dict[str, Any]) -> None:
        acquired: list[tuple[int, int]] = []
        for each in sorted(self._each(values["transfers"], self._looked_at)):
            subscription, entry = taken = self._looked_at[each]
            if subscription.queue.is_deleted or not subscription.queue.acquire(entry):
                continue
            del self._looked_at[each]
            self._delivered[each] = taken
            if acquired and acquired[-1][1] == each - 1:
                acquired[-1] = (acquired[-1][0], each)
            else:
                acquired.append((each, each))
        self.send_result(number, encode_result("message.acquire", transfers=wrap_ranges(acquired)))

    # ---- subscriptions ----

    def _subscribe(self, _number: int, values: dict[str, Any]) -> None:
        destination = values["destination"] or ""
        queue = self.find_queue(values["queue"])
        if destination in self.subscriptions:
            raise NotAllowedError(f"Destination {destination} is in use in this session")
        if len(self.subscriptions) >= _MOST_SUBSCRIPTIONS:
            raise ResourceLimitExceededError(f"more than {_MOST_SUBSCRIPTIONS} subscriptions of one session")
        accept_mode, acquire_mode = values["accept_mode"] or 0, values["acquire_mode"] or 0
        if accept_mode not in _ACCEPT_MODES or acquire_mode not in _ACQUIRE_MODES:
            raise InvalidArgumentError(f"accept mode {accept_mode} with acquire mode {acquire_mode}")
        if queue.exclusive_consumer is not None or (values["exclusive"] and queue.consumer_count):
            raise ResourceLockedError(f"Queue {queue.name} has an exclusive consumer, or another one")
        acquires = acquire_mode == AcquireMode.PRE_ACQUIRED
        subscription = Subscription(self, destination, queue, accept_mode, acquires=acquires)
        self.subscriptions[destination] = subscription
        queue.add_consumer(subscription)
        if values["exclusive"]:
            queue.exclusive_consumer = subscription

    def find_queue(self, name: str | None) -> Queue:
        """The queue of that name, if this session may use it.

        Raises:
            InvalidArgumentError: no name is given; NotFoundError, ResourceLockedError.
        """
        if not name:
            raise InvalidArgumentError("No queue name is given")
        queue = self.broker.queues.get(name)
        if queue is None:
            raise NotFoundError(f"Queue not found: {name}")
        if queue.owner is not None and queue.owner is not self:
            raise ResourceLockedError(f"Cannot grant exclusive access to queue {name}")
        return queue

    def _subscription(self, values: dict[str, Any]) -> Subscription:
        destination = values["destination"] or ""
        subscription = self.subscriptions.get(destination)
        if subscription is None:
            raise NotFoundError(f"Unknown destination {destination}")
        return subscription

    def _cancel(self, _number: int, values: dict[str, Any]) -> None:
        self._drop_subscription(self._subscription(values))

    def _drop_subscription(self, subscription: Subscription) -> None:
        del self.subscriptions[subscription.destination]
        queue = subscription.queue
        if queue.is_deleted:
            return
        queue.remove_consumer(subscription)
        if queue.auto_delete and not queue.consumer_count and queue.owner is None:
            self.connection.run(self.broker.wiring.delete_if_unused(queue), _ignore)

    def subscription_lost(self, subscription: Subscription) -> None:
        """The queue of a subscription was deleted."""
        self.subscriptions.pop(subscription.destination, None)
        if not self.is_failed and self.state is State.ATTACHED:
            name = subscription.queue.name
            self._send_exception(None, b"", ResourceDeletedError(f"Queue {name} has been deleted."))

    def _set_flow_mode(self, _number: int, values: dict[str, Any]) -> None:
        mode = values["flow_mode"] or 0
        if mode not in _FLOW_MODES:
            raise InvalidArgumentError(f"flow mode {mode}")
        self._subscription(values).set_flow_mode(mode)

    def _flow(self, _number: int, values: dict[str, Any]) -> None:
        unit = values["unit"] or 0
        if unit not in _CREDIT_UNITS:
            raise InvalidArgumentError(f"credit unit {unit}")
        self._subscription(values).add_credit(unit, values["value"] or 0)

    def _flush(self, _number: int, values: dict[str, Any]) -> None:
        subscription = self._subscription(values)
        subscription.queue.dispatch()
        subscription.stop()

    def _stop(self, _number: int, values: dict[str, Any]) -> None:
        self._subscription(values).stop()

    def _purge(self, number: int, values: dict[str, Any]) -> None:
        _, is_written = self.find_queue(values["queue"]).purge()
        if is_written:
            self.hold(number)

    # ---- execution ----

    def _sync(self, number: int, _values: dict[str, Any]) -> None:
        self.hold_for_sync(number)

    def _nothing(self, _number: int, _values: dict[str, Any]) -> None:
        """Results and exceptions of commands that the broker has sent: it sends none that could have any."""

    # ---- transactions ----

    def _tx_select(self, _number: int, _values: dict[str, Any]) -> None:
        if self._transaction is not None:
            raise IllegalStateError("the session is transactional already")
        self._transaction = self._new_transaction()

    def _new_transaction(self) -> LocalTransaction:
        return LocalTransaction(self.broker, self.broker.settings.queue_limit_bytes)

    def _tx_commit(self, number: int, _values: dict[str, Any]) -> None:
        transaction = self._take_transaction()
        self.postpone(number)
        accepted, self._accepted_in_transaction = self._accepted_in_transaction, {}

        def done(error: ModelError | None) -> None:
            if error is not None:
                self.fail([[number, number]], error)
                return
            self.release([[number, number]])
            self._turn.workers[self] = None
            self._turn.schedule()

        try:
            transaction.commit(done)
        except ModelError:
            self._delivered.update(accepted)
            raise

    def _tx_rollback(self, _number: int, _values: dict[str, Any]) -> None:
        self._take_transaction()
        self._roll_back()

    def _roll_back(self) -> None:
        self._delivered.update(self._accepted_in_transaction)
        self._accepted_in_transaction = {}

    def _take_transaction(self) -> LocalTransaction:
        transaction = self._transaction
        if transaction is None:
            raise IllegalStateError("Session has not been selected for use with transactions")
        self._transaction = self._new_transaction()
        return transaction

    # ---- completion ----

    def tell_completed(self) -> None:
        """Tell the client what is completed, if that is news."""
        if self.transport is None or self.state is not State.ATTACHED:
            return
        completed = self.completed
        ranges = completed.ranges()
        told = (completed.below, len(ranges))
        if ranges and (told != self._told or len(ranges) > 1):
            self._told = told
            self.send_completed()

    def fail(self, runs: list[list[int]], error: Exception) -> None:
        """What was written for these commands will never be on the disk."""
        model_error = error if isinstance(error, ModelError) else InternalError(str(error))
        self.fail_command(runs[0][0] if runs else self.received, b"", model_error)

    # ---- the end ----

    def fail_command(self, number: int, payload: bytes, error: ModelError) -> None:
        """A command cannot be done: the session ends."""
        if self.is_failed:
            return
        _LOG.info("Session %r: %s", self.name, error)
        self._send_exception(number, payload, error)

    def _send_exception(self, number: int | None, payload: bytes, error: ModelError) -> None:
        self.is_failed = True
        if self.transport is not None and self.state is State.ATTACHED:
            if number is not None:
                self.postpone(number)
            self.settle()
            self.tell_completed()
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
        self._transaction = None
        self._roll_back()
        for subscription in list(self.subscriptions.values()):
            self._drop_subscription(subscription)
        delivered, self._delivered = self._delivered, {}
        self._looked_at.clear()
        self._runs.clear()
        for subscription, entry in delivered.values():
            if not subscription.queue.is_deleted and entry.state == ACQUIRED:
                subscription.queue.release(entry, is_redelivered=True)
        owned, self.exclusive_queues = list(self.exclusive_queues), {}
        for queue in owned:
            if queue.owner is self:
                queue.owner = None
            if queue.auto_delete and not queue.is_deleted:
                self.connection.run(self.broker.wiring.delete_if_unused(queue), _ignore)


def _ignore(_error: ModelError | None) -> None:
    """Nobody waits for this."""


_ACCEPT_MODES: Final = frozenset(AcceptMode)
_ACQUIRE_MODES: Final = frozenset(AcquireMode)
_FLOW_MODES: Final = frozenset(FlowMode)
_CREDIT_UNITS: Final = frozenset(CreditUnit)
_CLASSES: Final = frozenset(bytes((code,)) for code in range(3, 11))

_Handler = Callable[[ServerSession, int, dict[str, Any]], None]

_HANDLERS: Final[dict[str, _Handler]] = {
    "execution.sync": ServerSession._sync,
    "execution.result": ServerSession._nothing,
    "execution.exception": ServerSession._nothing,
    "message.accept": ServerSession._accept,
    "message.reject": ServerSession._reject,
    "message.release": ServerSession._release,
    "message.acquire": ServerSession._acquire,
    "message.subscribe": ServerSession._subscribe,
    "message.cancel": ServerSession._cancel,
    "message.set-flow-mode": ServerSession._set_flow_mode,
    "message.flow": ServerSession._flow,
    "message.flush": ServerSession._flush,
    "message.stop": ServerSession._stop,
    "queue.purge": ServerSession._purge,
    "tx.select": ServerSession._tx_select,
    "tx.commit": ServerSession._tx_commit,
    "tx.rollback": ServerSession._tx_rollback,
}
