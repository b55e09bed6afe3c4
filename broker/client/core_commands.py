"""The commands of a session of the application: sent, waited for, and done again when their connection is lost.

Senders and receivers work with this, and so does the session that they belong to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from broker.client.driver import Driver
from broker.client.errors import MessagingError, SessionError, Timeout
from broker.client.interruption import InterruptedByLoss
from broker.client.machine import WireConnection, WireSession
from broker.client.resolution import Call

_T = TypeVar("_T")


class UsedConnection(Protocol):
    """The connection of the application, as its sessions use it."""

    @property
    def driver(self) -> Driver:
        """Has the socket and the clock."""

    @property
    def wire(self) -> WireConnection | None:
        """The connection of AMQP that is there now, or was last."""

    def check(self) -> None:
        """Raise why the connection cannot be used, if it cannot."""


class SessionCommands:
    """What is asked of the broker in one session.

    Args:
        connection: what the session belongs to.

    Attributes:
        driver: the connection's.
        wire: the session of AMQP that is there now, or was last.
        is_ready: the application may use `wire`.
        failure: why the session has ended, None before.
    """

    wire: WireSession

    def __init__(self, connection: UsedConnection) -> None:
        self._connection = connection
        self.driver = connection.driver
        self.is_ready = False
        self.failure: SessionError | None = None

    # ---- on the connection that is there ----

    def check_wire(self) -> None:
        """Raise why `wire` cannot be used, if it cannot.

        Raises:
            SessionError: the broker has ended the session.
            InterruptedByLoss: the connection was lost.
        """
        if not self.wire.is_usable:
            _raise_end(self.wire)

    async def invoke_all(self, calls: Iterable[Call]) -> list[Mapping[str, Any]]:
        """Send commands and wait until the broker has done them. Gives their results, empty for those without.

        Raises:
            SessionError: the broker refused one; the session is over.
            InterruptedByLoss: the connection was lost meanwhile.
        """
        self.check_wire()
        wire = self.wire
        pending = list(calls)
        if not pending:
            return []
        numbers = [wire.send(name, **values) for name, values in pending[:-1]]
        name, values = pending[-1]
        last = wire.send(name, sync=True, **values)
        numbers.append(last)
        await self.driver.wait(lambda: wire.done.below > last or not wire.is_usable)
        if wire.done.below <= last:
            _raise_end(wire)
        return [wire.results.pop(number, {}) for number in numbers]

    async def invoke(self, name: str, **values: Any) -> Mapping[str, Any]:
        """Send one command and wait until the broker has done it. See `invoke_all`."""
        return (await self.invoke_all([(name, values)]))[0]

    # ---- over one connection after the other ----

    def check(self) -> None:
        """Raise why the session cannot be used, if it cannot.

        Raises:
            MessagingError: it has failed, or is closed, or its connection is.
        """
        if self.failure is not None:
            raise type(self.failure)(str(self.failure), self.failure.code)
        self._connection.check()

    async def wait(self, is_ready: Callable[[], bool], deadline: float | None) -> bool:
        """Wait for something of this session, over as many connections as it takes. Returns whether it is there.

        Raises:
            MessagingError: the session has failed, or is closed, or its connection is.
        """
        found = await self.driver.wait(lambda: is_ready() or not self._may_be_used, deadline)
        if not is_ready():
            self.check()
        return found

    @property
    def _may_be_used(self) -> bool:
        try:
            self.check()
        except MessagingError:
            return False
        return True

    async def again(self, work: Callable[[], Awaitable[_T]], deadline: float | None = None) -> _T:
        """Do something that takes the broker, and again on another connection if this one is lost.

        Raises:
            Timeout: there was no connection until the deadline.
            MessagingError: see `wait`; and what `work` raises.
        """
        while True:
            if not await self.wait(lambda: self.is_ready, deadline):
                raise Timeout("the connection was lost, and was not made again in time")
            try:
                return await work()
            except InterruptedByLoss:
                # Whoever drives the socket has seen the loss too; without that there would be no end to this.
                await self.wait(lambda: not self.is_ready, None)
            except SessionError as error:
                if self.failure is None and self.wire.failure is not None:
                    self.fail(error)
                raise

    def fail(self, error: SessionError) -> None:
        """The broker has ended the session."""
        self.is_ready, self.failure = False, error


def _raise_end(wire: WireSession) -> None:
    """Raise why `wire` can no longer be used."""
    failure = wire.failure
    if isinstance(failure, SessionError):
        raise SessionError(str(failure), failure.code)
    raise InterruptedByLoss(str(failure))
