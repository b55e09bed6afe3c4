"""Sockets and timers of many connections in one loop, and connections to a broker.

    worker     does its work when it is woken (`Loop.wake`), or at a time (`Loop.wake_at`)
    line       a connection: what the socket brings goes to the protocol's machine, whose output is sent at the end of
               each turn. A line that `is_full` takes no more messages until its worker is woken

A loop is used by one thread. It waits with the precision of milliseconds or, for workers that keep to a rate, of
microseconds (`is_timed`).
"""

from __future__ import annotations

import heapq
import itertools
import selectors
import socket
import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from qstore.broker.client.blocking import open_socket
from qstore.broker.client.connection import WireConnection, describe_failure
from qstore.broker.client.errors import ConnectError, ConnectionFailedError, MessagingError
from qstore.broker.client.options import Destination, Endpoint
from qstore.broker.protocols.connection import Phase
from qstore.broker.security.tls import TlsError, TlsSession

READ_BYTES: Final = 512 << 10
_MAX_SELECTED: Final = 1000  # the highest number of a socket with which `select` is used
_BEAT_SECONDS: Final = 0.5
_LONGEST_WAIT: Final = 0.2

MakeWire = Callable[[Destination, Endpoint, Callable[[], None]], WireConnection]
"""Makes the client's end of a connection; the function is called whenever there is output."""


class Worker(Protocol):
    """Works when it is woken."""

    def work(self, now: float) -> None:
        """Do a part of the work; `now` is the time of the loop in seconds."""


class Loop:
    """The loop.

    Args:
        is_timed: whether it is to wait with the precision of microseconds.

    Attributes:
        failure: why a line was lost, the first one; None before.
    """

    def __init__(self, *, is_timed: bool = False) -> None:
        self._selector: selectors.BaseSelector = selectors.DefaultSelector()
        self._is_timed = is_timed
        self._ready: dict[Worker, None] = {}
        self._timers: list[tuple[float, int, Worker]] = []
        self._numbers = itertools.count()
        self._dirty: dict[Line, None] = {}
        self._lines: dict[Line, None] = {}
        self._next_beat = 0.0
        self.failure: MessagingError | None = None

    # ---- for lines and workers ----

    def add(self, line: Line, found: socket.socket) -> None:
        """Serve a line."""
        self._is_timed = self._is_timed and found.fileno() < _MAX_SELECTED
        kind: type[selectors.BaseSelector] = selectors.SelectSelector if self._is_timed else selectors.DefaultSelector
        if type(self._selector) is not kind:
            self._change_selector(kind())
        self._selector.register(found, selectors.EVENT_READ, line)
        self._lines[line] = None

    def _change_selector(self, other: selectors.BaseSelector) -> None:
        for key in self._selector.get_map().values():
            other.register(key.fileobj, key.events, key.data)
        self._selector.close()
        self._selector = other

    def remove(self, line: Line, found: socket.socket) -> None:
        """Serve a line no more."""
        self._selector.unregister(found)
        self._lines.pop(line, None)
        self._dirty.pop(line, None)

    def listen(self, line: Line, found: socket.socket, *, reads: bool, writes: bool) -> None:
        """Set what is waited for."""
        events = (selectors.EVENT_READ if reads else 0) | (selectors.EVENT_WRITE if writes else 0)
        known = found in self._selector.get_map()
        if events and known:
            self._selector.modify(found, events, line)
        elif events:
            self._selector.register(found, events, line)
        elif known:
            self._selector.unregister(found)

    def has_output(self, line: Line) -> None:
        """Send the output of a line at the end of the turn."""
        self._dirty[line] = None

    def wake(self, worker: Worker) -> None:
        """Have a worker work in the next turn."""
        self._ready[worker] = None

    def wake_at(self, when: float, worker: Worker) -> None:
        """Have a worker work at a time, in seconds of the monotonic clock."""
        heapq.heappush(self._timers, (when, next(self._numbers), worker))

    def failed(self, error: MessagingError) -> None:
        """A line was lost."""
        self.failure = self.failure or error

    # ---- running ----

    def run(self, until: Callable[[], bool], deadline: float | None = None) -> bool:
        """Run until a condition is met, a line is lost, or a time has come. Returns whether it is met."""
        while not until():
            now = time.monotonic()
            if self.failure is not None or (deadline is not None and now >= deadline):
                return False
            self.turn(now, _LONGEST_WAIT if deadline is None else min(_LONGEST_WAIT, deadline - now))
        return True

    def turn(self, now: float, wait: float) -> None:
        """Let workers work, send output, and take input, for which `wait` seconds are waited at most."""
        timers = self._timers
        while timers and timers[0][0] <= now:
            self._ready[heapq.heappop(timers)[2]] = None
        if self._ready:
            ready, self._ready = self._ready, {}
            for worker in ready:
                worker.work(now)
        if self._dirty:
            dirty, self._dirty = self._dirty, {}
            for line in dirty:
                line.write()
        if self._ready:
            wait = 0.0
        elif timers:
            wait = max(0.0, min(wait, timers[0][0] - time.monotonic()))
        if not self._selector.get_map():
            time.sleep(wait)
        for key, events in self._selector.select(wait):
            line = key.data
            if events & selectors.EVENT_WRITE:
                line.write()
            if events & selectors.EVENT_READ:
                line.read()
        if now >= self._next_beat:
            self._next_beat = now + _BEAT_SECONDS
            for line in list(self._lines):
                line.beat(now)

    def close(self) -> None:
        """Close all lines at once."""
        for line in list(self._lines):
            line.abandon()
        self._selector.close()


class Line:
    """A connection to a broker.

    Args:
        loop: serves it.
        destination: the broker.
        make: makes the client's end.

    Attributes:
        loop: as above.
        wire: the client's end.
        is_full: whether output waits for the socket.
        worker: woken when it is full no more.
        after_input: called after input was processed.
        read_bytes: how much is read at once.

    Raises:
        ConnectError: it cannot be opened.
    """

    def __init__(self, loop: Loop, destination: Destination, make: MakeWire) -> None:
        self.loop = loop
        options = destination.options
        found: tuple[socket.socket, TlsSession | None] | None = None
        for endpoint in destination.endpoints:
            try:
                deadline = time.monotonic() + options.connect_timeout
                context = destination.context(endpoint)
                found = open_socket(endpoint, deadline, nodelay=options.tcp_nodelay, tls=context)
                break
            except ConnectError:
                if endpoint is destination.endpoints[-1]:
                    raise
        assert found is not None
        self.endpoint = endpoint
        self._socket: socket.socket | None = found[0]
        self._tls = found[1]
        self._rest = memoryview(b"")
        self._is_reading, self._is_closing = True, False
        self._opened: Callable[[], None] | None = None
        self._closed: Callable[[], None] | None = None
        self.is_full = False
        self.worker: Worker | None = None
        self.after_input: list[Callable[[], None]] = []
        self.read_bytes = READ_BYTES
        self.wire = make(destination, endpoint, lambda: loop.has_output(self))
        loop.add(self, found[0])
        loop.has_output(self)

    def when_open(self, opened: Callable[[], None]) -> None:
        """Call a function once it is open."""
        self._opened = opened

    @property
    def is_open(self) -> bool:
        """Whether it is open."""
        return self.wire.phase is Phase.OPEN

    # ---- the socket ----

    def read(self) -> None:
        """Take what has come."""
        if self._socket is None:
            return
        try:
            data = self._socket.recv(self.read_bytes)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(describe_failure(error))
            return
        if not data:
            self._lose("closed by the broker")
            return
        if self._tls is not None:
            try:
                data = self._tls.receive(data)
            except TlsError as error:
                self._lose(f"TLS: {error}")
                return
        self.wire.receive(data)
        for hook in self.after_input:
            hook()
        self._look()

    def _look(self) -> None:
        """See what has become of the connection."""
        if self.wire.phase is Phase.OPEN:
            opened, self._opened = self._opened, None
            if opened is not None:
                opened()
        elif self.wire.phase is Phase.CLOSED:
            self.write()
            self._lose("closed by the broker")

    def write(self) -> None:
        """Send what the socket takes."""
        rest, found = self._rest, self._socket
        while found is not None:
            if not rest:
                output = self._take_output()
                if not output:
                    break
                rest = memoryview(output)
            try:
                rest = rest[found.send(rest, socket.MSG_NOSIGNAL) :]
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                rest = memoryview(b"")  # reading finds out why
                break
        self._rest = rest
        was_full, self.is_full = self.is_full, bool(rest)
        if was_full is not self.is_full and found is not None:
            self.loop.listen(self, found, reads=self._is_reading, writes=self.is_full)
            if was_full and self.worker is not None:
                self.loop.wake(self.worker)

    def _take_output(self) -> bytes:
        output = self.wire.take_output()
        if self._tls is None:
            return output
        self._tls.send(output)
        return self._tls.take_output()

    def hold(self, *, is_held: bool) -> None:
        """Do not read, or read again."""
        if self._is_reading is is_held and self._socket is not None:
            self._is_reading = not is_held
            self.loop.listen(self, self._socket, reads=self._is_reading, writes=self.is_full)

    def beat(self, now: float) -> None:
        """Check heartbeats."""
        if self._is_reading:
            self.wire.on_timer(now)
            self._look()

    # ---- the end ----

    def close(self, closed: Callable[[], None] | None = None) -> None:
        """Ask the broker to close the connection; call a function when it is."""
        self._is_closing, self._closed = True, closed
        if self._socket is None:
            self._end()
            return
        self.hold(is_held=False)
        self.wire.close()
        self.loop.has_output(self)

    def abandon(self) -> None:
        """Close the socket without another word."""
        self._is_closing = True
        self._lose("")

    def _lose(self, reason: str) -> None:
        found, self._socket = self._socket, None
        if found is None:
            return
        if self._is_reading or self.is_full:
            self.loop.remove(self, found)
        found.close()
        self.wire.lost(ConnectionFailedError(f"the connection to {self.endpoint} was lost: {reason}"))
        failure = self.wire.failure
        for hook in self.after_input:
            hook()
        if not self._is_closing:
            if isinstance(failure, ConnectError):
                failure = type(failure)(f"{self.endpoint}: {failure}")
            self.loop.failed(failure or ConnectionFailedError(f"{self.endpoint}: {reason}"))
        self._end()

    def _end(self) -> None:
        closed, self._closed = self._closed, None
        if closed is not None:
            closed()


def close_all(loop: Loop, lines: Iterable[Line], seconds: float) -> None:
    """Close connections in order, as far as the broker answers in that time."""
    left = set(lines)
    for line in tuple(left):
        line.close(lambda line=line: left.discard(line))  # type: ignore[misc]
    loop.run(lambda: not left, time.monotonic() + seconds)
