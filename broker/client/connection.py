"""A connection: opened, lost, reconnected, closed; and the interface to the driver of its socket and clock.

    CLOSED --open--> CONNECTING --> OPEN --close--> CLOSED
                         |  ^        |
                         v  '------- | lost, with the option reconnect: `_recover` attaches the sessions again
                       FAILED <------' lost, without it

A lost connection is restored in the background (`Driver.spawn`), even if no call is waiting; calls that need it wait
until it is open again, or until reconnecting has failed.

The core (connections, sessions, links) is written as coroutines that wait only for a condition that depends on the
broker's data (`Driver.wait`), or for time to pass. A driver owns the socket and the clock. There are two drivers:

    blocking    a dedicated thread reads and writes the socket; callers wait for that thread, and their coroutines
                never suspend
    aio         everything runs in one asyncio event loop

The core is not thread-safe: only one thread may run in it at a time, and another thread may enter it only while a
coroutine waits.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import logging
import ssl
import uuid
from collections.abc import Callable, Coroutine, Mapping
from enum import Enum, auto
from typing import Any, Final, Protocol

from qstore.broker.client.address import CLIENT_LOGGER
from qstore.broker.client.amqp_0_10 import machine as amqp_0_10
from qstore.broker.client.amqp_0_10.session import Session as Amqp010Session
from qstore.broker.client.amqp_1_0 import machine as amqp_1_0
from qstore.broker.client.amqp_1_0.session import Session as Amqp10Session
from qstore.broker.client.errors import (
    AuthenticationError,
    ConnectError,
    ConnectionClosedError,
    ConnectionFailedError,
    ConnectionRedirected,
    InterruptedByLoss,
    MessagingError,
    NotFound,
    SessionError,
    Timeout,
    UrlError,
)
from qstore.broker.client.links import ReceiverCore
from qstore.broker.client.options import (
    AMQP_0_10,
    AMQP_1_0,
    ConnectionOptions,
    Destination,
    Endpoint,
    idle_options,
    parse_url,
)
from qstore.broker.client.session import SessionCore
from qstore.broker.model.exchanges.failover import FAILOVER
from qstore.broker.protocols.amqp_0_10.message import announced_hosts
from qstore.broker.protocols.connection import Phase
from qstore.broker.security.sasl.table import Credentials
from qstore.broker.security.tls import tls_reason
from qstore.formats.named_tuple import NamedTuple

_logger: Final = logging.getLogger(CLIENT_LOGGER)
_ANNOUNCEMENTS: Final = f"{FAILOVER}; {{link: {{reliability: unreliable}}}}"
_MAX_UPDATES: Final = 10  # messages prefetched
_MAX_ANNOUNCED: Final = 64  # addresses


class Driver(Protocol):
    """Socket, clock and waiting."""

    #: Whether the limit of unsent bytes is reached, so that no more messages should be sent.
    is_full: bool

    def now(self) -> float:
        """The time of a monotonic clock, in seconds."""

    async def connect(self, endpoint: Endpoint, deadline: float, *, nodelay: bool, tls: ssl.SSLContext | None) -> None:
        """Connect a socket to `endpoint`, and encrypt the connection with `tls`; the previous one is disconnected.

        Raises:
            ConnectError: the connection was refused, not established until `deadline`, or cannot be encrypted.
        """

    def disconnect(self) -> None:
        """Send pending data as far as possible without waiting, and close the socket. No callback is called."""

    async def wait(self, is_ready: Callable[[], bool], deadline: float | None = None) -> bool:
        """Wait until `is_ready()` is true or the deadline has passed. Returns the result of `is_ready()`."""

    async def sleep(self, seconds: float) -> None:
        """Sleep, at most until the connection is closed."""

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine in the background."""

    def beat_every(self, seconds: float) -> None:
        """Call `ConnectionCore.on_beat` every `seconds` until `disconnect`; 0 for never."""

    def write_soon(self) -> None:
        """Schedule sending, since there is output to take."""

    def changed(self) -> None:
        """Let all waiting coroutines check their conditions."""


class WireConnection(Protocol):
    """The client's end of one connection, in some protocol.

    Attributes:
        failure: why it has ended; None before, and after a close that the client requested.
    """

    failure: MessagingError | None

    @property
    def phase(self) -> Phase:
        """Its phase."""

    @property
    def heartbeat(self) -> int:
        """Seconds between heartbeats; 0 for none."""

    def receive(self, data: bytes) -> None:
        """Process received bytes."""

    def take_output(self) -> bytes:
        """Take the bytes to send."""

    def on_timer(self, now: float) -> None:
        """Check the heartbeat; called at intervals with the time of a monotonic clock, in seconds."""

    def close(self) -> None:
        """Ask the broker to close it."""

    def lost(self, reason: MessagingError) -> None:
        """The socket was closed."""


class _WireKind(NamedTuple):
    """A protocol: makes connections, and sessions."""

    connect: Callable[[ConnectionOptions, Credentials, Callable[[], None]], WireConnection]
    session: Callable[..., SessionCore]


_PROTOCOLS: Final = {
    AMQP_0_10: _WireKind(amqp_0_10.WireConnection, Amqp010Session),
    AMQP_1_0: _WireKind(amqp_1_0.WireConnection, Amqp10Session),
}

# ---- connections ----

_BEAT: Final = 0.25  # fraction of the heartbeat interval after which the machine checks the time


class ConnectionState(Enum):
    """The state of a connection, as the application sees it."""

    CLOSED = auto()
    CONNECTING = auto()
    OPEN = auto()
    FAILED = auto()


class ConnectionCore:
    """A connection that outlives its sockets.

    Args:
        url: the broker's URL.
        options: see `options`.

    Attributes:
        driver: must be set before any other use.
        state: the current state.
        failure: why it has failed; None before.
        wire: the current AMQP connection, or the last one.
        sessions: the application's sessions, in the order of their creation.
        endpoint: the host and port of the current connection.

    Raises:
        UrlError: the URL or an option is invalid.
    """

    driver: Driver

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._destination = Destination(url, options)
        self.options = self._destination.options
        for name, why in idle_options(self._destination).items():
            _logger.warning("The connection option %s has no effect: %s", name, why)
        self._configured = self._destination.endpoints + self.options.reconnect_urls
        self._announced: tuple[Endpoint, ...] = ()
        self._updates: ReceiverCore | None = None
        self.state = ConnectionState.CLOSED
        self.failure: MessagingError | None = None
        self.wire: WireConnection | None = None
        self.sessions: list[SessionCore] = []
        self.endpoint: Endpoint | None = None

    # ---- callbacks of the driver ----

    def on_data(self, data: bytes) -> None:
        """The socket has received data."""
        assert self.wire is not None
        self.wire.receive(data)
        for session in self.sessions:
            session.after_input()
        if self._updates is not None:
            self._take_updates(self._updates)
        if self.wire.failure is not None:
            self.driver.disconnect()
            self._lost(self.wire.failure)
        self.driver.changed()

    def on_lost(self, reason: str) -> None:
        """The socket was closed by the broker, or has failed."""
        assert self.wire is not None
        self.wire.lost(ConnectionFailedError(f"the connection to {self.endpoint} was lost: {reason}"))
        self._lost(self.wire.failure or ConnectionClosedError("the connection is closed"))
        self.driver.changed()

    def on_defect(self, error: BaseException) -> None:
        """The driver has ended because of an unhandled exception."""
        reason = ConnectionFailedError(f"unhandled exception in the client: {error!r}")
        if self.wire is not None:
            self.wire.lost(reason)
        for session in self.sessions:
            session.on_lost()
        self._fail(reason)

    def on_beat(self) -> None:
        """The interval of `Driver.beat_every` has passed."""
        assert self.wire is not None
        self.wire.on_timer(self.driver.now())
        if self.wire.failure is not None:
            self.driver.disconnect()
            self._lost(self.wire.failure)
            self.driver.changed()

    def take_output(self) -> bytes:
        """Take the bytes to send."""
        return b"" if self.wire is None else self.wire.take_output()

    def _lost(self, reason: MessagingError) -> None:
        for session in self.sessions:
            session.on_lost()
        if self.state is not ConnectionState.OPEN:
            return  # connecting or closing handles it
        if self.options.reconnect and not isinstance(reason, ConnectionRedirected):
            self.state = ConnectionState.CONNECTING
            _logger.info("Reconnecting: %s", reason)
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
            ConnectError: the broker cannot be reached, or has refused the connection.
        """
        if self.state in (ConnectionState.OPEN, ConnectionState.CONNECTING):
            raise ConnectError("the connection is already open")
        self.failure = None
        self.state = ConnectionState.CONNECTING
        try:
            await self._connect()
        except BaseException:
            self.state = ConnectionState.CLOSED
            self.driver.disconnect()
            raise
        self.state = ConnectionState.OPEN
        if self.options.failover_updates and self.options.protocol == AMQP_0_10:
            await self._follow()

    async def _follow(self) -> None:
        """Listen to the addresses that the broker announces, if it does, and this user may."""
        session = await self.session(None, is_transactional=False)
        try:
            self._updates = await session.receiver(_ANNOUNCEMENTS, _MAX_UPDATES)
        except NotFound:
            await session.close(None)
        except SessionError:
            self.session_closed(session)

    def _take_updates(self, receiver: ReceiverCore) -> None:
        """Use the addresses that were announced last, in place of those before.

        A connection that is encrypted stays so: others would send the password in clear.
        """
        while (message := receiver.try_fetch()) is not None:
            found: list[Endpoint] = []
            urls = announced_hosts(message.header)
            if not urls:
                continue
            for url in urls:
                with contextlib.suppress(UrlError):
                    found.extend(parse_url(url).endpoints)
            is_encrypted = self.endpoint is not None and self.endpoint.is_encrypted
            usable = [each for each in found if each.is_encrypted or not is_encrypted]
            self._announced = tuple(dict.fromkeys(usable))[:_MAX_ANNOUNCED]

    async def _connect(self) -> None:
        """Try all endpoints, repeatedly if the options request it."""
        options, driver = self.options, self.driver
        give_up = None if options.reconnect_timeout is None else driver.now() + options.reconnect_timeout
        interval, rounds = options.reconnect_interval_min, 0
        while True:
            reasons = []
            for endpoint in dict.fromkeys(self._configured + self._announced):
                try:
                    return await self._connect_to(endpoint)
                except (AuthenticationError, ConnectionRedirected):
                    raise
                except (ConnectError, ConnectionFailedError) as error:
                    reasons.append(str(error))
            rounds += 1
            is_over = give_up is not None and driver.now() + interval > give_up
            is_over |= options.reconnect_limit is not None and rounds >= options.reconnect_limit
            if not options.reconnect or is_over:
                raise ConnectError("; ".join(dict.fromkeys(reasons)))
            await driver.sleep(interval)
            if self.state is not ConnectionState.CONNECTING:
                raise ConnectError("the connection was closed while connecting")
            interval = min(interval * 2, options.reconnect_interval_max)

    async def _connect_to(self, endpoint: Endpoint) -> None:
        driver = self.driver
        deadline = driver.now() + self.options.connect_timeout
        driver.disconnect()
        self.endpoint = endpoint
        connect = _PROTOCOLS[self.options.protocol].connect
        wire = self.wire = connect(self.options, self._destination.credentials(endpoint), driver.write_soon)
        await driver.connect(
            endpoint, deadline, nodelay=self.options.tcp_nodelay, tls=self._destination.context(endpoint)
        )
        driver.write_soon()
        is_decided = await driver.wait(lambda: wire.phase in (Phase.OPEN, Phase.CLOSED), deadline)
        if wire.phase is Phase.OPEN:
            driver.beat_every(wire.heartbeat * _BEAT)
            _logger.info("Connected to %s", endpoint)
            return
        driver.disconnect()
        if not is_decided:
            raise ConnectError(f"{endpoint}: no AMQP connection within {self.options.connect_timeout:g} seconds")
        failure = wire.failure or ConnectError("closed")
        if isinstance(failure, ConnectionRedirected):
            raise failure
        kind = type(failure) if isinstance(failure, ConnectError) else ConnectError
        raise kind(f"{endpoint}: {failure}")

    async def _recover(self) -> None:
        """Reconnect, and restore the sessions."""
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
        """Raise an error if the connection cannot be used.

        Raises:
            ConnectionFailedError: it is closed, or has failed.
        """
        if self.state is ConnectionState.FAILED and self.failure is not None:
            raise copy.copy(self.failure)
        if self.state is ConnectionState.CLOSED:
            raise ConnectionClosedError("the connection is closed")

    async def session(self, name: str | None, *, is_transactional: bool) -> SessionCore:
        """Open a session.

        Raises:
            MessagingError: the connection is closed or has failed, or the broker has refused the session.
        """
        make = _PROTOCOLS[self.options.protocol].session
        session = make(self, (name or str(uuid.uuid4())).encode(), is_transactional=is_transactional)
        while True:
            await self.driver.wait(lambda: self.state is not ConnectionState.CONNECTING)
            self.check()
            try:
                await session.attach()
            except InterruptedByLoss:
                continue
            self.sessions.append(session)
            session.is_ready = True
            return session

    def session_closed(self, session: SessionCore) -> None:
        """A session was closed."""
        if session in self.sessions:
            self.sessions.remove(session)

    async def close(self, timeout: float | None) -> None:
        """Close all sessions, then the connection. The connection is closed even if an error is raised.

        Args:
            timeout: maximum seconds to wait for unfinished operations; None for no limit. With 0 the sessions are left
                to the broker to close, and unfinished operations are not reported.

        Raises:
            Timeout: operations are unfinished.
            ConnectionFailedError: operations are unfinished, because the connection was lost.
            SessionError: operations are unfinished, because the broker has ended a session.
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
            self._updates = None
            self.driver.disconnect()
            self.sessions.clear()
            self.driver.changed()
        if problems:
            raise problems[0]

    async def _close_session(self, session: SessionCore, deadline: float | None) -> None:
        if self.state is ConnectionState.OPEN and (deadline is None or self.driver.now() < deadline):
            await session.close(deadline)
            return
        unfinished = ", ".join(session.unfinished())
        if not unfinished:
            return
        if self.state is ConnectionState.OPEN:
            raise Timeout(f"the connection was closed with unfinished operations: {unfinished}")
        kind = type(self.failure) if isinstance(self.failure, ConnectionFailedError) else ConnectionFailedError
        raise kind(f"{self.failure or 'the connection was lost and not restored before it was closed'}: {unfinished}")

    async def _close_wire(self, deadline: float | None) -> None:
        wire = self.wire
        if self.state is not ConnectionState.OPEN or wire is None:
            return
        self.state = ConnectionState.CLOSED
        wire.close()
        limit = self.driver.now() + self.options.connect_timeout
        await self.driver.wait(lambda: wire.phase is Phase.CLOSED, limit if deadline is None else min(limit, deadline))


def describe_failure(error: OSError) -> str:
    """The reason of a socket's failure, as text for the user."""
    if isinstance(error, ssl.SSLError):
        return f"TLS: {tls_reason(error)}"
    if isinstance(error, TimeoutError):
        return "no response: connection timed out"
    if error.errno == errno.ECONNREFUSED:
        return "connection refused: is a broker running there?"
    return error.strerror or str(error)
