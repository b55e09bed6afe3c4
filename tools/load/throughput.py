"""The scenario of publishers and consumers: how many messages a second, and how long they take.

    set up       the queues are declared and bound, unless they are said to be there
    connect      each publisher and each consumer has a connection of its own; consumers begin to consume
    run          publishers begin at one moment. The run ends at a time, at limits of messages, when a connection is
                 lost, or when it is interrupted
    end          what is published is confirmed, within some seconds; the connections are closed

Publishers and consumers are shared out to several processes, of which the calling one is the first (`counters`).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from qstore.broker.client.errors import MessagingError, Timeout
from qstore.formats.errors import FormatError
from qstore.formats.named_tuple import NamedTuple
from qstore.tools.load.channel import Done, LoadChannel, Queue, Route, Style
from qstore.tools.load.clients import Consumer, Publisher, routes_of, stamp_clock
from qstore.tools.load.counters import Cell, Counters, State
from qstore.tools.load.loop import Line, Loop, close_all
from qstore.tools.load.protocols import Broker

_PATIENCE_SECONDS: Final = 60.0
_CONFIRM_SECONDS: Final = 5.0
_CLOSE_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.01
_MAX_TEXT: Final = 4096
_IDLE_SECONDS: Final = 1.0
"""After the last publisher has finished, consumers without a limit wait so long for another message."""

Report = Callable[["Interval"], None]


@dataclass(frozen=True, slots=True)
class Load:
    """What is generated.

    Attributes:
        publishers, consumers: how many there are.
        queues: names; a publisher uses them in turns, a consumer one of them.
        exchange, key: where messages go; empty and None: to the queues.
        routes: if there are any, each publisher sends to one of them, and not to the queues or the exchange.
        is_declared: whether the queues are there, and not declared.
        queue: what they are declared as; the name is not used.
        sizes: of the bodies, in bytes, in turns.
        style: what else messages are like.
        is_random: whether bodies are random.
        is_unique: whether each begins with the number of its message.
        window: unconfirmed messages of a publisher at most; 0: no confirms.
        acknowledge: a consumer acknowledges after so many messages; 0: none is needed.
        prefetch: unacknowledged messages of a consumer at most; 0: no limit.
        rate, consumer_rate: messages a second of each publisher, and of each consumer; 0: no limit.
        transaction, consumer_transaction: messages of a transaction; 0: none.
        publish_limit, consume_limit: messages of all publishers, and of all consumers, which may take some more if
            there are several; None: no limit.
        quota: messages of each consumer; 0: no limit. Only of AMQP 0-10.
        seconds: how long, after the warm-up; None: no limit.
        warm_up: seconds at the beginning that are not measured.
        has_latency: whether latencies are measured; `is_wall`: by the time of the day.
        processes: how many processes there are; no more than clients.
    """

    publishers: int = 1
    consumers: int = 1
    queues: Sequence[str] = ("perf-test",)
    exchange: str = ""
    key: str | None = None
    routes: Sequence[Route] = ()
    is_declared: bool = False
    queue: Queue = field(default_factory=lambda: Queue(""))
    sizes: Sequence[int] = (16,)
    style: Style = field(default_factory=Style)
    is_random: bool = False
    is_unique: bool = False
    window: int = 0
    acknowledge: int = 0
    prefetch: int = 1000
    rate: float = 0.0
    consumer_rate: float = 0.0
    transaction: int = 0
    consumer_transaction: int = 0
    publish_limit: int | None = None
    consume_limit: int | None = None
    quota: int = 0
    seconds: float | None = None
    warm_up: float = 0.0
    has_latency: bool = False
    is_wall: bool = False
    processes: int = 1


class Interval(NamedTuple):
    """What has happened in a time.

    Attributes:
        at: when it ended, in seconds since publishers began.
        seconds: how long it was.
        published, confirmed, refused, returned, consumed, others: numbers of messages (`counters.Cell`).
        latencies: the counts of latencies; empty if they are not measured.
        processor_seconds: processor time of the load generator.
    """

    at: float
    seconds: float
    published: int
    confirmed: int
    refused: int
    returned: int
    consumed: int
    others: int
    latencies: Sequence[int]
    processor_seconds: float

    @property
    def publish_rate(self) -> float:
        """Messages a second."""
        return self.published / max(self.seconds, 1e-9)

    @property
    def consume_rate(self) -> float:
        """Likewise."""
        return self.consumed / max(self.seconds, 1e-9)


@dataclass(slots=True)
class Result:
    """A run.

    Attributes:
        total: all of it after the warm-up.
        unconfirmed: messages that were not confirmed in time.
        publisher_seconds, consumer_seconds: how long each took to its limit, those that reached it.
        error: what has ended it; None for nothing.
        interruption: what has interrupted it.
    """

    total: Interval | None = None
    unconfirmed: int = 0
    publisher_seconds: Sequence[float] = ()
    consumer_seconds: Sequence[float] = ()
    error: MessagingError | None = None
    interruption: BaseException | None = None


def open_channels(loop: Loop, broker: Broker, count: int) -> list[LoadChannel]:
    """Open connections with a channel each. Raises MessagingError."""
    lines: list[Line] = []
    channels: list[LoadChannel] = []
    opened: set[int] = set()
    for number in range(count):
        line = broker.connect(loop)
        line.when_open(lambda line=line, number=number: begin(line, number))  # type: ignore[misc]
        lines.append(line)

    def begin(line: Line, number: int) -> None:
        channel = broker.channel(line)
        channels.append(channel)
        channel.open(lambda error: end(error, number))

    def end(error: Exception | None, number: int) -> None:
        if error is not None:
            loop.failed(as_messaging_error(error))
        opened.add(number)

    wait_for(loop, lambda: len(opened) == count, "the connections to be opened")
    order = {line: number for number, line in enumerate(lines)}
    return sorted(channels, key=lambda channel: order[channel.line])


def as_messaging_error(error: Exception) -> MessagingError:
    """The error of a call as one of the client."""
    return error if isinstance(error, MessagingError) else MessagingError(str(error))


def wait_for(loop: Loop, until: Callable[[], bool], what: str) -> None:
    """Run a loop until a condition is met. Raises MessagingError."""
    if not loop.run(until, time.monotonic() + _PATIENCE_SECONDS):
        raise loop.failure or Timeout(f"waited {_PATIENCE_SECONDS:g} s for {what}")


def call(loop: Loop, what: str, method: Callable[..., None], *arguments: Any, **others: Any) -> None:
    """Make a call on a channel, and wait for its end.

    Args:
        loop: serves its connection.
        what: what is waited for.
        method: the method of the channel.
        *arguments: its arguments.
        **others: those by name, but for `done`.

    Raises:
        MessagingError: it has failed.
    """
    answers: list[Exception | None] = []
    method(*arguments, done=answers.append, **others)
    wait_for(loop, lambda: bool(answers), what)
    if answers[0] is not None:
        raise as_messaging_error(answers[0])


@contextmanager
def one_channel(broker: Broker) -> Iterator[tuple[Loop, LoadChannel]]:
    """A connection with a channel, for calls; closed at the end. Raises MessagingError."""
    loop = Loop()
    try:
        (channel,) = open_channels(loop, broker, 1)
        yield loop, channel
        close_all(loop, [channel.line], _CLOSE_SECONDS)
    finally:
        loop.close()


def set_up(broker: Broker, load: Load) -> None:
    """Declare the queues and bind them, or see whether they are there. Raises MessagingError."""
    with one_channel(broker) as (loop, channel):
        for name in load.queues:
            what = f"the queue {name!r}"
            if not load.is_declared:
                call(loop, what, channel.declare_queue, load.queue._replace(name=name))
                if load.exchange:
                    key = name if load.key is None else load.key
                    call(loop, f"a binding to {load.exchange!r}", channel.bind, name, load.exchange, key)
            elif load.consumers or not load.exchange:
                call(loop, what, channel.check_queue, name)


def delete_queues(broker: Broker, names: Sequence[str]) -> None:
    """Delete queues. Raises MessagingError."""
    with one_channel(broker) as (loop, channel):
        for name in names:
            call(loop, f"the queue {name!r} to be deleted", channel.delete_queue, name)


# ---- the part of one process ----


class _Crew:
    """The publishers and consumers of one process.

    Args:
        broker: the broker.
        load: the load.
        counters: the numbers of all.
        number: the number of the process.
    """

    def __init__(self, broker: Broker, load: Load, counters: Counters, number: int) -> None:
        self._broker, self._load, self._counters = broker, load, counters
        self._row = counters.rows[number]
        clients = [("consumer", each) for each in range(load.consumers)]
        clients += [("publisher", each) for each in range(load.publishers)]
        mine = clients[number :: load.processes]
        self._consumer_numbers = [each for kind, each in mine if kind == "consumer"]
        self._publisher_numbers = [each for kind, each in mine if kind == "publisher"]
        self.loop = Loop(is_timed=bool(load.rate or load.consumer_rate))
        self.publishers: list[Publisher] = []
        self.consumers: list[Consumer] = []
        self._channels: list[LoadChannel] = []
        self._measured = 0.0

    def connect(self) -> None:
        """Open the connections, and begin to consume. Raises MessagingError."""
        load, loop = self._load, self.loop
        clock = stamp_clock(is_wall=load.is_wall) if load.has_latency else None
        channels = open_channels(loop, self._broker, len(self._consumer_numbers) + len(self._publisher_numbers))
        self._channels = channels
        for number, channel in zip(self._consumer_numbers, channels, strict=False):
            if load.consumer_transaction:
                call(loop, "transactions", channel.select_transactions)
            self.consumers.append(
                Consumer(
                    channel, self._row, acknowledge=load.acknowledge, rate=load.consumer_rate,
                    left=None if load.consume_limit is None else self._left, quota=load.quota,
                    transaction=load.consumer_transaction, clock=clock, ended=self._ends(number),
                )
            )  # fmt: skip
            if load.publishers:
                call(loop, "a consumer", self._consume, channel, number)
        routes = routes_of(load.queues, load.exchange, load.key)
        for number, channel in zip(self._publisher_numbers, channels[len(self._consumer_numbers) :], strict=True):
            if load.routes:
                routes = [load.routes[number % len(load.routes)]]
            call(loop, "a publisher", channel.publish_to, routes, confirms=bool(load.window))
            if load.transaction:
                call(loop, "transactions", channel.select_transactions)
            self.publishers.append(
                Publisher(
                    channel, self._row, routes=routes, sizes=load.sizes, style=load.style, window=load.window,
                    rate=load.rate, limit=_share(load.publish_limit, number, load.publishers),
                    transaction=load.transaction, clock=clock, is_random=load.is_random, is_unique=load.is_unique,
                    ended=self._ends(load.consumers + number),
                )
            )  # fmt: skip
        self._row.cells[Cell.PROCESSOR_NS] = time.process_time_ns()
        self._row.cells[Cell.READY] = 1

    def _ends(self, client: int) -> Callable[[], None]:
        """Notes when a client has reached its limit."""

        def end() -> None:
            self._counters.ended_ns[client] = time.monotonic_ns()

        return end

    def _left(self) -> int:
        """How many messages may still be consumed."""
        return (self._load.consume_limit or 0) - self._counters.total(Cell.CONSUMED)

    def _consume(self, channel: LoadChannel, number: int, done: Done) -> None:
        queue, acknowledges = self._load.queues[number % len(self._load.queues)], bool(self._load.acknowledge)
        limit = self._load.quota
        channel.consume(queue, self._load.prefetch, acknowledges=acknowledges, done=done, limit=limit)

    def start(self) -> None:
        """Begin to publish; without publishers, to consume."""
        now = time.monotonic()
        if not self._load.publishers:
            for number, channel in zip(self._consumer_numbers, self._channels, strict=True):
                self._consume(channel, number, self._begun)
        for consumer in self.consumers:
            consumer.began_ns = self._counters.state[State.BEGAN_NS]
        for publisher in self.publishers:
            publisher.start(now)

    def _begun(self, error: Exception | None) -> None:
        if error is not None:
            self.loop.failed(as_messaging_error(error))

    def turn(self, wait: float) -> None:
        """Run for a turn. Raises MessagingError: a connection was lost."""
        now = time.monotonic()
        self.loop.turn(now, wait)
        if now >= self._measured:
            self._measured = now + _LOOK_SECONDS
            self._row.cells[Cell.PROCESSOR_NS] = time.process_time_ns()
        if self.loop.failure is not None:
            raise self.loop.failure

    def stop(self) -> None:
        """Publish no more; wait until all is confirmed, and close the connections."""
        for publisher in self.publishers:
            publisher.stop()
        if self.loop.failure is None:
            self.loop.run(
                lambda: not any(each.unsettled for each in self.publishers), time.monotonic() + _CONFIRM_SECONDS
            )
            for consumer in self.consumers:
                consumer.finish()
            close_all(self.loop, [channel.line for channel in self._channels], _CLOSE_SECONDS)
        self.loop.close()


def _share(limit: int | None, number: int, count: int) -> int | None:
    """The part of a limit that one of several has."""
    return None if limit is None else limit // count + (number < limit % count)


# ---- several processes ----


class _Helper:
    """A process with a part of the load."""

    def __init__(self, broker: Broker, load: Load, counters: Counters, number: int) -> None:
        self._output, own = os.pipe()
        self._text: str | None = None
        self.pid = os.fork()
        if self.pid:
            os.close(own)
            return
        os.close(self._output)
        code = 1
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that began the run hears of it
            text = _work(broker, load, counters, number)
            os.write(own, text.encode()[:_MAX_TEXT])
            code = 1 if text else 0
        finally:
            os._exit(code)

    def ended(self) -> bool:
        """Whether it has ended by itself."""
        pid, _ = os.waitpid(self.pid, os.WNOHANG) if self.pid else (0, 0)
        if pid:
            self.pid = 0
        return not self.pid

    def wait(self) -> str:
        """Wait for its end. Returns what has ended it; empty for nothing."""
        if self._text is not None:
            return self._text
        until = time.monotonic() + _CONFIRM_SECONDS + _CLOSE_SECONDS + 1
        while not self.ended() and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0
        self._text = os.read(self._output, _MAX_TEXT).decode()
        os.close(self._output)
        return self._text


def _work(broker: Broker, load: Load, counters: Counters, number: int) -> str:
    """What a helper does. Returns what has ended it; empty for nothing."""
    parent, state = os.getppid(), counters.state
    try:
        crew = _Crew(broker, load, counters, number)
        crew.connect()
        while not state[State.BEGAN_NS] and not state[State.IS_OVER] and os.getppid() == parent:
            crew.turn(_LOOK_SECONDS)
        crew.start()
        while not state[State.IS_OVER] and os.getppid() == parent:
            crew.turn(_LOOK_SECONDS)
        crew.stop()
    except (MessagingError, FormatError) as error:
        return str(error) or type(error).__name__
    return ""


class _Run:
    """A run, as the process that began it sees it."""

    def __init__(self, broker: Broker, load: Load, report: Report, interval: float) -> None:
        self._broker, self._load, self._report, self._interval = broker, load, report, interval
        self._counters = Counters(load.processes, load.consumers + load.publishers)
        self._began = 0.0
        self._other_helpers: list[_Helper] = []

    def run(self, marks: Callable[[str], None]) -> Result:
        load, counters, result = self._load, self._counters, Result()
        crew: _Crew | None = None
        try:
            self._other_helpers = [_Helper(self._broker, load, counters, number) for number in range(1, load.processes)]
            crew = _Crew(self._broker, load, counters, 0)
            crew.connect()
            while not all(row.cells[Cell.READY] for row in counters.rows):
                crew.turn(_LOOK_SECONDS)
                self._check_helpers()
            self._began = time.monotonic()
            counters.state[State.BEGAN_NS] = stamp_clock(is_wall=load.is_wall)()
            crew.start()
            self._drive(crew, result, marks)
        except MessagingError as error:
            result.error = error
        except FormatError as error:
            result.error = MessagingError(str(error))
        except KeyboardInterrupt as error:
            result.interruption = error
        counters.state[State.IS_OVER] = 1
        if crew is not None:
            crew.stop()
        for helper in self._other_helpers:
            text = helper.wait()
            if text and result.error is None:
                result.error = MessagingError(text)
        result.consumer_seconds = self._took(counters.ended_ns[: load.consumers])
        result.publisher_seconds = self._took(counters.ended_ns[load.consumers :])
        if load.window:
            settled = counters.total(Cell.CONFIRMED) + counters.total(Cell.REFUSED)
            result.unconfirmed = counters.total(Cell.PUBLISHED) - settled
        return result

    def _took(self, ended_ns: Iterable[int]) -> list[float]:
        return [ended / 1e9 - self._began for ended in ended_ns if ended]

    def _check_helpers(self) -> None:
        for helper in self._other_helpers:
            if helper.ended():
                raise MessagingError(helper.wait() or "a process of the load generator has ended")

    def _drive(self, crew: _Crew, result: Result, marks: Callable[[str], None]) -> None:
        """Run until the end; `marks` is called when what is measured begins and ends."""
        load = self._load
        wait = _LOOK_SECONDS if load.processes > 1 else 0.2
        if load.warm_up:
            while time.monotonic() < self._began + load.warm_up:
                crew.turn(min(wait, _LOOK_SECONDS))
                self._check_helpers()
        marks("begin")
        first = last = self._snapshot()
        if not load.warm_up:  # what consumers have got before publishers began is part of it
            first = last = _nothing(first)
        end = None if load.seconds is None else first.at + load.seconds
        following = first.at + self._interval
        try:
            while not self._is_over():
                now = time.monotonic() - self._began
                if end is not None and now >= end:
                    break
                limit = following if end is None else min(following, end)
                crew.turn(max(0.0, min(wait, limit - now)))
                self._check_helpers()
                if now >= following:
                    following += self._interval
                    snapshot = self._snapshot()
                    self._report(_between(last, snapshot))
                    last = snapshot
        finally:
            marks("end")
            result.total = _between(first, self._until_last())

    def _until_last(self) -> Interval:
        """What has happened. If limits have ended the run, the time after the last message does not count."""
        snapshot = self._snapshot()
        ended = self._counters.last_ns / 1e9 - self._began
        if self._has_limits and 0 < ended < snapshot.at and self._is_over():
            return snapshot._replace(at=ended, seconds=ended)
        return snapshot

    @property
    def _has_limits(self) -> bool:
        load = self._load
        return load.publish_limit is not None or load.consume_limit is not None or bool(load.quota)

    def _is_over(self) -> bool:
        """Whether all limits of messages are reached."""
        load, counters = self._load, self._counters
        if not self._has_limits:
            return False
        if load.publish_limit is not None and counters.total(Cell.FINISHED) < load.publishers:
            return False
        if load.consume_limit is not None and counters.total(Cell.CONSUMED) < load.consume_limit:
            return False
        if load.quota:
            return all(counters.ended_ns[: load.consumers])
        if load.consumers and load.consume_limit is None:
            return time.monotonic() - counters.last_ns / 1e9 > _IDLE_SECONDS
        return True

    def _snapshot(self) -> Interval:
        counters, load = self._counters, self._load
        at, total = time.monotonic() - self._began, counters.total
        return Interval(
            at=at, seconds=at, published=total(Cell.PUBLISHED), confirmed=total(Cell.CONFIRMED),
            refused=total(Cell.REFUSED), returned=total(Cell.RETURNED), consumed=total(Cell.CONSUMED),
            others=total(Cell.OTHERS), latencies=counters.latencies() if load.has_latency else (),
            processor_seconds=total(Cell.PROCESSOR_NS) / 1e9,
        )  # fmt: skip


def _nothing(moment: Interval) -> Interval:
    """No messages, until that moment."""
    return moment._replace(
        published=0, confirmed=0, refused=0, returned=0, consumed=0, others=0, latencies=[0] * len(moment.latencies)
    )


def _between(first: Interval, last: Interval) -> Interval:
    """What has happened between two moments, each of which has everything since the beginning."""
    return Interval(
        at=last.at, seconds=last.seconds - first.seconds, published=last.published - first.published,
        confirmed=last.confirmed - first.confirmed, refused=last.refused - first.refused,
        returned=last.returned - first.returned, consumed=last.consumed - first.consumed,
        others=last.others - first.others,
        latencies=[after - before for before, after in zip(first.latencies, last.latencies, strict=True)],
        processor_seconds=last.processor_seconds - first.processor_seconds,
    )  # fmt: skip


def run(
    broker: Broker,
    load: Load,
    report: Report = lambda _: None,
    *,
    interval: float = 1.0,
    marks: Callable[[str], None] = lambda _: None,
) -> Result:
    """Generate load.

    Args:
        broker: the broker.
        load: what is generated; the queues are there (`set_up`).
        report: called at every interval.
        interval: seconds.
        marks: called with "begin" and "end" when what is measured begins and ends.
    """
    clients = load.publishers + load.consumers
    if load.processes > clients:
        raise ValueError(f"{load.processes} processes for {clients} clients")
    sys.stdout.flush()  # what is buffered would be printed by each process
    return _Run(broker, load, report, interval).run(marks)
