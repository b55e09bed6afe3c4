"""The scenarios of what is made and unmade again: how many times a second, and how long each time takes.

Each client does one operation after the other: its next one begins when the broker has answered the last.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Final

from qstore.broker.client.errors import MessagingError
from qstore.formats.named_tuple import NamedTuple
from qstore.tools.load.channel import Done, LoadChannel, Queue
from qstore.tools.load.latencies import BUCKETS, bucket_of
from qstore.tools.load.loop import Loop, close_all
from qstore.tools.load.protocols import Broker
from qstore.tools.load.throughput import as_messaging_error, call, open_channels

_CLOSE_SECONDS: Final = 2.0
_END_SECONDS: Final = 10.0


class ChurnResult(NamedTuple):
    """What was measured.

    Attributes:
        operations: how many were done.
        seconds: in which time.
        latencies: the counts of latencies.
        error: what has ended it; None for nothing.
        interruption: what has interrupted it.
    """

    operations: int
    seconds: float
    latencies: list[int]
    error: MessagingError | None = None
    interruption: BaseException | None = None


class Churn:
    """Does an operation again and again.

    Args:
        broker: the broker.
        exchange: where queues are bound to.
        durable: whether queues are durable.
    """

    def __init__(self, broker: Broker, *, exchange: str = "amq.direct", durable: bool = False) -> None:
        self._broker, self._exchange, self._durable = broker, exchange, durable
        self._loop = Loop()
        self._queue = f"qstore-perf.{uuid.uuid4()}"
        self._done = 0
        self._latencies = [0] * BUCKETS
        self._until = 0.0
        self._limit: int | None = None
        self._begun = self._running = 0

    def run(
        self,
        kind: str,
        *,
        clients: int,
        seconds: float | None,
        limit: int | None,
        report: Callable[[int, float], None] = lambda *_: None,
    ) -> ChurnResult:
        """Do it.

        Args:
            kind: the name of the operation (`OPERATIONS`).
            clients: how many do it at once.
            seconds: how long; None for no limit.
            limit: how many operations; None for no limit.
            report: called every second with the number of operations since the last call, and the seconds.
        """
        loop, operation = self._loop, OPERATIONS[kind]
        channels: list[LoadChannel] = []
        error: MessagingError | None = None
        interruption: BaseException | None = None
        has_queue = False
        began = time.monotonic()
        try:
            channels = open_channels(loop, self._broker, clients)
            if operation.needs_queue:
                call(loop, "the queue", channels[0].declare_queue, Queue(self._queue, durable=self._durable))
                has_queue = True
            began = time.monotonic()
            self._until = began + (float("inf") if seconds is None else seconds)
            self._limit = limit
            for channel in channels:
                self._next(operation, channel)
            self._watch(report)
        except MessagingError as failure:
            error = failure
        except KeyboardInterrupt as failure:
            interruption = failure
        took = time.monotonic() - began
        if loop.failure is None:
            try:
                if error is None:
                    self._undo(channels[0] if has_queue else None)
            except MessagingError as failure:
                error = failure
            close_all(loop, [channel.line for channel in channels], _CLOSE_SECONDS)
        loop.close()
        return ChurnResult(self._done, took, self._latencies, error, interruption)

    def _undo(self, channel: LoadChannel | None) -> None:
        """Let the operations end that are going on after Ctrl-C, and delete the queue. Raises MessagingError."""
        self._until = 0.0
        self._loop.run(lambda: not self._running, time.monotonic() + _CLOSE_SECONDS)
        if channel is not None:
            call(self._loop, "the queue to be deleted", channel.delete_queue, self._queue)

    def _watch(self, report: Callable[[int, float], None]) -> None:
        """Run until all clients have ended. Raises MessagingError."""
        said, so_far = time.monotonic(), 0
        give_up = self._until + _END_SECONDS
        while self._running:
            if not self._loop.run(lambda: not self._running, min(said + 1.0, give_up)):
                if self._loop.failure is not None:
                    raise self._loop.failure
                now = time.monotonic()
                if now >= give_up:
                    raise MessagingError(f"the broker has not answered for {_END_SECONDS:g} s")
                report(self._done - so_far, now - said)
                said, so_far = now, self._done
        if self._loop.failure is not None:  # that of the last operation
            raise self._loop.failure

    def _next(self, operation: _Operation, channel: LoadChannel) -> None:
        """Begin another operation, unless it is over."""
        began = time.monotonic()
        if began >= self._until or (self._limit is not None and self._begun >= self._limit):
            return
        self._begun += 1
        self._running += 1

        def ended(error: Exception | None) -> None:
            self._running -= 1
            if error is not None:
                self._loop.failed(as_messaging_error(error))
                return
            self._done += 1
            self._latencies[bucket_of(int((time.monotonic() - began) * 1e9))] += 1
            self._next(operation, channel)

        operation.begin(self, channel, ended)

    # ---- operations ----

    def connection(self, channel: LoadChannel, done: Done) -> None:  # noqa: ARG002 – it has its own
        """Open a connection with a channel, and close both."""
        try:
            line = self._broker.connect(self._loop)
        except MessagingError as error:
            done(error)
            return

        def opened() -> None:
            own = self._broker.channel(line)
            own.open(_then(done, lambda: own.close(_then(done, lambda: line.close(lambda: done(None))))))

        line.when_open(opened)

    def channel(self, channel: LoadChannel, done: Done) -> None:
        """Open a channel, and close it."""
        own = self._broker.channel(channel.line)
        own.open(_then(done, lambda: own.close(done)))

    def queue(self, channel: LoadChannel, done: Done) -> None:
        """Declare a queue, and delete it."""
        name = f"qstore-perf.{uuid.uuid4()}"
        queue = Queue(name, durable=self._durable, exclusive=not self._durable)
        channel.declare_queue(queue, _then(done, lambda: channel.delete_queue(name, done)))

    def binding(self, channel: LoadChannel, done: Done) -> None:
        """Bind a queue, and undo it."""
        key = str(uuid.uuid4())
        undo = _then(done, lambda: channel.unbind(self._queue, self._exchange, key, done))
        channel.bind(self._queue, self._exchange, key, undo)

    def consumer(self, channel: LoadChannel, done: Done) -> None:
        """Begin a consumer, and end it."""
        channel.consume(self._queue, 1, acknowledges=True, done=_then(done, lambda: channel.cancel(done)))


def _then(done: Done, following: Callable[[], None]) -> Done:
    """What follows a call that has not failed."""

    def ended(error: Exception | None) -> None:
        if error is None:
            following()
        else:
            done(error)

    return ended


class _Operation(NamedTuple):
    begin: Callable[[Churn, LoadChannel, Done], None]
    needs_queue: bool = False


OPERATIONS: Final = {
    "connection": _Operation(Churn.connection),
    "channel": _Operation(Churn.channel),
    "queue": _Operation(Churn.queue),
    "binding": _Operation(Churn.binding, needs_queue=True),
    "consumer": _Operation(Churn.consumer, needs_queue=True),
}
