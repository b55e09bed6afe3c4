"""The driver with a thread that reads and writes the socket, for the blocking interface.

One lock guards a connection with its sessions: an application thread holds it during a call, the socket's thread while
it processes received data. Waiting releases the lock until the state changes. So the core's coroutines never suspend
here: `run` drives each to its end in one step.

A calling thread writes to the socket itself when there is much output, and before it waits; the socket's thread sends
the rest after the call. That thread also restores a lost connection: meanwhile `wait` in it processes the socket.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from qstore.broker.client.driver import Events
from qstore.broker.client.errors import ConnectError
from qstore.broker.client.url import Endpoint
from qstore.broker.security.tls.errors import TlsError, tls_reason
from qstore.broker.security.tls.session import TlsSession

_T = TypeVar("_T")

_READ_BYTES: Final = 256 * 1024
_FULL_BYTES: Final = 4 * 1024 * 1024  # unsent bytes at which the driver is full
_FLUSH_WRITES: Final = 96  # calls of `write_soon` after which the calling thread writes to the socket itself
_FOREVER: Final = 3600.0  # seconds: upper limit of a wait without a deadline, after which its condition is checked


class ThreadedDriver:
    """See `driver.Driver`.

    Args:
        events: the core.

    Attributes:
        is_full: see `Driver`.
        lock: guards the core.
    """

    def __init__(self, events: Events) -> None:
        self._events = events
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
            left = max(0.001, deadline - time.monotonic())
            found = socket.create_connection((endpoint.host, endpoint.port), timeout=left)
            session = None if tls is None else _encrypt(found, tls, endpoint.host, deadline)
        except (OSError, TlsError) as error:
            reason = describe_failure(error) if isinstance(error, OSError) else f"TLS: {error}"
            raise ConnectError(f"{endpoint}: {reason}") from None
        finally:
            self.lock.acquire()
        found.setblocking(False)
        with contextlib.suppress(OSError):
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, int(nodelay))
        self._socket, self._tls = found, session
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
        output = self._events.take_output()
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
                self._events.on_defect(error)
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
                self._events.on_beat()
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
            self._events.on_data(data)
        else:
            self.disconnect()
            self._events.on_lost(reason)


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


def describe_failure(error: OSError) -> str:
    """The reason of a socket's failure, as text for the user."""
    if isinstance(error, ssl.SSLError):
        return f"TLS: {tls_reason(error)}"
    if isinstance(error, TimeoutError):
        return "no response: connection timed out"
    if error.errno == errno.ECONNREFUSED:
        return "connection refused: is a broker running there?"
    return error.strerror or str(error)
