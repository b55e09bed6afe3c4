"""The core of a connection: made, lost, made again, closed.

    CLOSED --open--> CONNECTING --> OPEN --close--> CLOSED
                         |  ^        |
                         v  '------- | lost, with the option reconnect: sessions are attached again by `_recover`
                       FAILED <------' lost, without

A lost connection is made again in the background (`Driver.spawn`), whether somebody waits or not; calls that need it
wait until it is there, or until it is given up.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, Final

from broker.client.core_session import SessionCore
from broker.client.driver import Driver
from broker.client.errors import (
    AuthenticationError,
    ConnectError,
    ConnectionClosedError,
    ConnectionFailedError,
    MessagingError,
    Timeout,
)
from broker.client.interruption import InterruptedByLoss
from broker.client.machine import WireConnection
from broker.client.options import connection_options
from broker.client.url import Place, parse_url
from broker.protocols.amqp_0_10.connection import Phase

_BEAT: Final = 0.25  # of a heartbeat's interval: so often the machine is told that time goes by


class ConnectionState(Enum):
    """Where a connection is, as the application sees it."""

    CLOSED = auto()
    CONNECTING = auto()
    OPEN = auto()
    FAILED = auto()


class ConnectionCore:
    """A connection that outlives its sockets.

    Args:
        url: where the broker is.
        options: see `options`.

    Attributes:
        driver: set before anything else is done.
        state: where it is.
        failure: why it has failed.
        wire: the connection that is there now, or was last.
        sessions: those of the application, in the order in which they were made.
        place: the one that we are connected to.

    Raises:
        UrlError: the URL or an option cannot be used.
    """

    driver: Driver

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        parsed = parse_url(url)
        self.options = connection_options(options)
        self._places = parsed.places + self.options.reconnect_urls
        self._username = parsed.username if self.options.username is None else self.options.username
        self._password = parsed.password if self.options.password is None else self.options.password
        self.state = ConnectionState.CLOSED
        self.failure: MessagingError | None = None
        self.wire: WireConnection | None = None
        self.sessions: list[SessionCore] = []
        self.place: Place | None = None

    # ---- what the driver tells ----

    def on_data(self, data: bytes) -> None:
        """See `Events`."""
        assert self.wire is not None
        self.wire.receive(data)
        for session in self.sessions:
            session.after_input()
        if self.wire.failure is not None:
            self.driver.disconnect()
            self._lost(self.wire.failure)
        self.driver.changed()

    def on_lost(self, reason: str) -> None:
        """See `Events`."""
        assert self.wire is not None
        self.wire.lost(ConnectionFailedError(f"the connection to {self.place} is lost: {reason}"))
        self._lost(self.wire.failure or ConnectionClosedError("the connection is closed"))
        self.driver.changed()

    def on_defect(self, error: BaseException) -> None:
        """See `Events`."""
        reason = ConnectionFailedError(f"the client has failed: {error!r}")
        if self.wire is not None:
            self.wire.lost(reason)
        for session in self.sessions:
            session.on_lost()
        self._fail(reason)

    def on_beat(self) -> None:
        """See `Events`."""
        assert self.wire is not None
        self.wire.tick(self.driver.now())
        if self.wire.failure is not None:
            self.driver.disconnect()
            self._lost(self.wire.failure)
            self.driver.changed()

    def take_output(self) -> bytes:
        """See `Events`."""
        return b"" if self.wire is None else self.wire.take_output()

    def _lost(self, reason: MessagingError) -> None:
        for session in self.sessions:
            session.on_lost()
        if self.state is not ConnectionState.OPEN:
            return  # whoever connects or closes sees it
        if self.options.reconnect:
            self.state = ConnectionState.CONNECTING
            self.driver.spawn(self._recover)
        else:
            self._fail(reason)

    def _fail(self, reason: MessagingError) -> None:
        self.state = ConnectionState.FAILED
        self.failure = reason
        self.driver.changed()

    # ---- connecting ----

    async def open(self) -> None:
        """Connect.

        Raises:
            ConnectError: there is no broker, or it does not let us in.
        """
        if self.state in (ConnectionState.OPEN, ConnectionState.CONNECTING):
            raise ConnectError("the connection is open")
        self.failure = None
        self.state = ConnectionState.CONNECTING
        try:
            await self._connect()
        except BaseException:
            self.state = ConnectionState.CLOSED
            self.driver.disconnect()
            raise
        self.state = ConnectionState.OPEN

    async def _connect(self) -> None:
        """Try all places, again and again as the options say."""
        options, driver = self.options, self.driver
        give_up = None if options.reconnect_timeout is None else driver.now() + options.reconnect_timeout
        interval, rounds = options.reconnect_interval_min, 0
        while True:
            reasons = []
            for place in self._places:
                try:
                    return await self._connect_to(place)
                except AuthenticationError:
                    raise
                except (ConnectError, ConnectionFailedError) as error:
                    reasons.append(str(error))
            rounds += 1
            is_over = give_up is not None and driver.now() + interval > give_up
            if not options.reconnect or rounds == options.reconnect_limit or is_over:
                raise ConnectError("; ".join(dict.fromkeys(reasons)))
            await driver.sleep(interval)
            if self.state is not ConnectionState.CONNECTING:
                raise ConnectError("the connection was closed while it was made")
            interval = min(interval * 2, options.reconnect_interval_max)

    async def _connect_to(self, place: Place) -> None:
        driver = self.driver
        deadline = driver.now() + self.options.connect_timeout
        driver.disconnect()
        self.place = place
        wire = self.wire = WireConnection(self.options, self._username, self._password, driver.write_soon)
        await driver.connect(place, deadline, nodelay=self.options.tcp_nodelay)
        driver.write_soon()
        is_decided = await driver.wait(lambda: wire.phase in (Phase.OPEN, Phase.CLOSED), deadline)
        if wire.phase is Phase.OPEN:
            driver.beat_every(wire.heartbeat * _BEAT)
            return
        driver.disconnect()
        if not is_decided:
            raise ConnectError(f"{place}: no AMQP connection within {self.options.connect_timeout:g} seconds")
        failure = wire.failure or ConnectError("closed")
        kind = type(failure) if isinstance(failure, ConnectError) else ConnectError
        raise kind(f"{place}: {failure}")

    async def _recover(self) -> None:
        """Make the connection again, and all that was on it."""
        try:
            while self.state is ConnectionState.CONNECTING:
                await self._connect()
                try:
                    for session in list(self.sessions):
                        await session.recover()
                except InterruptedByLoss:
                    continue
                if self.wire is not None and self.wire.phase is Phase.OPEN:
                    self.state = ConnectionState.OPEN
        except MessagingError as error:
            if self.state is ConnectionState.CONNECTING:
                self._fail(error)
        self.driver.changed()

    # ---- for the application ----

    def check(self) -> None:
        """Raise why the connection cannot be used, if it cannot.

        Raises:
            ConnectionFailedError: it is closed, or has failed.
        """
        if self.state is ConnectionState.FAILED and self.failure is not None:
            raise type(self.failure)(*self.failure.args)
        if self.state is ConnectionState.CLOSED:
            raise ConnectionClosedError("the connection is closed")

    async def session(self, name: str | None, *, is_transactional: bool) -> SessionCore:
        """A new session.

        Raises:
            MessagingError: there is no connection, or the broker does not let us have a session.
        """
        session = SessionCore(self, (name or str(uuid.uuid4())).encode(), is_transactional=is_transactional)
        while True:
            await self.driver.wait(lambda: self.state is not ConnectionState.CONNECTING)
            self.check()
            try:
                await session.attach()
            except InterruptedByLoss:
                continue
            self.sessions.append(session)
            session.commands.is_ready = True
            return session

    def session_closed(self, session: SessionCore) -> None:
        """A session was closed, or could not even be used."""
        if session in self.sessions:
            self.sessions.remove(session)

    async def close(self, timeout: float | None) -> None:
        """Close all sessions, then the connection. A connection that cannot be used any more is closed all the same.

        Args:
            timeout: seconds after which nothing more is waited for that was sent and is not completed, None for no
                limit. With 0 sessions are not closed one by one, the broker does that, and nothing is said of what is
                left undone.

        Raises:
            Timeout: something is left undone.
            ConnectionFailedError: the same, because the connection was lost before.
            SessionError: the broker ended a session meanwhile, or before, and something is left undone.
        """
        deadline = None if timeout is None else self.driver.now() + timeout
        problems: list[MessagingError] = []
        try:
            for session in [] if timeout == 0 else list(self.sessions):
                try:
                    await self._close_session(session, deadline)
                except MessagingError as error:
                    problems.append(error)
            await self._close_wire(deadline)
        finally:
            self.state = ConnectionState.CLOSED
            self.driver.disconnect()
            self.sessions.clear()
            self.driver.changed()
        if problems:
            raise problems[0]

    async def _close_session(self, session: SessionCore, deadline: float | None) -> None:
        if self.state is ConnectionState.OPEN and (deadline is None or self.driver.now() < deadline):
            await session.close(deadline)
            return
        undone = ", ".join(session.undone())
        if not undone:
            return
        if self.state is ConnectionState.OPEN:
            raise Timeout(f"the connection was closed before everything was done: {undone}")
        kind = type(self.failure) if isinstance(self.failure, ConnectionFailedError) else ConnectionFailedError
        raise kind(f"{self.failure or 'the connection was lost, and not made again before it was closed'}: {undone}")

    async def _close_wire(self, deadline: float | None) -> None:
        wire = self.wire
        if self.state is not ConnectionState.OPEN or wire is None:
            return
        self.state = ConnectionState.CLOSED
        wire.close()
        limit = self.driver.now() + self.options.connect_timeout
        await self.driver.wait(lambda: wire.phase is Phase.CLOSED, limit if deadline is None else min(limit, deadline))
