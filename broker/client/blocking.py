"""The blocking client: connections, sessions, senders and receivers, and a thread that reads and writes the socket.

It is thread-safe: threads may share a connection with its sessions. See `broker.client` for an example.

One lock guards a connection with its sessions: an application thread holds it during a call, the socket's thread while
it processes received data. Waiting releases the lock until the state changes. So the core's coroutines never suspend
here: `run` drives each to its end in one step.

A calling thread writes to the socket itself when there is much output, and before it waits; the socket's thread sends
the rest after the call. That thread also restores a lost connection: meanwhile `wait` in it processes the socket.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Protocol, TypeVar

from qstore.broker.client.connection import ConnectionCore, ConnectionState, describe_failure
from qstore.broker.client.errors import ConnectError, Empty, MessagingError
from qstore.broker.client.links import ReceiverCore, SenderCore
from qstore.broker.client.message import Message
from qstore.broker.client.options import Endpoint
from qstore.broker.client.session import Outcome, SessionCore
from qstore.broker.security.tls import TlsError, TlsSession

_T = TypeVar("_T")

_READ_BYTES: Final = 256 * 1024
_FULL_BYTES: Final = 4 * 1024 * 1024  # unsent bytes at which the driver is full
_FLUSH_WRITES: Final = 96  # calls of `write_soon` after which the calling thread writes to the socket itself
_FOREVER: Final = 3600.0  # seconds: upper limit of a wait without a deadline, after which its condition is checked


class ThreadedDriver:
    """The driver with a thread; see `connection.Driver`.

    Args:
        core: the connection that it serves.

    Attributes:
        is_full: see `Driver`.
        lock: guards the core.
    """

    def __init__(self, core: ConnectionCore) -> None:
        self._core = core
        self.lock = threading.RLock()
        self.is_full = False
        self._change = threading.Condition(self.lock)
        self._socket: socket.socket | None = None
        self._tls: TlsSession | None = None
        self._unsent = memoryview(b"")
        self._writes = 0
        self._work: deque[Callable[[], Coroutine[Any, Any, None]]] = deque()
        self._beat_seconds = 0.0
        self._next_beat = 0.0
        self._thread: threading.Thread | None = None
        self._is_stopping = False
        self._wake_in: socket.socket | None = None
        self._wake_out: socket.socket | None = None

    # ---- running coroutines ----

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine of the core, and return its result."""
        with self.lock:
            return _drive(work)

    def start(self) -> None:
        """Start the thread, unless it is running."""
        with self.lock:
            if self._thread is None:
                self._is_stopping = False
                self._wake_in, self._wake_out = socket.socketpair()
                self._wake_in.setblocking(False)
                self._wake_out.setblocking(False)
                self._thread = threading.Thread(target=self._serve, name="amqp client", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Stop the thread. Do not call it with the lock held."""
        with self.lock:
            self._is_stopping = True
            thread, self._thread = self._thread, None
            self._work.clear()
        if thread is None or self._wake_in is None or self._wake_out is None:
            return
        self._wake()
        thread.join()
        self._wake_in.close()
        self._wake_out.close()

    def now(self) -> float:
        """See `Driver`."""
        return time.monotonic()

    async def wait(self, is_ready: Callable[[], bool], deadline: float | None = None) -> bool:
        """See `Driver`."""
        self._write()
        is_worker = threading.current_thread() is self._thread
        while not is_ready():
            left = _FOREVER if deadline is None else deadline - time.monotonic()
            if left <= 0 or (is_worker and self._is_stopping):
                return False
            if is_worker:
                self._turn(left)
            else:
                self._change.wait(left)
                self._write()
        return True

    async def sleep(self, seconds: float) -> None:
        """See `Driver`."""
        await self.wait(lambda: self._is_stopping, time.monotonic() + seconds)

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """See `Driver`."""
        self._work.append(work)
        self._wake()

    def changed(self) -> None:
        """See `Driver`."""
        self._change.notify_all()

    def beat_every(self, seconds: float) -> None:
        """See `Driver`."""
        self._beat_seconds = seconds
        self._next_beat = time.monotonic() + seconds
        self._wake()

    # ---- the socket ----

    async def connect(self, endpoint: Endpoint, deadline: float, *, nodelay: bool, tls: ssl.SSLContext | None) -> None:
        """See `Driver`. The lock is released while connecting."""
        # An RLock must be released as often as it was acquired, which is once: by `run` or by the thread.
        self.lock.release()
        try:
            found = open_socket(endpoint, deadline, nodelay=nodelay, tls=tls)
        finally:
            self.lock.acquire()
        self._socket, self._tls = found
        self._wake()

    def disconnect(self) -> None:
        """See `Driver`."""
        self._write()
        found, self._socket = self._socket, None
        self._unsent = memoryview(b"")
        self._beat_seconds = 0.0
        self.is_full = False
        self._tls = None
        if found is not None:
            found.close()
            self._wake()

    def write_soon(self) -> None:
        """See `Driver`."""
        self._writes += 1
        if self._writes == 1:
            self._wake()
        elif self._writes % _FLUSH_WRITES == 0:
            self._write()

    def _write(self) -> None:
        """Send as much as the socket takes."""
        self._writes = 0
        unsent = self._unsent
        while self._socket is not None:
            if not unsent:
                unsent = memoryview(self._take_output())
                if not unsent:
                    break
            try:
                # Commands end silently on SIGPIPE from their output; a broker that is gone must not end them so.
                sent = self._socket.send(unsent, socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                unsent = memoryview(b"")  # the thread detects the error when it reads
                break
            unsent = unsent[sent:]
        self._unsent = unsent
        self.is_full = len(unsent) >= _FULL_BYTES

    def _take_output(self) -> bytes:
        output = self._core.take_output()
        if self._tls is None:
            return output
        with contextlib.suppress(TlsError):  # the thread detects the error when it reads
            self._tls.send(output)
        return self._tls.take_output()

    # ---- the thread ----

    def _wake(self) -> None:
        if self._wake_in is not None:
            with contextlib.suppress(OSError):  # the socket pair is full, so the thread will wake up, or it is closed
                self._wake_in.send(b"\0")

    def _serve(self) -> None:
        """The thread's main loop."""
        with self.lock:
            try:
                while not self._is_stopping:
                    if self._work:
                        _drive(self._work.popleft()())
                    else:
                        self._turn(_FOREVER)
            except BaseException as error:
                # A defect of this client. Without the thread, waiting callers would never return.
                self.disconnect()
                self._core.on_defect(error)
                raise

    def _turn(self, seconds: float) -> None:
        """Wait for the socket without the lock, then read, write and beat once."""
        found, woken = self._socket, self._wake_out
        assert woken is not None
        if self._beat_seconds:
            seconds = min(seconds, max(0.0, self._next_beat - time.monotonic()))
        poll = select.poll()
        poll.register(woken, select.POLLIN)
        if found is not None:
            poll.register(found, select.POLLIN | (select.POLLOUT if self._unsent else 0))
            found_number = found.fileno()
        woken_number = woken.fileno()
        self.lock.release()
        try:
            ready = dict(poll.poll(seconds * 1000))
        finally:
            self.lock.acquire()
        if woken_number in ready:
            with contextlib.suppress(OSError):
                woken.recv(4096)
        if found is not None and found is self._socket:
            if ready.get(found_number, 0) & ~select.POLLOUT:
                self._read(found)
            self._write()
            if self._beat_seconds and time.monotonic() >= self._next_beat:
                self._next_beat = time.monotonic() + self._beat_seconds
                self._core.on_beat()
        self.changed()

    def _read(self, found: socket.socket) -> None:
        try:
            data = found.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            data, reason = b"", describe_failure(error)
        else:
            reason = "closed by the broker"
        if data and self._tls is not None:
            try:
                data = self._tls.receive(data)
            except TlsError as error:
                data, reason = b"", f"TLS: {error}"
            else:
                if not data and not self._tls.is_over:
                    return
        if data:
            self._core.on_data(data)
        else:
            self.disconnect()
            self._core.on_lost(reason)


def open_socket(
    endpoint: Endpoint, deadline: float, *, nodelay: bool, tls: ssl.SSLContext | None
) -> tuple[socket.socket, TlsSession | None]:
    """Connect to a broker; the socket is then not blocking.

    Args:
        endpoint: the broker.
        deadline: until when, on the monotonic clock.
        nodelay: whether to send small segments without delay.
        tls: encrypts it, which returns the session; None: it is not encrypted.

    Raises:
        ConnectError: the connection was refused, not established until then, or cannot be encrypted.
    """
    try:
        left = max(0.001, deadline - time.monotonic())
        found = socket.create_connection((endpoint.host, endpoint.port), timeout=left)
        session = None if tls is None else _encrypt(found, tls, endpoint.host, deadline)
    except (OSError, TlsError) as error:
        reason = describe_failure(error) if isinstance(error, OSError) else f"TLS: {error}"
        raise ConnectError(f"{endpoint}: {reason}") from None
    found.setblocking(False)
    with contextlib.suppress(OSError):
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, int(nodelay))
    return found, session


def _encrypt(found: socket.socket, context: ssl.SSLContext, host: str, deadline: float) -> TlsSession:
    """Do the TLS handshake on a blocking socket, which is closed if it fails. Raises OSError or TlsError."""
    session = TlsSession(context, is_server=False, host=host)
    try:
        session.begin()
        while True:
            found.settimeout(max(0.001, deadline - time.monotonic()))
            found.sendall(session.take_output())
            if session.is_established:
                return session
            data = found.recv(_READ_BYTES)
            if not data:
                raise TlsError("the broker has closed the connection")
            session.receive(data)
    except BaseException:
        found.close()
        raise


def _drive(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine that never suspends, and return its result."""
    try:
        work.send(None)
    except StopIteration as stop:
        result: _T = stop.value
        return result
    work.close()
    raise AssertionError("a coroutine of the core has suspended")


# ---- the interface ----


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_Link = TypeVar("_Link", bound=_Named)


def named(links: Iterable[_Link], name: str) -> _Link:
    """The first one with a name. Raises KeyError."""
    for link in links:
        if link.name == name:
            return link
    raise KeyError(name)


SENDER_CAPACITY: Final = 1000


class Connection:
    """A connection to a broker.

    Args:
        url: the broker's URL, see `url`.
        options: see `options.ConnectionOptions`.

    Raises:
        UrlError: the URL or an option is invalid.
    """

    def __init__(self, url: str = "localhost", **options: Any) -> None:
        self._core = ConnectionCore(url, options)
        self._driver = ThreadedDriver(self._core)
        self._core.driver = self._driver

    @classmethod
    def establish(cls, url: str = "localhost", **options: Any) -> Connection:
        """Create and open a connection. Raises as the constructor and `open` do."""
        connection = cls(url, **options)
        connection.open()
        return connection

    def open(self) -> None:
        """Connect.

        Raises:
            ConnectError: the broker cannot be reached, or has refused the connection (AuthenticationError).
        """
        self._driver.start()
        try:
            self._driver.run(self._core.open())
        except BaseException:
            self._driver.stop()
            raise

    def session(self, name: str | None = None, *, transactional: bool = False) -> Session:
        """Open a session.

        Args:
            name: the session's name; None for a unique one.
            transactional: whether messages and acknowledgements take effect at `commit`.

        Raises:
            MessagingError: the connection is closed or has failed, or the broker has refused the session.
        """
        return Session(self, self._driver.run(self._core.session(name, is_transactional=transactional)))

    @property
    def is_open(self) -> bool:
        """Whether it was opened, and neither closed nor has failed."""
        return self._core.state in (ConnectionState.OPEN, ConnectionState.CONNECTING)

    def close(self, timeout: float | None = None) -> None:
        """Close all sessions and the connection, after the broker has completed all messages and acknowledgements.

        Args:
            timeout: maximum seconds to wait; None for no limit. With 0 unfinished operations are not reported.

        Raises:
            Timeout: operations are unfinished; the text lists them.
            ConnectionFailedError: operations are unfinished, because the connection was lost.
            SessionError: operations are unfinished, because the broker has ended a session.
            LinkError: operations are unfinished, because a sender or receiver has failed.
        """
        try:
            self._driver.run(self._core.close(timeout))
        finally:
            self._driver.stop()

    def __enter__(self) -> Connection:
        if not self.is_open:
            self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # After an error do not wait for unfinished operations.
        self.close(None if error is None else 0)


class Session:
    """A session: an ordered sequence of operations, optionally in transactions.

    Attributes:
        connection: its connection.
    """

    def __init__(self, connection: Connection, core: SessionCore) -> None:
        self.connection = connection
        self._core = core
        self._driver = connection._driver
        self._senders: dict[SenderCore, Sender] = {}
        self._receivers: dict[ReceiverCore, Receiver] = {}

    def sender(self, address: str, *, capacity: int = SENDER_CAPACITY) -> Sender:
        """Create a sender.

        Args:
            address: the address to send to, see `address` and `address_options`.
            capacity: maximum number of messages that the broker has not completed.

        Raises:
            AddressError: the address is invalid.
            NotFound, AssertionFailed: the queue or exchange does not exist, or is not as the address asserts.
            MessagingError: the session or its connection has failed.
        """
        core = self._driver.run(self._core.sender(address, capacity))
        sender = self._senders[core] = Sender(self, core)
        return sender

    def receiver(self, address: str, *, capacity: int | None = None) -> Receiver:
        """Create a receiver. Raises as `sender` does.

        Args:
            address: the address to receive from.
            capacity: number of messages to prefetch; None for the connection option `receiver_capacity`, which is 0.
        """
        core = self._driver.run(self._core.receiver(address, capacity))
        receiver = self._receivers[core] = Receiver(self, core)
        return receiver

    def get_sender(self, name: str) -> Sender:
        """The sender with this name, that of its queue or exchange; the first one. Raises KeyError."""
        return named(self._senders.values(), name)

    def get_receiver(self, name: str) -> Receiver:
        """The receiver with this name, as `get_sender`."""
        return named(self._receivers.values(), name)

    def next_receiver(self, timeout: float | None = None) -> Receiver:
        """Wait for a receiver with a message.

        Args:
            timeout: maximum seconds to wait; None for no limit.

        Raises:
            Empty: no message arrived in time.
            MessagingError: the session or its connection has failed.
        """
        driver = self._driver
        deadline = None if timeout is None else driver.now() + timeout
        core = driver.run(self._core.next_receiver(deadline))
        if core is None:
            raise Empty("no receiver has a message")
        return self._receivers[core]

    def acknowledge(self, message: Message | None = None, *, up_to: bool = False, sync: bool = True) -> None:
        """Accept a message, or all fetched messages.

        Args:
            message: the message; None for all.
            up_to: whether to accept also those that the session has fetched before it, from any receiver.
            sync: whether to wait until the broker has completed it.

        Raises:
            AcknowledgeUnknown: the connection was lost before the broker confirmed it.
            MessagingError: the session or its connection has failed.
        """
        self._settle(message, Outcome.ACCEPT, sync=sync, up_to=up_to)

    def release(self, message: Message | None = None, *, sync: bool = True) -> None:
        """Return a message, or all fetched messages, to the queue, marked as redelivered. See `acknowledge`."""
        self._settle(message, Outcome.RELEASE, sync=sync)

    def reject(self, message: Message | None = None, *, sync: bool = True) -> None:
        """Reject a message, or all fetched messages: the broker drops or reroutes them. See `acknowledge`."""
        self._settle(message, Outcome.REJECT, sync=sync)

    def _settle(self, message: Message | None, outcome: Outcome, *, sync: bool, up_to: bool = False) -> None:
        with self._driver.lock:
            token = self._core.settle(message, outcome, up_to=up_to)
            if sync:
                self._driver.run(self._core.wait_confirmed(token))

    def invoke(self, command: str, /, **values: Any) -> Mapping[str, Any]:
        """Send any command of AMQP 0-10, such as "queue.declare", and wait until the broker has completed it.

        Args:
            command: its class and name.
            values: its fields, with underscores in their names; maps are `TypedMap`.

        Returns:
            The fields of its result; empty if it has none.

        Raises:
            SessionError: the broker has refused it, and ended the session.
            UnsupportedError: the connection speaks another protocol.
            MessagingError: the session or its connection has failed.
        """
        return self._driver.run(self._core.command(command, values))

    def sync(self) -> None:
        """Wait until the broker has completed all commands of the session.

        Raises:
            AcknowledgeUnknown: a connection was lost before the broker confirmed acknowledgements.
            MessagingError: the session or its connection has failed.
        """
        self._driver.run(self._core.sync())

    def commit(self) -> None:
        """Commit the transaction, and begin another.

        Raises:
            TransactionAborted: it was rolled back.
            TransactionUnknown: the connection was lost during the commit, so the outcome is unknown.
            TransactionError: the session is not transactional.
        """
        self._driver.run(self._core.commit())

    def rollback(self) -> None:
        """Roll the transaction back, and begin another. Messages received in it are delivered again.

        Raises:
            TransactionError: the session is not transactional.
            MessagingError: the session or its connection has failed.
        """
        self._driver.run(self._core.rollback())

    def close(self) -> None:
        """Close the session, after the broker has completed all messages and acknowledgements.

        Raises:
            MessagingError: operations are unfinished, because the session, a link or the connection has failed.
        """
        self._driver.run(self._core.close())

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        # Do not hide the error by another one, and do not wait for unfinished operations.
        with contextlib.suppress(MessagingError):
            self._driver.run(self._core.close(self._driver.now()))


class Sender:
    """Sends messages to one address."""

    def __init__(self, session: Session, core: SenderCore) -> None:
        self.session = session
        self._core = core
        self._driver = session._driver

    @property
    def capacity(self) -> int:
        """Maximum number of messages that the broker has not completed. It may be set."""
        return self._core.capacity

    @capacity.setter
    def capacity(self, capacity: int) -> None:
        with self._driver.lock:
            self._core.set_capacity(capacity)

    def send(self, message: Message | Any, *, sync: bool = True, timeout: float | None = None) -> None:
        """Send a message.

        Args:
            message: a `Message`, or the content of one.
            sync: whether to wait until the broker has completed it, which includes durable storage if the message and
                its queue are durable.
            timeout: maximum seconds to wait; None for the connection option `send_timeout`, infinity for no limit. A
                delay is logged, as a warning of the logger `qstore.client`, every five seconds.

        Raises:
            Timeout: the time has passed. The message may have been sent.
            ContentError: the message cannot be encoded.
            MessagingError: the sender, its session or its connection has failed.
        """
        if not isinstance(message, Message):
            message = Message(message)
        core, driver = self._core, self._driver
        if not sync:
            with driver.lock:
                if core.try_send(message) is not None:
                    return
        driver.run(core.send(message, sync=sync, timeout=timeout))

    def sync(self, timeout: float | None = None) -> None:
        """Wait until the broker has completed all messages sent.

        Raises:
            Timeout: the time has passed.
            MessagingError: the sender, its session or its connection has failed.
        """
        self._driver.run(self._core.sync(timeout))

    @property
    def name(self) -> str:
        """The name of its queue or exchange."""
        return self._core.target.name

    def unsettled(self) -> int:
        """Number of messages that the broker has not completed."""
        return self._core.unsettled

    def settled(self) -> int:
        """Number of messages that the broker has completed."""
        return self._core.settled

    @property
    def is_reliable(self) -> bool:
        """Whether messages are confirmed by the broker, which is the default of an address."""
        return self._core.target.reliable is not False

    def available(self) -> int:
        """Number of messages that can be sent without waiting."""
        return max(0, self._core.capacity - self._core.unsettled)

    def close(self) -> None:
        """Close the sender, after the broker has completed all messages; delete the node if the address says so.

        Raises:
            MessagingError: operations are unfinished, because the sender, session or connection has failed.
        """
        self.session._senders.pop(self._core, None)
        self._driver.run(self._core.close())


class Receiver:
    """Receives messages from one address."""

    def __init__(self, session: Session, core: ReceiverCore) -> None:
        self.session = session
        self._core = core
        self._driver = session._driver

    @property
    def capacity(self) -> int:
        """Number of messages to prefetch. It may be set; messages that have come stay."""
        return self._core.capacity

    @capacity.setter
    def capacity(self, capacity: int) -> None:
        with self._driver.lock:
            self._core.set_capacity(capacity)

    @property
    def name(self) -> str:
        """The name of its queue or exchange."""
        return self._core.target.name

    @property
    def address(self) -> str:
        """The address with its actual name, for use as a reply-to."""
        return self._core.address

    def fetch(self, timeout: float | None = None) -> Message:
        """Wait for the next message.

        Args:
            timeout: maximum seconds to wait; None for no limit.

        Raises:
            Empty: no message arrived in time.
            MessagingError: the receiver, its session or its connection has failed.
        """
        core, driver = self._core, self._driver
        with driver.lock:
            message = core.try_fetch()
        return driver.run(core.fetch(timeout)) if message is None else message

    def available(self) -> int:
        """Number of prefetched messages."""
        return len(self._core.incoming)

    def unsettled(self) -> int:
        """Number of messages that were acknowledged, released or rejected, without the broker's confirmation yet."""
        with self._driver.lock:
            return self._core.session.unsettled_of(self._core)

    def close(self) -> None:
        """Close the receiver; prefetched messages return to their queue. Delete the node if the address says so.

        Raises:
            MessagingError: operations are unfinished, because the receiver, session or connection has failed.
        """
        self.session._receivers.pop(self._core, None)
        self._driver.run(self._core.close())
