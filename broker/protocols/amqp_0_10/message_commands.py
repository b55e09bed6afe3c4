"""The commands of class message that come from a client, but for message.transfer; and queue.purge.

    accept      what was delivered is dequeued; in a transaction, at commit
    release     it is available again, in its old place
    reject      it goes to the queue's alternate exchange; without one it is dequeued
    acquire     what was only shown is the client's, unless somebody else has it
    subscribe, cancel, set-flow-mode, flow, flush, stop      a consumer and its credit
    resume      how much is here of a message whose transfer was interrupted (see `interrupted`)

Each takes the session, the command's number and its fields. Those for which something is written are held until it is
on the disk.

Source: AMQP 0-10, class message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from broker.errors import (
    IllegalArgumentError,
    InvalidArgumentError,
    ModelError,
    NotAllowedError,
    NotFoundError,
    NotImplementedByBrokerError,
    ResourceLimitExceededError,
    ResourceLockedError,
)
from broker.protocols.amqp_0_10.deliveries import Delivery
from broker.protocols.amqp_0_10.sequence import wrap_ranges
from broker.protocols.amqp_0_10.subscription import Subscription
from broker.queues.argument_table import as_text, shown
from broker.queues.entry import Entry
from broker.queues.queue import Queue
from formats.amqp_0_10.codes import AcceptMode, AcquireMode, CreditUnit, FlowMode
from formats.amqp_0_10.commands import encode_result
from formats.values import TypedMap

if TYPE_CHECKING:
    from broker.protocols.amqp_0_10.server_session import ServerSession

_SELECTOR: Final = "x-apache-selector"  # qpidd, SemanticState.cpp
_MOST_SUBSCRIPTIONS: Final = 10_000  # of one session
_ACCEPT_MODES: Final = frozenset(AcceptMode)
_ACQUIRE_MODES: Final = frozenset(AcquireMode)
_FLOW_MODES: Final = frozenset(FlowMode)
_CREDIT_UNITS: Final = frozenset(CreditUnit)

_Values = dict[str, Any]

# ---- what was delivered ----


def _accept(session: ServerSession, number: int, values: _Values) -> None:
    if session.transaction is not None:
        for delivery in session.deliveries.accept_at_commit(values["transfers"], session.sent):
            session.transaction.accept(delivery.subscription.queue, delivery.entry)
        return
    is_written = False
    for delivery in session.deliveries.settle(values["transfers"], session.sent):
        queue = delivery.subscription.queue
        if not queue.is_deleted and queue.dequeue(delivery.entry):
            is_written = True
    if is_written:
        session.hold(number)


def _reject(session: ServerSession, number: int, values: _Values) -> None:
    moves: list[tuple[Queue, Entry]] = []
    is_written = False
    for delivery in _take_back(session, values):
        queue = delivery.subscription.queue
        if queue.is_deleted:
            continue
        if queue.alternate is not None:
            moves.append((queue, delivery.entry))
        elif queue.dequeue(delivery.entry):
            is_written = True
    if moves:
        _move(session, number, moves, is_written=is_written)
    elif is_written:
        session.hold(number)


def _move(session: ServerSession, number: int, moves: list[tuple[Queue, Entry]], *, is_written: bool) -> None:
    """Move rejected messages; the command is completed when they are where they go, and nowhere else.

    Args:
        session: whose messages they are.
        number: of the command.
        moves: what goes where.
        is_written: whether others were rejected as well, and what was written for them is waited for too.
    """
    session.postpone(number)
    left = len(moves) + is_written

    def done(error: Exception | None) -> None:
        nonlocal left
        left -= 1
        if error is not None:
            session.fail([[number, number]], error)
        elif not left:
            session.completed_later(number)

    if is_written:
        session.broker.turn.when_synced(done)
    for index, (queue, entry) in enumerate(moves):
        assert queue.alternate is not None
        try:
            session.broker.move(queue, entry, queue.alternate, done)
        except ModelError:
            for source, kept in moves[index:]:
                source.release(kept, is_redelivered=True)
            raise


def _release(session: ServerSession, _number: int, values: _Values) -> None:
    is_redelivered = bool(values["set_redelivered"])
    for delivery in _take_back(session, values):
        queue = delivery.subscription.queue
        if not queue.is_deleted:
            queue.release(delivery.entry, is_redelivered=is_redelivered)


def _take_back(session: ServerSession, values: _Values) -> Iterator[Delivery]:
    """Take what the client releases or rejects, even if it has accepted it in the transaction that is not over."""
    for delivery in session.deliveries.settle(values["transfers"], session.sent):
        if session.transaction is not None:
            session.transaction.withdraw(delivery.entry)
        yield delivery


def _acquire(session: ServerSession, number: int, values: _Values) -> None:
    acquired = session.deliveries.acquire(values["transfers"], session.sent)
    session.send_result(number, encode_result("message.acquire", transfers=wrap_ranges(acquired)))


# ---- subscriptions ----


def _subscribe(session: ServerSession, _number: int, values: _Values) -> None:
    destination = values["destination"] or ""
    queue = session.find_queue(values["queue"])
    _check_selector(values["arguments"])
    if destination in session.subscriptions:
        raise NotAllowedError(f"Destination {destination} is in use in this session")
    if len(session.subscriptions) >= _MOST_SUBSCRIPTIONS:
        raise ResourceLimitExceededError(f"more than {_MOST_SUBSCRIPTIONS} subscriptions of one session")
    accept_mode, acquire_mode = values["accept_mode"] or 0, values["acquire_mode"] or 0
    if accept_mode not in _ACCEPT_MODES or acquire_mode not in _ACQUIRE_MODES:
        raise InvalidArgumentError(f"accept mode {accept_mode} with acquire mode {acquire_mode}")
    if queue.exclusive_consumer is not None or (values["exclusive"] and queue.consumer_count):
        raise ResourceLockedError(f"Queue {queue.name} has an exclusive consumer, or another one")
    acquires = acquire_mode == AcquireMode.PRE_ACQUIRED
    subscription = Subscription(session, destination, queue, accept_mode, acquires=acquires)
    session.subscriptions[destination] = subscription
    queue.add_consumer(subscription)
    if values["exclusive"]:
        queue.exclusive_consumer = subscription


def _check_selector(arguments: TypedMap | None) -> None:
    """A consumer with a selector would take messages that are for others. Raises NotImplementedByBrokerError."""
    selector = None if arguments is None else arguments.get(_SELECTOR)
    if selector is not None and selector.value:
        text = f"{_SELECTOR} {shown(as_text(selector.value))} is not implemented"
        raise NotImplementedByBrokerError(f"message.subscribe: {text}: a consumer gets every message of its queue")


def _find(session: ServerSession, values: _Values) -> Subscription:
    destination = values["destination"] or ""
    subscription = session.subscriptions.get(destination)
    if subscription is None:
        raise NotFoundError(f"Unknown destination {destination}")
    return subscription


def _cancel(session: ServerSession, _number: int, values: _Values) -> None:
    session.drop_subscription(_find(session, values))


def _set_flow_mode(session: ServerSession, _number: int, values: _Values) -> None:
    mode = values["flow_mode"] or 0
    if mode not in _FLOW_MODES:
        raise InvalidArgumentError(f"flow mode {mode}")
    _find(session, values).set_flow_mode(mode)


def _flow(session: ServerSession, _number: int, values: _Values) -> None:
    unit = values["unit"] or 0
    if unit not in _CREDIT_UNITS:
        raise InvalidArgumentError(f"credit unit {unit}")
    _find(session, values).add_credit(unit, values["value"] or 0)


def _flush(session: ServerSession, number: int, values: _Values) -> None:
    session.flush(number, _find(session, values))


def _stop(session: ServerSession, _number: int, values: _Values) -> None:
    _find(session, values).stop()


def _resume(session: ServerSession, number: int, values: _Values) -> None:
    destination, resume_id = values["destination"] or "", values["resume_id"]
    if resume_id is None:
        raise IllegalArgumentError("No resume-id is given")
    if destination not in session.broker.exchanges:
        raise NotFoundError(f"Exchange not found: {destination}")
    offset = session.connection.resume_message(resume_id)
    session.send_result(number, encode_result("message.resume", offset=offset))


def _purge(session: ServerSession, number: int, values: _Values) -> None:
    _, is_written = session.find_queue(values["queue"]).purge()
    if is_written:
        session.hold(number)


#: Command -> what it does.
MESSAGE_COMMANDS: Final[dict[str, Callable[[ServerSession, int, _Values], None]]] = {
    "message.accept": _accept,
    "message.reject": _reject,
    "message.release": _release,
    "message.acquire": _acquire,
    "message.subscribe": _subscribe,
    "message.cancel": _cancel,
    "message.set-flow-mode": _set_flow_mode,
    "message.flow": _flow,
    "message.flush": _flush,
    "message.stop": _stop,
    "message.resume": _resume,
    "queue.purge": _purge,
}
