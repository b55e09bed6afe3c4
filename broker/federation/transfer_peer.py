"""The broker as a client of a broker over AMQP 0-10: a side (`peer`) with a session.

    source         messages arrive in window mode: one that is not completed takes one of the places of the prefetch
                   count. It is completed when it is acknowledged, or at once if it needs no acknowledgement
    destination    the broker completes a transfer when the message is on its disk. One that it refuses ends the session

Numbers and tags begin with 1, as those of AMQP 0-9-1 (`carrier`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.federation.link_peer import MessageOwner
from qstore.broker.federation.peer import Choose, PeerMachine, PeerNetwork, PeerSide
from qstore.broker.federation.uri import AmqpUri
from qstore.broker.model.completion import Done
from qstore.broker.model.message import Content
from qstore.broker.protocols.amqp_0_10.client_connection import ClientConnection, ClientSession
from qstore.broker.protocols.amqp_0_10.message import received_transfer
from qstore.broker.protocols.amqp_0_10.session import detach_reason, unwrap, wrap_ranges
from qstore.broker.protocols.connection import Phase
from qstore.formats.amqp_0_10.codes import AcceptMode, AcquireMode, CloseCode, CreditUnit, FlowMode
from qstore.formats.amqp_0_10.commands import decode_command, decode_result
from qstore.formats.amqp_0_10.types import Amqp010Error
from qstore.formats.broker_records.topology import DEFAULT_HOST
from qstore.formats.values import TypedMap

if TYPE_CHECKING:
    from qstore.broker.model.broker import Broker

_TRANSFER: Final = b"\x04\x01"
_DESTINATION: Final = "shovel"
_UNLIMITED: Final = 0xFFFFFFFF
_HEARTBEAT: Final = 60
_REPORTS: Final = 4  # how often completions are sent for each prefetch count of messages
_NORMAL: Final = 200


class TransferWire(ClientConnection):
    """The client's end of a connection.

    Args:
        side: its owner.
        machine: its machine.
        choose: chooses the mechanism.
        uri: the broker, as its URI describes it.
        name: the connection's name, which the other broker shows.
        max_message_bytes: as of `ClientConnection`.
    """

    def __init__(
        self, side: TransferSide, machine: PeerMachine, choose: Choose, uri: AmqpUri, name: str, max_message_bytes: int
    ) -> None:
        self._machine, self._side = machine, side
        super().__init__(
            choose, client_properties={"connection_name": name},
            virtual_host="" if uri.vhost == DEFAULT_HOST else uri.vhost,
            heartbeat=_HEARTBEAT if uri.heartbeat is None else uri.heartbeat, max_message_bytes=max_message_bytes,
        )  # fmt: skip

    def has_output(self) -> None:
        """Send the output at the end of the tick."""
        self._machine.has_output()

    def receive(self, data: bytes) -> None:
        """As `Connection.receive`."""
        super().receive(data)
        self._side.after_input()

    def resume(self) -> None:
        """As `Connection.resume`."""
        super().resume()
        self._side.after_input()
        self._machine.wire_resumed()

    def on_open(self) -> None:
        """The connection is open: attach the session."""
        self._side.on_open()

    def on_closed(self) -> None:
        """The connection is closed or lost."""
        if self.close_text and self.close_code != _NORMAL:
            self._side.lost(self.close_text)
        self.sessions.clear()
        self._machine.wire_closed()


class TransferSide(PeerSide):
    """A connection with a session; its arguments are those of `PeerSide`."""

    _transfers: TransferWire | None
    _session: TransferSession

    def __init__(
        self,
        owner: MessageOwner,
        broker: Broker,
        network: PeerNetwork,
        uris: Sequence[AmqpUri],
        user: str,
        name: str,
    ) -> None:
        super().__init__(owner, broker, network, uris, user, name)
        self._transfers = None
        self._owner = owner

    def make_wire(self, machine_of: Callable[[str], PeerMachine], choose: Choose) -> PeerMachine:
        """As `PeerSide.make_wire`."""
        machine, limit = machine_of("AMQP 0-10"), self._broker.settings.max_message_bytes
        wire = self.wire = self._transfers = TransferWire(self, machine, choose, self.uri, self._name, limit)
        machine.connect(wire)
        return machine

    def force_close(self, text: str) -> None:
        """As `PeerSide.force_close`."""
        if self._transfers is not None:
            self._transfers.fail(CloseCode.CONNECTION_FORCED, text)

    @property
    def channel(self) -> TransferSession:
        """As `PeerSide.channel`: its session."""
        return self._session

    def on_open(self) -> None:
        """The connection is open."""
        assert self._transfers is not None
        self._session = TransferSession(self, self._owner, self._transfers)
        self._transfers.attach(self._session)

    def after_input(self) -> None:
        """What was read was processed."""
        wire = self._transfers
        if wire is not None and wire.phase is Phase.OPEN and wire.sessions:
            self.channel.report()


class TransferSession(ClientSession):
    """The session of a side, with what `carrier` needs of a channel.

    Args:
        side: the side.
        owner: what it is for.
        wire: the connection.

    Attributes:
        confirms: whether messages that are sent are confirmed.
        published: the number of the last message that was sent.
    """

    def __init__(self, side: TransferSide, owner: MessageOwner, wire: TransferWire) -> None:
        super().__init__(f"shovel.{uuid.uuid4()}".encode(), 0, wire)
        self._side, self._owner, self._wire = side, owner, wire
        self.confirms = False
        self.published = 0
        self._confirmed = Done(1)
        self._pending: dict[int, int] = {}  # command -> number of a message, in ascending order
        self._results: dict[int, Callable[[Mapping[str, Any]], None]] = {}
        self._completions: dict[int, Callable[[], None]] = {}
        self._unsettled: dict[int, None] = {}  # tags, in ascending order
        self._prefetch = self._unreported = 0
        self._no_ack = False

    # ---- what happens to it ----

    def on_attached(self) -> None:
        """As `ClientSession.on_attached`."""
        self._side.opened()

    def on_detached(self, code: int) -> None:
        """As `ClientSession.on_detached`."""
        self._side.fail(f"the broker has detached the session: {detach_reason(code)}")

    def on_peer_completed(self, first: int, last: int) -> None:
        """As `Session.on_peer_completed`: messages are on the broker's disk, and calls are done."""
        if self._side.is_over:
            return
        for number in [number for number in self._completions if first <= number <= last]:
            self._completions.pop(number)()
        pending = self._pending
        if not pending:
            return
        numbers = [pending.pop(each) for each in range(max(first, next(iter(pending))), last + 1) if each in pending]
        for begin, end in _runs(numbers):
            self._confirmed.add(begin, end)
            self._owner.on_confirmed(begin, end, is_accepted=True)

    def on_command(self, payload: bytes, header: bytes | None, body: bytes | None) -> None:
        """As `ClientSession.on_command`."""
        number = self.begin_command()
        if number < 0 or self._side.is_over:
            return
        if payload[:2] == _TRANSFER:
            self._on_transfer(number, header or b"", body or b"")
            return
        command, _, values = decode_command(payload)
        if command.name == "execution.result":
            done = self._results.pop(unwrap(values["command_id"] or 0, self.sent), None)
            if done is not None:
                done(decode_result(values["value"] or b"")[1])
        elif command.name == "execution.exception":
            self._side.fail(values["description"] or f"error {values['error_code']}")

    def report(self) -> None:
        """Complete what does not wait, and report it if it is worth it."""
        self.complete_received()
        if self._no_ack and self._unreported * _REPORTS >= self._prefetch:
            self._unreported = 0
            self.send_completed()

    # ---- topology ----

    def _call(self, command: str, /, done: Callable[[], None], **values: Any) -> None:
        self._completions[self.send(command, sync=True, **values)] = done

    def _ask(self, command: str, /, done: Callable[[Mapping[str, Any]], None], **values: Any) -> None:
        self._results[self.send(command, sync=True, **values)] = done

    def ensure_queue(self, name: str, arguments: TypedMap, done: Callable[[int], None]) -> None:
        """Make sure that a queue exists: one that does not is declared, durable. Calls back with its messages."""

        def looked(found: Mapping[str, Any]) -> None:
            if found.get("queue"):
                done(int(found.get("message_count") or 0))
            else:
                self._call("queue.declare", lambda: done(0), queue=name, durable=True, arguments=arguments or None)

        self._ask("queue.query", looked, queue=name)

    def check_exchange(self, name: str, done: Callable[[], None]) -> None:
        """Make sure that an exchange exists."""

        def looked(found: Mapping[str, Any]) -> None:
            if found.get("not_found"):
                self._side.fail(f'there is no exchange "{name}"')
            else:
                done()

        if name:
            self._ask("exchange.query", looked, name=name)
        else:
            done()

    def bind_own_queue(self, exchange: str, key: str, done: Callable[[str], None]) -> None:
        """Declare a queue that ends with the session, and bind it. Calls back with its name."""
        name = f"shovel_{uuid.uuid4()}"
        self.send("queue.declare", queue=name, exclusive=True, auto_delete=True)
        self._call("exchange.bind", lambda: done(name), queue=name, exchange=exchange, binding_key=key)

    # ---- as a destination ----

    def publish(self, payload: bytes, header: bytes, body: Content) -> int:
        """Send a message: message.transfer, its header segment and its body. Returns its number."""
        self.published += 1
        command = self.send_payload(payload, header, body)
        if self.confirms:
            self._pending[command] = self.published
        return self.published

    @property
    def settled_below(self) -> int:
        """All messages with numbers below this are confirmed."""
        return self._confirmed.below

    # ---- as a source ----

    def subscribe(self, queue: str, prefetch: int, *, no_ack: bool, done: Callable[[], None]) -> None:
        """Have messages sent."""
        self._prefetch, self._no_ack = prefetch, no_ack
        self.send(
            "message.subscribe", queue=queue, destination=_DESTINATION,
            accept_mode=AcceptMode.NONE if no_ack else AcceptMode.EXPLICIT, acquire_mode=AcquireMode.PRE_ACQUIRED,
        )  # fmt: skip
        self.send("message.set-flow-mode", destination=_DESTINATION, flow_mode=FlowMode.WINDOW)
        self._call("execution.sync", lambda: self._begin(prefetch, done))

    def _begin(self, prefetch: int, done: Callable[[], None]) -> None:
        done()
        self.send("message.flow", destination=_DESTINATION, unit=CreditUnit.BYTE, value=_UNLIMITED)
        self.send("message.flow", destination=_DESTINATION, unit=CreditUnit.MESSAGE, value=prefetch)

    def _on_transfer(self, number: int, header: bytes, body: bytes) -> None:
        try:
            message = received_transfer(header, body, self._side.now)
        except Amqp010Error as error:
            self._side.fail(f"a message cannot be read: {error}")
            return
        if self._no_ack:
            self._unreported += 1
        else:
            self.ledger.hold(number)
            self._unsettled[number + 1] = None
        self._owner.on_message(number + 1, message)

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        """Accept a message, or all up to it."""
        unsettled, tags = self._unsettled, [tag]
        if multiple:
            tags = []
            while unsettled and (each := next(iter(unsettled))) <= tag:
                del unsettled[each]
                tags.append(each)
        else:
            unsettled.pop(tag, None)
        self._settle("message.accept", tags)

    def nack(self, tag: int) -> None:
        """Return a message to its queue."""
        self._unsettled.pop(tag, None)
        self._settle("message.release", [tag], set_redelivered=True)

    def _settle(self, name: str, tags: list[int], **values: Any) -> None:
        runs = [(first - 1, last - 1) for first, last in _runs(tags)]
        if runs and self._wire.phase is Phase.OPEN:
            self.send(name, transfers=wrap_ranges(runs), **values)
            self.ledger.complete([[first, last] for first, last in runs])
            self.complete_received()
            self.send_completed()

    def synchronize(self, done: Callable[[], None]) -> None:
        """Stop the messages, and call when the broker has processed what was acknowledged."""
        self.send("message.stop", destination=_DESTINATION)
        self._call("execution.sync", done)


def _runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """The runs of ascending numbers."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs
