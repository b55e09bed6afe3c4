"""Executes the commands of a client: message.transfer, and a table of all others.

A command is numbered and executed at once, in order. `message_commands`, `transaction_commands` and
`distributed_commands` are done when their function returns, or register what they wait for; `declarations` change the
topology and take time: the connection's input is paused until they are done.

Source: AMQP 0-10, classes message and execution.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.model.content import Content
from qstore.broker.model.errors import (
    InvalidArgumentError,
    ModelError,
    NotFoundError,
    NotImplementedByBrokerError,
    UnauthorizedError,
)
from qstore.broker.protocols.amqp_0_10.declarations import DECLARATIONS, QUERIES
from qstore.broker.protocols.amqp_0_10.distributed_commands import DISTRIBUTED_COMMANDS
from qstore.broker.protocols.amqp_0_10.message_commands import MESSAGE_COMMANDS
from qstore.broker.protocols.amqp_0_10.server_session import MESSAGE_TRANSFER, ServerSession
from qstore.broker.protocols.amqp_0_10.transaction_commands import TRANSACTION_COMMANDS
from qstore.broker.protocols.amqp_0_10.transfer import TransferMessage, user_id_of
from qstore.formats.amqp_0_10.commands import decode_command
from qstore.formats.amqp_0_10.errors import Amqp010Error

if TYPE_CHECKING:
    from qstore.broker.model.exchanges.exchange import Exchange

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
    tick.schedule()
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
        raise NotImplementedByBrokerError(f"there are no commands of class 0x{payload[:1].hex()}") from None
    if is_sync:
        session.tick.is_urgent = True
    handler = _COMMANDS.get(command.name)
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
    broker = session.broker
    exchange = broker.exchanges.get(destination)
    if exchange is None:
        raise NotFoundError(f"Exchange not found: {destination}")
    transfers = session.connection.transfers
    try:
        message = transfers.read(header or b"", body, destination, session.clock)
    except Amqp010Error as error:
        raise InvalidArgumentError(f"message.transfer: {error}") from error
    if transfers.has_rare:
        if transfers.is_memory_short:
            transfers.has_published = True
            broker.check_memory(message, exchange, in_transaction=session.transaction is not None)
        if transfers.checks_user_ids:
            _check_user_id(session, message.header)
        if transfers.checks_publish:
            target = destination, message.routing_key
            if target not in transfers.allowed and broker.authorization.check_publish(session, *target):
                transfers.allow(target)
        if message.handling.is_immediate:
            _transfer_immediate(session, number, message, exchange)
            return
    if session.transaction is not None:
        session.transaction.publish(message, exchange)
    elif broker.router.publish(message, exchange):
        if broker.router.stops:
            session.hold_transfer(number, is_stored=message.is_persistent)
        else:
            session.ledger.hold(number)
            if payload[_FLAGS_AT] & _SYNC:
                session.awaited = number


def _transfer_immediate(session: ServerSession, number: int, message: TransferMessage, exchange: Exchange) -> None:
    route = session.broker.router.route_immediate(message, exchange)
    if session.transaction is not None:
        session.transaction.publish_to(message, exchange, route)
    elif session.broker.router.publish_to(message, exchange, route):
        session.hold_transfer(number, is_stored=message.is_persistent)


def _read_destination(session: ServerSession, payload: bytes) -> str:
    _, _, values = decode_command(payload)
    destination: str = values["destination"] or ""
    if len(session.destinations) >= _DESTINATIONS_KEPT:
        session.destinations.clear()
    session.destinations[payload] = destination
    return destination


def _check_user_id(session: ServerSession, header: bytes) -> None:
    user_id = user_id_of(header)
    if user_id is not None and user_id not in (session.user, session.user.rpartition("@")[0]):
        raise UnauthorizedError(f"the message's user id {user_id!r} is not that of the connection")


# ---- execution ----


def _sync(session: ServerSession, number: int, _values: dict[str, Any]) -> None:
    session.ledger.hold_for_all_before(number)
    session.tick.is_urgent = True


def _nothing(_session: ServerSession, _number: int, _values: dict[str, Any]) -> None:
    """Ignore results and exceptions of the broker's own commands: it sends none that have any."""


_CLASSES: Final = frozenset(bytes((code,)) for code in range(3, 11))

#: Command -> function, for commands that do not change the topology.
_COMMANDS: Final[dict[str, Callable[[ServerSession, int, dict[str, Any]], None]]] = {
    "execution.sync": _sync,
    "execution.result": _nothing,
    "execution.exception": _nothing,
    **MESSAGE_COMMANDS,
    **TRANSACTION_COMMANDS,
    **DISTRIBUTED_COMMANDS,
}
