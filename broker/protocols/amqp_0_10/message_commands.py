"""The commands of class message from a client, except message.transfer; and queue.purge.

    accept      the message is dequeued; in a transaction, at commit. In a distributed one it is no longer the session's
    release     it is available again, at its old position
    reject      it moves to the queue's alternate exchange; without one it is dequeued
    acquire     a browsed message is acquired, if it is still available
    subscribe, cancel, set-flow-mode, flow, flush, stop      a consumer and its credit
    resume      how much was received of a message whose transfer was interrupted (see `interrupted`)

The model defines accept, reject, release and exclusive consumers (`settlement`). Each function takes the session, the
command's number and its fields. Commands that write records are held until those are on the disk.

Source: AMQP 0-10, class message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.model.arguments import AMQP_0_10, JMS_SELECTOR, SELECTOR
from qstore.broker.model.authorization import Action
from qstore.broker.model.errors import (
    IllegalArgumentError,
    InvalidArgumentError,
    NotAllowedError,
    NotFoundError,
    NotImplementedByBrokerError,
    ResourceLimitExceededError,
)
from qstore.broker.model.events import SessionFlow
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.selectors.selector import read_selector
from qstore.broker.model.settlement import (
    AT_ONCE,
    MOVED_AT_ONCE,
    Settled,
    accept,
    accept_in_turns,
    purge,
    reject,
    reject_in_turns,
    release,
    release_in_turns,
    subscribe,
)
from qstore.broker.protocols.amqp_0_10.selective_subscription import SelectiveSubscription
from qstore.broker.protocols.amqp_0_10.sequence import wrap_ranges
from qstore.broker.protocols.amqp_0_10.server_session import ServerSession
from qstore.broker.protocols.amqp_0_10.subscription import Subscription
from qstore.formats.amqp_0_10.codes import AcceptMode, AcquireMode, CreditUnit, FlowMode
from qstore.formats.amqp_0_10.commands import encode_result
from qstore.formats.values import EMPTY_MAP

if TYPE_CHECKING:
    from qstore.broker.model.transactions.local import LocalTransaction

_MAX_SUBSCRIPTIONS: Final = 10_000  # of one session
_ACCEPT_MODES: Final = frozenset(AcceptMode)
_ACQUIRE_MODES: Final = frozenset(AcquireMode)
_FLOW_MODES: Final = frozenset(FlowMode)
_CREDIT_UNITS: Final = frozenset(CreditUnit)

_Values = dict[str, Any]

# ---- deliveries ----


def _accept(session: ServerSession, number: int, values: _Values) -> None:
    transaction, deliveries = session.transaction, session.deliveries
    transfers, near = values["transfers"], session.sent
    if transaction is not None:
        take = deliveries.accept_at_commit if session.branches is None else deliveries.settle
        if deliveries.are_more(AT_ONCE, transfers, near):
            session.do_in_turns(number, _accept_at_commit(session, number, transaction, take(transfers, near)))
            return
        for queue, entry in take(transfers, near):
            transaction.accept(queue, entry)
        return
    acquired, done = deliveries.settle(transfers, near), partial(_settled, session, number)
    if deliveries.are_more(AT_ONCE, transfers, near):
        session.do_in_turns(number, accept_in_turns(session.tick, acquired, done))
    else:
        _complete(session, number, accept(session.tick, acquired, done))


def _accept_at_commit(
    session: ServerSession, number: int, transaction: LocalTransaction, acquired: Iterator[tuple[Queue, Entry]]
) -> Iterator[None]:
    """Accept many messages in a transaction, as work in turns."""
    while portion := list(islice(acquired, AT_ONCE)):
        for queue, entry in portion:
            transaction.accept(queue, entry)
        yield
    session.completed_later(number)


def _reject(session: ServerSession, number: int, values: _Values) -> None:
    acquired, done = _take_back(session, values), partial(_settled, session, number)
    if session.deliveries.are_more(MOVED_AT_ONCE, values["transfers"], session.sent):
        session.do_in_turns(number, reject_in_turns(session.broker, acquired, done))
    else:
        _complete(session, number, reject(session.broker, acquired, done))


def _complete(session: ServerSession, number: int, settled: Settled) -> None:
    """Complete a command that settles deliveries when that is done."""
    if settled is Settled.SYNCED:
        session.ledger.hold(number)
    elif settled is Settled.LATER:
        session.ledger.postpone(number)


def _settled(session: ServerSession, number: int, error: Exception | None) -> None:
    """A postponed command has settled its deliveries, or one of them could not be settled."""
    if error is not None:
        session.fail([[number, number]], error)
    else:
        session.completed_later(number)


def _release(session: ServerSession, number: int, values: _Values) -> None:
    acquired, is_redelivered = _take_back(session, values), bool(values["set_redelivered"])
    if session.deliveries.are_more(AT_ONCE, values["transfers"], session.sent):
        session.do_in_turns(number, _release_in_turns(session, number, acquired, is_redelivered=is_redelivered))
    else:
        release(acquired, is_redelivered=is_redelivered)


def _release_in_turns(
    session: ServerSession, number: int, acquired: Iterator[tuple[Queue, Entry]], *, is_redelivered: bool
) -> Iterator[None]:
    yield from release_in_turns(acquired, is_redelivered=is_redelivered)
    session.completed_later(number)


def _take_back(session: ServerSession, values: _Values) -> Iterator[tuple[Queue, Entry]]:
    """Queues and entries of what the client releases or rejects, even if it has accepted it in the open transaction."""
    for queue, entry in session.deliveries.settle(values["transfers"], session.sent):
        if session.transaction is not None:
            session.transaction.withdraw(entry)
        yield queue, entry


def _acquire(session: ServerSession, number: int, values: _Values) -> None:
    work = _acquiring(session, number, values)
    if len(session.deliveries.browsed) > AT_ONCE:
        session.do_in_turns(number, work)
    else:
        for _ in work:
            pass


def _acquiring(session: ServerSession, number: int, values: _Values) -> Iterator[None]:
    acquired: list[tuple[int, int]] = []
    yield from session.deliveries.acquire(values["transfers"], session.sent, acquired)
    session.send_result(number, encode_result("message.acquire", transfers=wrap_ranges(acquired)))
    session.completed_later(number)


# ---- subscriptions ----


def _subscribe(session: ServerSession, _number: int, values: _Values) -> None:
    destination = values["destination"] or ""
    accept_mode, acquire_mode = values["accept_mode"] or 0, values["acquire_mode"] or 0
    is_browsed = acquire_mode == AcquireMode.NOT_ACQUIRED
    if values["resume_id"] or values["resume_ttl"]:
        raise NotImplementedByBrokerError("subscriptions cannot be resumed: leave resume-id and resume-ttl out")
    queue = session.find_queue(values["queue"], Action.CONSUME, is_browsed=is_browsed)
    arguments = values["arguments"] or EMPTY_MAP
    selector, other = read_selector(arguments, SELECTOR), read_selector(arguments, JMS_SELECTOR)
    if selector is not None and other is not None and selector.text != other.text:
        raise InvalidArgumentError(f"{SELECTOR} and {JMS_SELECTOR} are different selectors for the same subscription")
    selector = selector or other
    if destination in session.subscriptions:
        raise NotAllowedError(f"Destination {destination} is already in use in this session")
    if len(session.subscriptions) >= _MAX_SUBSCRIPTIONS:
        raise ResourceLimitExceededError(f"more than {_MAX_SUBSCRIPTIONS} subscriptions in one session")
    if accept_mode not in _ACCEPT_MODES or acquire_mode not in _ACQUIRE_MODES:
        raise InvalidArgumentError(f"accept mode {accept_mode} with acquire mode {acquire_mode} is not valid")
    acquires = acquire_mode == AcquireMode.PRE_ACQUIRED and not queue.is_browse_only
    subscription: Subscription
    if selector is None:
        subscription = Subscription(session, destination, queue, accept_mode, acquires=acquires)
    else:
        last = session.broker.last_candidate
        subscription = SelectiveSubscription(
            session, destination, queue, accept_mode, acquires=acquires, selector=selector, last=last
        )
    subscription.arguments, exclusive = arguments, bool(values["exclusive"])
    subscribe(
        session.broker, session, queue, subscription, destination,
        exclusive=exclusive, arguments=arguments, protocol=AMQP_0_10,
    )  # fmt: skip
    session.subscriptions[destination] = subscription


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
        raise InvalidArgumentError(f"flow mode {mode} is not valid")
    _find(session, values).set_flow_mode(mode)


def _flow(session: ServerSession, _number: int, values: _Values) -> None:
    unit = values["unit"] or 0
    if unit not in _CREDIT_UNITS:
        raise InvalidArgumentError(f"credit unit {unit} is not valid")
    _find(session, values).add_credit(unit, values["value"] or 0)
    if session.is_flow_stopped:
        session.is_flow_stopped = False
        session.broker.events.emit(SessionFlow(is_started=True), session)


def _flush(session: ServerSession, number: int, values: _Values) -> None:
    session.flush(number, _find(session, values))


def _stop(session: ServerSession, _number: int, values: _Values) -> None:
    _find(session, values).stop()
    if not session.is_flow_stopped and not any(each.message_credit for each in session.subscriptions.values()):
        session.is_flow_stopped = True
        session.broker.events.emit(SessionFlow(is_started=False), session)


def _resume(session: ServerSession, number: int, values: _Values) -> None:
    destination, resume_id = values["destination"] or "", values["resume_id"]
    if resume_id is None:
        raise IllegalArgumentError("No resume-id is given")
    if destination not in session.broker.exchanges:
        raise NotFoundError(f"Exchange not found: {destination}")
    offset = session.connection.resume_message(resume_id)
    session.send_result(number, encode_result("message.resume", offset=offset))


def _purge(session: ServerSession, number: int, values: _Values) -> None:
    queue = session.find_queue(values["queue"], Action.PURGE)
    work = purge(session.broker, session, queue, lambda _, error: _settled(session, number, error))
    if work is not None:
        session.do_in_turns(number, work)
    else:
        session.ledger.postpone(number)


#: Command -> function.
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
