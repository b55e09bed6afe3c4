"""Executes the commands of a client: message.transfer, and tables of all others.

A command is numbered and executed at once, in order. Those in `COMMANDS` are done when their function returns, or
register a completion for later; `DECLARATIONS` change the topology and take time: each is a coroutine without a result,
and the connection's input is paused until it is done; `QUERIES` are answered at once with a struct.

    accept      the message is dequeued; in a transaction, at commit. In a distributed one it leaves the session at once
    release     it is available again, at its old position
    reject      it moves to the queue's alternate exchange; without one it is dequeued
    acquire     a browsed message is acquired, if it is still available
    subscribe, cancel, set-flow-mode, flow, flush, stop      a consumer and its credit
    resume      reports how much of an interrupted message was received (`session_registry`)

The model defines accept, reject, release and exclusive consumers (`settlement`). Commands that write records are held
until those are on the disk. Each function takes the session, the command's number and its fields.

Source: AMQP 0-10, classes message, execution, exchange and queue.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.model.arguments import (
    AMQP_0_10,
    FED_OP,
    NO_CONSUME,
    SYNC_FREQUENCY,
    alternate_in,
    is_switched_on,
    shown,
)
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.errors import (
    IllegalArgumentError,
    InvalidArgumentError,
    ModelError,
    NotAllowedError,
    NotFoundError,
    NotImplementedByBrokerError,
    ResourceLimitExceededError,
)
from qstore.broker.model.events import ConsumerState, SessionFlow
from qstore.broker.model.message import Content
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.queues.stream import Stream, of_a_route
from qstore.broker.model.run import MessageRun
from qstore.broker.model.selectors.selector import requested_selector
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
    single,
    subscribe,
)
from qstore.broker.protocols.amqp_0_10.message import TransferMessage, content_length_field
from qstore.broker.protocols.amqp_0_10.server_session import MESSAGE_TRANSFER, ServerSession
from qstore.broker.protocols.amqp_0_10.session import shown_name, wrap_ranges
from qstore.broker.protocols.amqp_0_10.subscription import (
    SelectiveSubscription,
    StreamSubscription,
    Subscription,
    TracedSelectiveSubscription,
    TracedSubscription,
)
from qstore.broker.protocols.amqp_0_10.transactions import TRANSACTION_COMMANDS
from qstore.formats.amqp_0_10.codes import AcceptMode, AcquireMode, CreditUnit, FlowMode
from qstore.formats.amqp_0_10.commands import decode_command, encode_result
from qstore.formats.amqp_0_10.types import Amqp010Error
from qstore.formats.kernels.bodies import Bodies, SizeField
from qstore.formats.values import EMPTY_MAP

if TYPE_CHECKING:
    from qstore.broker.model.exchanges.exchange import Exchange
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
        accepted = single(take(transfers, near))
        if deliveries.are_more(AT_ONCE, transfers, near):
            session.do_in_turns(number, _accept_at_commit(session, number, transaction, accepted))
            return
        for queue, entry in accepted:
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
    acquired, done = _withdrawn(session, values), partial(_settled, session, number)
    if session.deliveries.are_more(MOVED_AT_ONCE, values["transfers"], session.sent):
        session.do_in_turns(number, reject_in_turns(session.broker, acquired, done))
    else:
        _complete(session, number, reject(session.broker, acquired, done))


def _complete(session: ServerSession, number: int, settled: Settled) -> None:
    """Complete a command that settles deliveries, once they are settled."""
    if settled is Settled.SYNCED:
        session.ledger.hold(number)
    elif settled is Settled.LATER:
        session.ledger.postpone(number)


def _settled(session: ServerSession, number: int, error: Exception | None) -> None:
    """Complete a postponed command that has settled its deliveries; after an error end its session."""
    if error is not None:
        session.fail([[number, number]], error)
    else:
        session.completed_later(number)


def _release(session: ServerSession, number: int, values: _Values) -> None:
    acquired, is_redelivered = _withdrawn(session, values), bool(values["set_redelivered"])
    if session.deliveries.are_more(AT_ONCE, values["transfers"], session.sent):
        session.do_in_turns(number, _release_in_turns(session, number, acquired, is_redelivered=is_redelivered))
    else:
        release(acquired, is_redelivered=is_redelivered)


def _release_in_turns(
    session: ServerSession, number: int, acquired: Iterator[tuple[Queue, Entry]], *, is_redelivered: bool
) -> Iterator[None]:
    yield from release_in_turns(acquired, is_redelivered=is_redelivered)
    session.completed_later(number)


def _withdrawn(session: ServerSession, values: _Values) -> Iterator[tuple[Queue, Entry]]:
    """Queues and entries of deliveries to release or reject, even if they were accepted in the open transaction."""
    for queue, entry in single(session.deliveries.settle(values["transfers"], session.sent)):
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
    arguments = values["arguments"] or EMPTY_MAP
    is_browsed = acquire_mode == AcquireMode.NOT_ACQUIRED or is_switched_on(arguments, NO_CONSUME)
    if values["resume_id"] or values["resume_ttl"]:
        raise NotImplementedByBrokerError("subscriptions cannot be resumed: omit resume-id and resume-ttl")
    queue = session.find_queue(values["queue"], Action.CONSUME, is_browsed=is_browsed)
    selector = requested_selector(arguments)
    if destination in session.subscriptions:
        raise NotAllowedError(f"Destination {destination} is already in use in this session")
    if len(session.subscriptions) >= _MAX_SUBSCRIPTIONS:
        raise ResourceLimitExceededError(f"more than {_MAX_SUBSCRIPTIONS} subscriptions in one session")
    if accept_mode not in _ACCEPT_MODES or acquire_mode not in _ACQUIRE_MODES:
        raise InvalidArgumentError(f"accept mode {accept_mode} with acquire mode {acquire_mode} is not valid")
    acquires = not is_browsed and not queue.is_browse_only
    subscription: Subscription
    is_traced = session.tick.tracer is not None
    if selector is None:
        make = TracedSubscription if is_traced else Subscription
        if isinstance(queue, Stream):
            make = StreamSubscription
            if session.connection.is_of_broker or session.connection.is_outgoing:
                arguments = of_a_route(arguments, shown_name(session.name))
        subscription = make(session, destination, queue, accept_mode, acquires=acquires)
    else:
        last = session.broker.last_candidate
        make_selective = TracedSelectiveSubscription if is_traced else SelectiveSubscription
        subscription = make_selective(
            session, destination, queue, accept_mode, acquires=acquires, selector=selector, last=last
        )
    subscription.arguments, exclusive = arguments, bool(values["exclusive"])
    if arguments.get(SYNC_FREQUENCY) is not None:
        subscription.ask_for_answers()
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
    subscription = _find(session, values)
    subscription.add_credit(unit, values["value"] or 0)
    if subscription.is_stopped:
        subscription.is_stopped = False
        session.broker.events.emit(_state(values, subscription, is_active=True), session)
    if session.is_flow_stopped:
        session.is_flow_stopped = False
        session.broker.events.emit(SessionFlow(is_started=True), session)


def _state(values: _Values, subscription: Subscription, *, is_active: bool) -> ConsumerState:
    return ConsumerState(values["destination"] or "", subscription.queue.name, is_active)


def _flush(session: ServerSession, number: int, values: _Values) -> None:
    session.flush(number, _find(session, values))


def _stop(session: ServerSession, _number: int, values: _Values) -> None:
    subscription = _find(session, values)
    subscription.stop()
    if not subscription.is_stopped:
        subscription.is_stopped = True
        session.broker.events.emit(_state(values, subscription, is_active=False), session)
    if not session.is_flow_stopped and not any(each.message_credit for each in session.subscriptions.values()):
        session.is_flow_stopped = True
        session.broker.events.emit(SessionFlow(is_started=False), session)


def _resume(session: ServerSession, number: int, values: _Values) -> None:
    destination, resume_id = values["destination"] or "", values["resume_id"]
    if resume_id is None:
        raise IllegalArgumentError("No resume-id is given")
    if destination not in session.virtual_host.exchanges:
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


async def _declare_exchange(session: ServerSession, values: _Values) -> None:
    name, arguments = values["exchange"] or "", values["arguments"] or EMPTY_MAP
    alternate, named = values["alternate_exchange"] or "", "" if values["passive"] else alternate_in(arguments)
    if alternate and named not in ("", alternate):
        raise InvalidArgumentError(f"the alternate exchange is {shown(alternate)}, but its argument is {shown(named)}")
    await session.virtual_host.topology.declare_exchange(
        name,
        values["type"] or "",
        passive=values["passive"],
        durable=values["durable"],
        auto_delete=values["auto_delete"],
        alternate=alternate or named,
        arguments=arguments,
        caller=session,
    )


async def _delete_exchange(session: ServerSession, values: _Values) -> None:
    await session.virtual_host.topology.delete_exchange(
        values["exchange"] or "", if_unused=values["if_unused"], caller=session
    )


async def _bind(session: ServerSession, values: _Values) -> None:
    arguments = values["arguments"] or EMPTY_MAP
    await session.virtual_host.topology.bind(
        values["queue"] or "",
        values["exchange"] or "",
        values["binding_key"] or "",
        arguments,
        caller=session,
    )
    if arguments.get(FED_OP) is not None:
        session.announced(values["queue"] or "", values["exchange"] or "", values["binding_key"] or "")


async def _unbind(session: ServerSession, values: _Values) -> None:
    await session.virtual_host.topology.unbind(
        values["queue"] or "", values["exchange"] or "", values["binding_key"] or "", caller=session
    )


async def _declare_queue(session: ServerSession, values: _Values) -> None:
    queue = await session.virtual_host.topology.declare_queue(
        values["queue"] or "",
        passive=values["passive"],
        durable=values["durable"],
        exclusive=values["exclusive"],
        auto_delete=values["auto_delete"],
        alternate=values["alternate_exchange"] or "",
        arguments=values["arguments"] or EMPTY_MAP,
        caller=session,
    )
    if queue.owner is session:
        session.add_exclusive_queue(queue)


async def _delete_queue(session: ServerSession, values: _Values) -> None:
    await session.virtual_host.topology.delete_queue(
        values["queue"] or "", if_unused=values["if_unused"], if_empty=values["if_empty"], caller=session
    )


def _query_exchange(session: ServerSession, values: _Values) -> bytes:
    name = values["name"] or ""
    session.broker.authorization.check(session, Action.ACCESS, ObjectType.EXCHANGE, name)
    exchange = session.virtual_host.exchanges.get(name)
    if exchange is None:
        return encode_result("exchange.query", not_found=True)
    return encode_result(
        "exchange.query", type=exchange.type_name, durable=exchange.durable, arguments=exchange.arguments
    )


def _query_bound(session: ServerSession, values: _Values) -> bytes:
    exchange, queue, key = values["exchange"] or "", values["queue"], values["binding_key"]
    session.broker.authorization.check(
        session, Action.ACCESS, ObjectType.EXCHANGE, exchange, queuename=queue or "", routingkey=key or ""
    )
    result = session.virtual_host.topology.bound(exchange, queue, key, values["arguments"])
    return encode_result("exchange.bound", **result._asdict())


def _query_queue(session: ServerSession, values: _Values) -> bytes:
    name = values["queue"] or ""
    session.broker.authorization.check(session, Action.ACCESS, ObjectType.QUEUE, name)
    queue = session.virtual_host.queues.get(name)
    if queue is None:
        queue = session.virtual_host.replies.queues.get(
            name
        )  # clients look for the reply address before they send there
    if queue is None:
        return encode_result("queue.query")
    return encode_result(
        "queue.query",
        queue=queue.name,
        alternate_exchange=None if queue.alternate is None else queue.alternate.name,
        durable=queue.durable,
        exclusive=queue.owner is not None,
        auto_delete=queue.auto_delete,
        arguments=queue.arguments,
        message_count=queue.available_count,
        subscriber_count=queue.consumer_count,
    )


#: Command -> function.
DECLARATIONS: Final[dict[str, Callable[[ServerSession, _Values], Coroutine[Any, Any, None]]]] = {
    "exchange.declare": _declare_exchange,
    "exchange.delete": _delete_exchange,
    "exchange.bind": _bind,
    "exchange.unbind": _unbind,
    "queue.declare": _declare_queue,
    "queue.delete": _delete_queue,
}

#: Command -> function that returns the encoded result.
QUERIES: Final[dict[str, Callable[[ServerSession, _Values], bytes]]] = {
    "exchange.query": _query_exchange,
    "exchange.bound": _query_bound,
    "queue.query": _query_queue,
}


_DESTINATIONS_KEPT: Final = 256  # cached by one session
_FLAGS_AT: Final = 3  # in a command: class, code, size of the session header, its flags
_SYNC: Final = 1  # the sender waits for the command's completion


def do_command(session: ServerSession, payload: bytes, header: bytes | None, body: Content | None) -> None:
    """Execute a command that was received. If it fails, the session ends.

    Raises:
        DetachError: the client has not sent command-point.
        Amqp010Error: the command cannot be decoded.
    """
    if session.is_failed:
        return
    tick = session.tick
    tick.workers[session] = None
    number = session.begin_command()
    if number < 0:
        return
    try:
        if payload[:2] == MESSAGE_TRANSFER:
            _transfer(session, number, payload, header, body)
        else:
            _do(session, number, payload)
    except ModelError as error:
        session.fail_command(number, payload, error)


def _do(session: ServerSession, number: int, payload: bytes) -> None:
    try:
        command, is_sync, values = decode_command(payload)
    except Amqp010Error:
        if payload[:1] in _CLASSES:
            raise
        raise NotImplementedByBrokerError(f"unknown command class 0x{payload[:1].hex()}") from None
    if is_sync:
        session.tick.is_urgent = True
    handler = COMMANDS.get(command.name)
    if handler is not None:
        handler(session, number, values)
        return
    query = QUERIES.get(command.name)
    if query is not None:
        session.send_result(number, query(session, values))
        return
    declaration = DECLARATIONS.get(command.name)
    if declaration is None:
        raise NotImplementedByBrokerError(f"{command.name} is not implemented")
    session.run(number, payload, declaration(session, values))


# ---- message.transfer ----


def _transfer(session: ServerSession, number: int, payload: bytes, header: bytes | None, body: Content | None) -> None:
    destination = session.destinations.get(payload)
    if destination is None:
        destination = _read_destination(session, payload)
    broker, connection = session.broker, session.connection
    exchange = session.virtual_host.exchanges.get(destination)
    if exchange is None:
        raise NotFoundError(f"Exchange not found: {destination}")
    router, transfers = connection.router, connection.transfers
    try:
        message = transfers.read(header or b"", body, destination, session.clock)
    except Amqp010Error as error:
        raise InvalidArgumentError(f"message.transfer: {error}") from error
    if transfers.has_rare:
        if session.rate is not None:
            session.rate.take(1, connection)
        transfers.check(message, exchange, broker, session, in_transaction=session.transaction is not None)
        if message.handling.is_immediate:
            _transfer_immediate(session, number, message, exchange)
            return
    if session.transaction is not None:
        session.transaction.publish(message, exchange)
        return
    try:
        is_waiting = router.publish(message, exchange)
    except ModelError as refusal:
        if transfers.tracer is not None:
            transfers.tracer.refused(message, refusal)
        raise
    if is_waiting:
        if router.stops or router.fanout is not None:
            session.hold_transfer(number, is_stored=message.is_persistent)
        else:
            session.ledger.hold(number)
            if payload[_FLAGS_AT] & _SYNC:
                session.awaited = number


def do_transfers(session: ServerSession, payload: bytes, header: bytes, bodies: Bodies, field: SizeField | None) -> int:
    """Execute transfers of messages that differ only in their content, if they take effect at once.

    Args:
        session: the session; it is attached.
        payload: their message.transfer.
        header: the header segment of the first.
        bodies: their contents.
        field: the field in the header segment that gives the size of the content, if there is one.

    Returns:
        How many were executed; if it is 0, the first must be executed by itself.
    """
    destination, broker = session.destinations.get(payload), session.broker
    if session.is_failed or session.transaction is not None or destination is None:
        return 0
    transfers, exchange = session.connection.transfers, session.virtual_host.exchanges.get(destination)
    if bodies.is_even and transfers.is_last(header, destination):
        field = None
    template = transfers.template(header, destination, field)
    if exchange is None or template is None or (transfers.has_rare and not transfers.covers(template)):
        return 0
    first = session.begin_commands(0)
    if first < 0:
        return 0
    if session.rate is not None:
        limited = session.rate.limited(bodies)
        if limited is None:
            return 0
        bodies = limited
    if field is not None:
        field = content_length_field(template.header)
    run = MessageRun(template, bodies, field, len(template.header))
    published = broker.router.publish_run(run, exchange)
    if published:
        session.tick.workers[session] = None
        session.begin_commands(published)
        if session.rate is not None:
            session.rate.take(published, session.connection)
        if broker.router.is_run_stored:
            last = first + published - 1
            session.ledger.hold_run(first, last)
            if payload[_FLAGS_AT] & _SYNC:
                session.awaited = last
    return published


def _transfer_immediate(session: ServerSession, number: int, message: TransferMessage, exchange: Exchange) -> None:
    route = session.broker.router.route_immediate(message, exchange)
    if session.transaction is not None:
        session.transaction.publish_to(message, exchange, route)
    elif session.broker.router.publish_to(message, exchange, route):
        session.hold_transfer(number, is_stored=message.is_persistent)


def _read_destination(session: ServerSession, payload: bytes) -> str:
    _, _, values = decode_command(payload)
    destination: str = values["destination"] or ""
    if not values["accept_mode"] and session.connection.is_of_broker:
        session.accept_batch = 1  # its source keeps each message until it is accepted
    if len(session.destinations) >= _DESTINATIONS_KEPT:
        session.destinations.clear()
    session.destinations[payload] = destination
    return destination


# ---- execution ----


def _sync(session: ServerSession, number: int, _values: dict[str, Any]) -> None:
    session.ledger.hold_for_all_before(number)
    session.tick.is_urgent = True


def _nothing(_session: ServerSession, _number: int, _values: dict[str, Any]) -> None:
    """Ignore results of the broker's own commands: it sends none that have any."""


def _exception(session: ServerSession, _number: int, values: dict[str, Any]) -> None:
    session.on_exception(values)


_CLASSES: Final = frozenset(bytes((code,)) for code in range(3, 11))

#: Command -> function, for commands that do not change the topology.
COMMANDS: Final[dict[str, Callable[[ServerSession, int, dict[str, Any]], None]]] = {
    "execution.sync": _sync,
    "execution.result": _nothing,
    "execution.exception": _exception,
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
    **TRANSACTION_COMMANDS,
}
