"""The commands of an application's session: sent, waited for, and repeated when their connection is lost.

It is used by the session, and by its senders and receivers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from qstore.broker.client.driver import Driver
from qstore.broker.client.errors import ContentError, MessagingError, SessionError, Timeout
from qstore.broker.client.interruption import InterruptedByLoss
from qstore.broker.client.machine import WireConnection, WireSession
from qstore.broker.client.resolution import Call
from qstore.formats.amqp_0_10.types import Amqp010Error

_T = TypeVar("_T")


class UsedConnection(Protocol):
    """The application's connection, as its sessions use it."""

    @property
    def driver(self) -> Driver:
        """The owner of socket and clock."""

    @property
    def wire(self) -> WireConnection | None:
        """The current AMQP connection, or the last one."""

    def check(self) -> None:
        """Raise an error if the connection is closed or has failed."""


class SessionCommands:
    """The commands of one session.

    Args:
        connection: the session's connection.

    Attributes:
        driver: the connection's driver.
        wire: the current AMQP session, or the last one.
        is_ready: whether the application may use `wire`.
        failure: why the session has ended; None before.
    """

    wire: WireSession

    def __init__(self, connection: UsedConnection) -> None:
        self._connection = connection
        self.driver = connection.driver
        self.is_ready = False
        self.failure: SessionError | None = None

    # ---- on the current connection ----

    def check_wire(self) -> None:
        """Raise an error if `wire` cannot be used.

        Raises:
            SessionError: the broker has ended the session.
            InterruptedByLoss: the connection was lost.
        """
        if not self.wire.is_usable:
            _raise_end(self.wire)

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
            _raise_end(wire)
        return [wire.results.pop(number, {}) for number in numbers]

    async def invoke(self, name: str, **values: Any) -> Mapping[str, Any]:
        """Send one command and wait until the broker has completed it. See `invoke_all`."""
        return (await self.invoke_all([(name, values)]))[0]

    # ---- across connections ----

    def check(self) -> None:
        """Raise an error if the session cannot be used.

        Raises:
            MessagingError: the session or its connection has failed or is closed.
        """
        if self.failure is not None:
            raise type(self.failure)(str(self.failure), self.failure.code)
        self._connection.check()

    async def wait(self, is_ready: Callable[[], bool], deadline: float | None) -> bool:
        """Wait for a condition of this session, across reconnects. Returns whether it is met.

        Raises:
            MessagingError: the session or its connection has failed or is closed.
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

    async def retry(self, work: Callable[[], Awaitable[_T]], deadline: float | None = None) -> _T:
        """Do some work with the broker, and repeat it on another connection if this one is lost.

        Raises:
            Timeout: there was no connection until the deadline.
            MessagingError: see `wait`; also any error of `work`.
        """
        while True:
            if not await self.wait(lambda: self.is_ready, deadline):
                raise Timeout("the connection was lost and not restored in time")
            try:
                return await work()
            except InterruptedByLoss:
                # Wait until the driver has reported the loss; otherwise this would loop forever.
                await self.wait(lambda: not self.is_ready, None)
            except SessionError as error:
                if self.failure is None and self.wire.failure is not None:
                    self.fail(error)
                raise

    def fail(self, error: SessionError) -> None:
        """The broker has ended the session."""
        self.is_ready, self.failure = False, error


def _raise_end(wire: WireSession) -> None:
    """Raise the error that has ended `wire`."""
    failure = wire.failure
    if isinstance(failure, SessionError):
        raise SessionError(str(failure), failure.code)
    raise InterruptedByLoss(str(failure))
