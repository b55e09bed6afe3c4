"""A session over AMQP 0-10: its commands, their completion, settlement and transactions.

Commands are sent on the current connection (`invoke`), which completes them in ranges of their numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from qstore.broker.client.amqp_0_10.links import Call, Receiver, Sender, number_ranges
from qstore.broker.client.amqp_0_10.machine import WireConnection, WireSession
from qstore.broker.client.errors import ContentError
from qstore.broker.client.links import Delivery, ReceiverCore, SenderCore
from qstore.broker.client.message import Message
from qstore.broker.client.session import Outcome, SessionCore, raise_end
from qstore.broker.protocols.amqp_0_10.assembly import FramingError
from qstore.broker.protocols.amqp_0_10.session import State
from qstore.formats.amqp_0_10.types import Amqp010Error

_COMMANDS: Final[Mapping[Outcome, tuple[str, Mapping[str, Any]]]] = {
    Outcome.ACCEPT: ("message.accept", {}),
    Outcome.RELEASE: ("message.release", {"set_redelivered": True}),
    Outcome.REJECT: ("message.reject", {"code": 0}),
}


class Session(SessionCore):
    """A session. Its numbers are those of commands; `receivers` are by destination."""

    wire: WireSession
    _last_settling = -1  # number of the last accept or reject command on `wire`

    # ---- callbacks of the machine ----

    def on_transfer(self, number: int, destination: str, header: bytes, body: bytes) -> None:
        """Take a message, received as a command that is not completed until it is fetched.

        Raises:
            FramingError: the broker has ignored the receiver's credit.
        """
        receiver = self.receivers.get(destination)
        if receiver is None:  # closed, but sent before the broker processed the cancel
            self.wire.ledger.complete([[number, number]])
            self.wire.send("message.release", transfers=((number, number),))
            return
        if len(receiver.incoming) >= receiver.most_incoming:
            raise FramingError("the broker has sent more messages than it has credit for")
        receiver.incoming.append(Message.received(header, body, Delivery(receiver, self.wire, number)))

    # ---- commands, on the current connection ----

    async def invoke_all(self, calls: Iterable[Call]) -> list[Mapping[str, Any]]:
        """Send commands and wait until the broker has completed them. Returns their results, empty if they have none.

        Raises:
            ContentError: a field of one cannot be encoded, such as a name that is too long; it is not sent.
            SessionError: the broker has refused one, and ended the session.
            InterruptedByLoss: the connection was lost.
        """
        self.check_wire()
        wire = self.wire
        pending = list(calls)
        if not pending:
            return []
        numbers = []
        for at, (name, values) in enumerate(pending, 1):
            try:
                numbers.append(wire.send(name, sync=at == len(pending), **values))
            except Amqp010Error as error:
                raise ContentError(f"{name} cannot be sent: {error}") from None
        last = numbers[-1]
        await self.driver.wait(lambda: wire.done.below > last or not wire.is_usable)
        if wire.done.below <= last:
            raise_end(wire)
        return [wire.results.pop(number, {}) for number in numbers]

    async def invoke(self, name: str, **values: Any) -> Mapping[str, Any]:
        """Send one command and wait until the broker has completed it. See `invoke_all`."""
        return (await self.invoke_all([(name, values)]))[0]

    async def command(self, name: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """As `SessionCore.command`."""
        return (await self.retry(lambda: self.invoke_all([(name, values)])))[0]

    # ---- as a session ----

    async def attach(self) -> None:
        """As `SessionCore.attach`."""
        connection = self.connection.wire
        assert isinstance(connection, WireConnection)
        self._attachments += 1
        name = self.name if self._attachments == 1 else self.name + b".%d" % self._attachments
        wire = self.wire = connection.begin_session(name, self)
        await self.driver.wait(lambda: wire.state is not State.ATTACHING)
        self.check_wire()
        if self.is_transactional:
            await self.invoke("tx.select")

    def make_sender(self, address: str, capacity: int) -> SenderCore:
        """As `SessionCore.make_sender`."""
        return Sender(self, address, capacity)

    def make_receiver(self, address: str, capacity: int, destination: str) -> ReceiverCore:
        """As `SessionCore.make_receiver`."""
        return Receiver(self, address, capacity, destination)

    def send_outcome(self, fetched: Mapping[int, ReceiverCore], outcome: Outcome) -> int:
        """As `SessionCore.send_outcome`: the number of the command."""
        name, values = _COMMANDS[outcome]
        number = self.wire.send(name, sync=True, transfers=number_ranges(fetched), **values)
        if not self.is_transactional and outcome is not Outcome.RELEASE:  # a lost connection releases as well
            self._last_settling = number
        return number

    def is_confirmed(self, token: Any) -> bool:
        """As `SessionCore.is_confirmed`."""
        return bool(self.wire.done.below > token)

    @property
    def is_settling(self) -> bool:
        """As `SessionCore.is_settling`."""
        return self._last_settling >= 0 and self.wire.done.below <= self._last_settling

    def forget_settling(self) -> None:
        """As `SessionCore.forget_settling`."""
        self._last_settling = -1

    async def complete(self) -> None:
        """As `SessionCore.complete`."""
        await self.invoke("execution.sync")

    async def commit_wire(self) -> None:
        """As `SessionCore.commit_wire`."""
        await self.invoke("tx.commit")

    async def roll_back_wire(self, fetched: list[int]) -> None:
        """As `SessionCore.roll_back_wire`."""
        receivers = [each for each in self.receivers.values() if each.is_attached and isinstance(each, Receiver)]
        await self.invoke_all(("message.stop", {"destination": each.destination}) for each in receivers)
        waiting = sorted(number for each in receivers for number in each.take_waiting())
        calls: list[Call] = [("tx.rollback", {})]
        if waiting:
            calls.append(("message.release", {"transfers": number_ranges(waiting)}))
        if fetched:
            calls.append(("message.release", {"transfers": number_ranges(fetched), "set_redelivered": True}))
        await self.invoke_all(calls)
        self.wire.send_completed()
        for receiver in receivers:
            receiver.grant()

    async def detach_wire(self, deadline: float | None) -> None:
        """As `SessionCore.detach_wire`."""
        wire = self.wire
        if wire.is_usable:
            wire.detach()
            await self.driver.wait(lambda: wire.state is State.DETACHED, deadline)
