"""A session over AMQP 1.0: outcomes in both directions, and transactions.

    accept        `accepted`
    release       `modified` with delivery-failed, since it counts as delivered
    reject        `rejected`

Outcomes are confirmed if the broker settles after the receiver (`links`); in a transaction, by its commit.

**Transactions.** A transactional session has a link to the coordinator. It declares a transaction when it begins, and
another one after each commit or roll back. Messages are sent, and accepted, with the transaction's state.

Source: AMQP 1.0, part "transactions", section 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from qstore.broker.client.amqp_1_0.links import (
    RELEASED,
    RETURNED,
    Receiver,
    Sender,
    error_of_outcome,
)
from qstore.broker.client.amqp_1_0.machine import WireConnection, WireSession
from qstore.broker.client.errors import SessionError, TransactionAborted
from qstore.broker.client.links import ReceiverCore, SenderCore, ranges_of
from qstore.broker.client.session import Outcome, SessionCore
from qstore.broker.protocols.amqp_1_0.client_connection import SendingLink, error_text
from qstore.formats.amqp_1_0.composites import Composite, encode_composite
from qstore.formats.amqp_1_0.sections import VALUE
from qstore.formats.amqp_1_0.values import Value

_OUTCOMES: Final = {
    Outcome.ACCEPT: Composite("accepted", {}),
    Outcome.RELEASE: RETURNED,
    Outcome.REJECT: Composite("rejected", {}),
}
_VALUE: Final = bytes((0x00, 0x53, VALUE))


class _Coordinator:
    """The link to the coordinator of transactions; the owner of the machine's link.

    Attributes:
        link: the machine's.
        error: the broker's, once it has ended.
        is_over: whether it has ended.
    """

    link: SendingLink

    def __init__(self) -> None:
        self.error: Composite | None = None
        self.is_over = False

    def on_attached(self) -> None:
        """As `LinkOwner.on_attached`."""

    def on_ended(self, error: Composite | None) -> None:
        """As `LinkOwner.on_ended`."""
        self.error, self.is_over = error, True

    def on_credit(self) -> None:
        """As `LinkOwner.on_credit`."""

    def on_message(self, number: int, content: Any, *, is_settled: bool) -> None:
        """As `LinkOwner.on_message`: none comes."""


class Session(SessionCore):
    """A session."""

    wire: WireSession

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._settling: dict[int, bool] = {}  # unconfirmed outcomes: number -> whether a lost connection may undo it
        self._commands: dict[int, Composite | None] = {}  # number of a command to the coordinator -> its outcome
        self._coordinator = _Coordinator()
        self._txn_id: Value | None = None

    # ---- callbacks of the machine ----

    def on_outcome(self, first: int, last: int, state: Composite | None) -> None:
        """Messages that were sent have an outcome."""
        for number in self._commands:
            if first <= number <= last:
                self._commands[number] = state
        self.on_settled(first, last, error_of_outcome(state))

    def on_broker_settled(self, first: int, last: int) -> None:
        """The broker has settled messages that were received."""
        settling = self._settling
        for number in range(first, last + 1) if last - first < len(settling) else list(settling):
            if first <= number <= last:
                settling.pop(number, None)

    def drop_unsettled(self, sender: Sender) -> None:
        """A sender has failed: nothing more is confirmed of what it has sent, which it counts."""
        for number in [number for number, each in self.unsettled.items() if each.sender is sender]:
            del self.unsettled[number]

    def forget_fetched(self, receiver: Receiver) -> None:
        """A receiver is closed: what was fetched from it and not acknowledged returns to its queue."""
        for number in [number for number, each in self.unaccepted.items() if each is receiver]:
            del self.unaccepted[number]

    # ---- as a session ----

    async def attach(self) -> None:
        """As `SessionCore.attach`."""
        connection = self.connection.wire
        assert isinstance(connection, WireConnection)
        self._commands.clear()
        wire = self.wire = connection.open_session(self)
        await self.driver.wait(lambda: wire.is_decided)
        self.check_wire()
        if self.is_transactional:
            await self._attach_coordinator()
            await self._declare()

    def make_sender(self, address: str, capacity: int) -> SenderCore:
        """As `SessionCore.make_sender`."""
        return Sender(self, address, capacity)

    def make_receiver(self, address: str, capacity: int, destination: str) -> ReceiverCore:
        """As `SessionCore.make_receiver`."""
        return Receiver(self, address, capacity, destination)

    def send_outcome(
        self, fetched: Mapping[int, ReceiverCore], outcome: Outcome
    ) -> tuple[dict[int, bool], frozenset[int]]:
        """As `SessionCore.send_outcome`: what waits on this connection, and the numbers of it that were sent."""
        machine, state = self.wire.session, _OUTCOMES[outcome]
        if self.is_transactional and outcome is Outcome.ACCEPT:
            machine.settle(ranges_of(fetched), self._state(state), is_settled=True)
            return self._settling, frozenset()
        confirmed = [number for number, each in fetched.items() if isinstance(each, Receiver) and each.is_confirmed]
        waiting = frozenset(confirmed)
        machine.settle(ranges_of(number for number in fetched if number not in waiting), state, is_settled=True)
        machine.settle(ranges_of(confirmed), state, is_settled=False)
        self._settling.update(dict.fromkeys(confirmed, outcome is not Outcome.RELEASE))  # which a loss does as well
        return self._settling, waiting

    def is_confirmed(self, token: Any) -> bool:
        """As `SessionCore.is_confirmed`."""
        settling, numbers = token
        return bool(settling.keys().isdisjoint(numbers))

    @property
    def is_settling(self) -> bool:
        """As `SessionCore.is_settling`."""
        return any(self._settling.values())

    def forget_settling(self) -> None:
        """As `SessionCore.forget_settling`: what was sent stays unconfirmed."""
        self._settling = {}

    async def complete(self) -> None:
        """As `SessionCore.complete`: the broker completes by itself."""
        wire = self.wire
        await self.driver.wait(lambda: not self._settling or not wire.is_usable)
        self.check_wire()

    async def detach_wire(self, deadline: float | None) -> None:
        """As `SessionCore.detach_wire`."""
        wire = self.wire
        if wire.is_usable:
            wire.session.end()
            await self.driver.wait(lambda: wire.session.is_ended, deadline)

    # ---- transactions ----

    def _state(self, outcome: Composite | None = None) -> Composite:
        return Composite("transactional-state", {"txn_id": self._txn_id, "outcome": outcome})

    def state_of(self) -> Composite | None:
        """The state of messages that are sent; None without a transaction."""
        return self._state() if self.is_transactional else None

    async def _attach_coordinator(self) -> None:
        found = self._coordinator = _Coordinator()
        found.link = self.wire.session.attach_sender(
            f"transactions of {self.name.decode('utf-8', 'replace')}", found,
            source=Composite("source", {}), target=Composite("coordinator", {}),
        )  # fmt: skip
        await self._wait_for_coordinator()

    async def _wait_for_coordinator(self) -> None:
        """Wait until it takes a command. Raises SessionError and InterruptedByLoss."""
        found = self._coordinator
        await self.driver.wait(lambda: found.link.can_send or found.is_over or not self.wire.is_usable)
        self.check_wire()
        if found.is_over:
            text = "the broker has ended its link" if found.error is None else error_text(found.error)
            raise SessionError(f"transactions: {text}")

    async def _command(self, name: str, **fields: Any) -> Composite | None:
        """Send a command to the coordinator, and return its outcome. Raises SessionError and InterruptedByLoss."""
        await self._wait_for_coordinator()
        found, commands = self._coordinator, self._commands
        number = found.link.transfer(b"", _VALUE + encode_composite(name, fields))
        commands[number] = None
        await self.driver.wait(lambda: commands.get(number) is not None or found.is_over or not self.wire.is_usable)
        state = commands.pop(number, None)
        if state is None:
            await self._wait_for_coordinator()
        return state

    async def _declare(self) -> None:
        state = await self._command("declare")
        if state is None or state.name != "declared":
            raise SessionError(f"the broker declares no transaction: {error_of_outcome(state)}")
        self._txn_id = state.fields["txn_id"]

    async def commit_wire(self) -> None:
        """As `SessionCore.commit_wire`."""
        state = await self._command("discharge", txn_id=self._txn_id, fail=False)
        await self._declare()
        if state is None or state.name != "accepted":
            raise TransactionAborted(f"the commit was refused: {error_of_outcome(state)}")

    async def roll_back_wire(self, fetched: list[int]) -> None:
        """As `SessionCore.roll_back_wire`. What was accepted is released by the broker."""
        receivers = [each for each in self.receivers.values() if each.is_attached and isinstance(each, Receiver)]
        for receiver in receivers:
            receiver.withhold()
        await self._command("discharge", txn_id=self._txn_id, fail=True)
        await self._declare()
        waiting = sorted(number for each in receivers for number in each.take_waiting())
        self._release(waiting, RELEASED)
        self._release([number for number in fetched if number in self.unaccepted], RETURNED)
        for receiver in receivers:
            receiver.grant()

    def _release(self, numbers: Iterable[int], state: Composite) -> None:
        self.wire.session.settle(ranges_of(numbers), state, is_settled=True)
