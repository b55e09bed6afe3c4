"""The scenarios of very many connections, and of very many queues: how fast they come, and what each costs."""

from __future__ import annotations

import resource
import time
import uuid
from collections.abc import Callable
from typing import Final

from qstore.broker.client.errors import MessagingError
from qstore.formats.named_tuple import NamedTuple
from qstore.tools.load.channel import LoadChannel, Queue
from qstore.tools.load.loop import Line, Loop, close_all
from qstore.tools.load.protocols import Broker
from qstore.tools.load.throughput import as_messaging_error, delete_queues, wait_for

_AT_ONCE: Final = 100
_CLOSE_SECONDS: Final = 10.0

Report = Callable[[int, float], None]
"""Gets how many there are, and the seconds that the last ones took."""


def raise_file_limit() -> int:
    """Allow as many open sockets as this user may have. Returns how many."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


class CountResult(NamedTuple):
    """What was made.

    Attributes:
        made: how many.
        seconds: in which time.
        error: what has ended it; None for nothing.
        interruption: what has interrupted it.
    """

    made: int
    seconds: float
    error: MessagingError | None = None
    interruption: BaseException | None = None


class Connections:
    """Opens connections, and keeps them.

    Args:
        broker: the broker.
        channels: of each connection.
        consumers: of each connection, one on each of its channels at most.
        queue: what they consume.
    """

    def __init__(self, broker: Broker, channels: int, consumers: int, queue: str) -> None:
        self._broker, self._channels, self._consumers, self._queue = broker, channels, consumers, queue
        self._loop = Loop()
        self._lines: list[Line] = []
        self._open = 0

    def run(self, count: int, report: Report, hold: Callable[[], float]) -> CountResult:
        """Open connections, and keep them for a time, which `hold` gives when all are open."""
        began = time.monotonic()
        took = 0.0
        error: MessagingError | None = None
        interruption: BaseException | None = None
        try:
            while self._open < count:
                before, wanted = time.monotonic(), min(count, self._open + _AT_ONCE)
                for _ in range(wanted - self._open):
                    self._connect()
                wait_for(self._loop, lambda wanted=wanted: self._open >= wanted, "connections to be opened")  # type: ignore[misc]
                took = time.monotonic() - began
                report(self._open, time.monotonic() - before)
            self._keep(hold())
        except MessagingError as failure:
            error = failure
        except KeyboardInterrupt as failure:
            interruption = failure
        opened = self._open
        if self._loop.failure is None:
            close_all(self._loop, self._lines, _CLOSE_SECONDS)
        self._loop.close()
        return CountResult(opened, took or time.monotonic() - began, error, interruption)

    def _keep(self, seconds: float) -> None:
        if not self._loop.run(lambda: False, time.monotonic() + seconds) and self._loop.failure is not None:
            raise self._loop.failure

    def _connect(self) -> None:
        line = self._broker.connect(self._loop)
        self._lines.append(line)
        line.when_open(lambda: self._open_channel(line, 0))

    def _open_channel(self, line: Line, number: int) -> None:
        if number == self._channels:
            self._open += 1
            return
        channel = self._broker.channel(line)

        def ended(error: Exception | None) -> None:
            if error is None:
                self._open_channel(line, number + 1)
            else:
                self._loop.failed(as_messaging_error(error))

        def opened(error: Exception | None) -> None:
            if error is None and number < self._consumers:
                channel.consume(self._queue, 1, acknowledges=True, done=ended)
            else:
                ended(error)

        channel.open(opened)


class Queues:
    """Declares queues.

    Args:
        broker: the broker.
        queue: what they are; the name is the beginning of their names.
    """

    def __init__(self, broker: Broker, queue: Queue) -> None:
        self._broker, self._queue = broker, queue
        self._names: list[str] = []  # of those that were declared

    def run(self, loop: Loop, channel: LoadChannel, count: int, report: Report) -> CountResult:
        """Declare queues on a channel, up to a hundred at once."""
        began = time.monotonic()
        error: MessagingError | None = None
        interruption: BaseException | None = None
        unique, wanted = uuid.uuid4().hex[:8], 0
        try:
            while len(self._names) < count:
                before, first = time.monotonic(), len(self._names)
                wanted = min(count, first + _AT_ONCE)
                for number in range(first, wanted):
                    self._declare(loop, channel, f"{self._queue.name}-{unique}-{number + 1}")
                wait_for(loop, lambda wanted=wanted: len(self._names) == wanted, "queues")  # type: ignore[misc]
                report(wanted, time.monotonic() - before)
        except MessagingError as failure:
            error = failure
        except KeyboardInterrupt as failure:
            interruption = failure
            loop.run(lambda: len(self._names) >= wanted, time.monotonic() + _CLOSE_SECONDS)
        return CountResult(len(self._names), time.monotonic() - began, error, interruption)

    def _declare(self, loop: Loop, channel: LoadChannel, name: str) -> None:
        def ended(error: Exception | None) -> None:
            if error is None:
                self._names.append(name)
            else:
                loop.failed(as_messaging_error(error))

        channel.declare_queue(self._queue._replace(name=name), ended)

    def delete(self) -> None:
        """Delete those that were declared. Raises MessagingError."""
        delete_queues(self._broker, self._names)
