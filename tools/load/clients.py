"""A publisher and a consumer.

**Windows.** A publisher has at most so many messages that the broker has not confirmed. It sends several at once: it
waits until an eighth of the window is free. Without confirms it sends what the socket takes.

**Rates.** A publisher sends each message when it is due, or as soon after that as it can. A consumer with a rate does
not read faster, so that the broker waits for it.

**Latencies.** The first eight bytes of a body are the time at which the message was sent, or, with a rate, at which it
was due: a message that a busy publisher sends late is late. Messages that are sent at once have one time.
"""

from __future__ import annotations

import math
import os
import random
import struct
import time
from collections.abc import Callable, Sequence
from typing import Final

from qstore.formats.kernels.bodies import Bodies
from qstore.tools.load.channel import Encoded, LoadChannel, Route, Style
from qstore.tools.load.counters import Cell, Row
from qstore.tools.load.latencies import bucket_of
from qstore.tools.load.loop import READ_BYTES, Worker

STAMP: Final = struct.Struct(">Q")
_AT_ONCE_BYTES: Final = 64 << 10
_AT_ONCE: Final = 1000
_FREE: Final = 8  # an eighth of the window
_READS: Final = 50  # a second, of a consumer with a rate
_MIN_READ: Final = 256
_RANDOM_BODIES: Final = 64
"""Different bodies of a publisher whose bodies are random."""
_MAX_CYCLE: Final = 4096

Clock = Callable[[], int]
"""The time in nanoseconds."""


class Publisher(Worker):
    """A publisher on a channel.

    Args:
        channel: the channel, on which `LoadChannel.publish_to` was called.
        row: where it counts.
        routes: where messages go, in turns.
        sizes: of the bodies, in turns, in bytes.
        style: what else messages are like.
        window: unconfirmed messages at most; 0 for no confirms.
        rate: messages a second; 0 for as many as possible.
        limit: messages in all; None for no limit.
        transaction: messages of a transaction; 0 for none.
        clock: of the time stamps; None for none.
        is_random: whether bodies are random.
        is_unique: whether each body begins with the number of its message, in eight bytes.
        ended: called when it has reached its limit.

    Attributes:
        sent: messages sent.
        settled: those that were confirmed or refused.
        is_finished: whether it has reached its limit.
    """

    def __init__(
        self,
        channel: LoadChannel,
        row: Row,
        *,
        routes: Sequence[Route],
        sizes: Sequence[int],
        style: Style,
        window: int = 0,
        rate: float = 0.0,
        limit: int | None = None,
        transaction: int = 0,
        clock: Clock | None = None,
        is_random: bool = False,
        is_unique: bool = False,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._channel, self._row, self._window, self._rate, self._limit = channel, row, window, rate, limit
        self._is_unique, self._ended = is_unique, ended
        self._transaction, self._clock = transaction, clock
        self._cycle = self._encode(routes, sizes, style, is_random=is_random)
        largest = max(len(each.data) for each in self._cycle)
        self._at_once = max(1, min(_AT_ONCE, _AT_ONCE_BYTES // largest))
        self._next = 0  # in the cycle
        self._joined: Encoded | None = None
        self.sent = self.settled = 0
        self._uncommitted = 0
        self._is_running = self._is_committing = self.is_finished = False
        self._began = 0.0
        channel.confirms = self
        channel.line.worker = self

    def _encode(self, routes: Sequence[Route], sizes: Sequence[int], style: Style, *, is_random: bool) -> list[Encoded]:
        """The messages that are sent in turns."""
        bodies = _RANDOM_BODIES if is_random else 1
        count = min(math.lcm(len(routes), len(sizes), bodies), max(_MAX_CYCLE, len(routes)))
        filler = bytes(b"@ABCDEFGHIJKLMNOPQRSTUVWXYZ"[each % 27] for each in range(max(sizes)))
        found: dict[tuple[int, int], Encoded] = {}
        cycle = []
        for number in range(count):
            key = number % len(routes), sizes[number % len(sizes)]
            if is_random:
                cycle.append(self._channel.encode(key[0], os.urandom(key[1]), style))
                continue
            if key not in found:
                found[key] = self._channel.encode(key[0], filler[: key[1]], style)
            cycle.append(found[key])
        return cycle

    # ---- running ----

    def start(self, now: float) -> None:
        """Begin to publish."""
        self._is_running, self._began = True, now
        if self._rate:  # so that many publishers do not all publish at the same moments
            self._began += random.random() / self._rate  # noqa: S311
        self._channel.line.loop.wake(self)

    def stop(self) -> None:
        """Publish no more."""
        self._is_running = False

    @property
    def unsettled(self) -> int:
        """Messages that the broker has neither confirmed nor refused."""
        return self.sent - self.settled if self._window else 0

    def work(self, now: float) -> None:
        """Send what may be sent."""
        if not self._is_running or self._is_committing or self._channel.line.is_full:
            return
        count = self._free()
        if count and self._rate:
            due = int((now - self._began) * self._rate) + 1 - self.sent if now >= self._began else 0
            if due <= 0:
                self._channel.line.loop.wake_at(self._began + self.sent / self._rate, self)
                return
            count = min(count, due)
        if not count:
            return
        sent = self._send_due(count) if self._rate and self._clock is not None else self._send(count)
        if not sent:
            return  # `on_room` follows
        self._count(sent)
        if not self._is_committing and not self.is_finished:
            self._channel.line.loop.wake(self)

    def _free(self) -> int:
        """How many messages may be sent at once."""
        count = self._at_once
        if self._window:
            free = self._window - self.unsettled
            if free < min(count, self._window // _FREE):
                return 0
            count = min(count, free)
        if self._limit is not None:
            count = min(count, self._limit - self.sent)
        if self._transaction:
            count = min(count, self._transaction - self._uncommitted)
        return count

    def _count(self, sent: int) -> None:
        self.sent += sent
        self._row.cells[Cell.PUBLISHED] += sent
        self._row.touch()
        if self._transaction:
            self._uncommitted += sent
            if self._uncommitted == self._transaction or self.sent == self._limit:
                self._uncommitted, self._is_committing = 0, True
                self._channel.commit(self._committed)
                return
        self._look()

    def _committed(self, error: Exception | None) -> None:
        self._is_committing = False
        if error is None:
            self._look()
            self._channel.line.loop.wake(self)

    def _look(self) -> None:
        """See whether it has finished."""
        if self._limit is not None and self.sent >= self._limit and not self.unsettled and not self.is_finished:
            self.is_finished = True
            self._row.cells[Cell.FINISHED] += 1
            self._ended()

    # ---- sending ----

    def _send(self, count: int) -> int:
        """Send messages, all with one time. Returns how many."""
        if self._is_unique:
            return self._send_unique(count)
        stamp = b"" if self._clock is None else STAMP.pack(self._clock())
        cycle, channel = self._cycle, self._channel
        if len(cycle) == 1:
            count = min(count, channel.room(cycle[0].route))
            if count:
                channel.put(_stamped(cycle[0], stamp), count)
            return count
        if channel.joins and channel.room(0):
            return self._send_joined(count, stamp)
        return self._send_singly(count, stamp)

    def _send_joined(self, count: int, stamp: bytes) -> int:
        cycle, channel = self._cycle, self._channel
        whole = count // len(cycle)
        if whole and not self._next:
            if self._joined is None or stamp:
                self._joined = Encoded(b"".join([_stamped(each, stamp).data for each in cycle]), -1, 0)
            channel.put(self._joined, whole, len(cycle))
            return whole * len(cycle)
        part = cycle[self._next : self._next + count]
        self._next = (self._next + len(part)) % len(cycle)
        channel.put(Encoded(b"".join([_stamped(each, stamp).data for each in part]), -1, part[0].route), 1, len(part))
        return len(part)

    def _send_singly(self, count: int, stamp: bytes) -> int:
        """Send messages in turns; those to routes for which there is no room wait, and the others behind them."""
        sent = 0
        while sent < count and self._channel.room(self._cycle[self._next].route):
            self._channel.put(_stamped(self._cycle[self._next], stamp), 1)
            self._next = (self._next + 1) % len(self._cycle)
            sent += 1
        return sent

    def _send_unique(self, count: int) -> int:
        """Send messages, each with its number. Returns how many."""
        for number in range(count):
            message = self._cycle[self._next]
            if not self._channel.room(message.route):
                return number
            self._channel.put(_stamped(message, STAMP.pack(self.sent + number)), 1)
            self._next = (self._next + 1) % len(self._cycle)
        return count

    def _send_due(self, count: int) -> int:
        """Send messages, each with the time at which it was due. Returns how many."""
        assert self._clock is not None
        offset = self._clock() - int(time.monotonic() * 1e9)
        for number in range(count):
            message = self._cycle[self._next]
            if not self._channel.room(message.route):
                return number
            due = self._began + (self.sent + number) / self._rate
            self._channel.put(_stamped(message, STAMP.pack(int(due * 1e9) + offset)), 1)
            self._next = (self._next + 1) % len(self._cycle)
        return count

    # ---- as the owner of confirms ----

    def on_confirmed(self, count: int, *, is_accepted: bool) -> None:
        """As `ConfirmOwner.on_confirmed`."""
        self.settled += count
        self._row.cells[Cell.CONFIRMED if is_accepted else Cell.REFUSED] += count
        self._row.touch()
        self._look()
        self.on_room()

    def on_returned(self) -> None:
        """As `ConfirmOwner.on_returned`."""
        self._row.cells[Cell.RETURNED] += 1

    def on_room(self) -> None:
        """As `ConfirmOwner.on_room`."""
        if self._is_running:
            self._channel.line.loop.wake(self)


def _stamped(message: Encoded, stamp: bytes) -> Encoded:
    return message.with_beginning(stamp) if stamp else message


class Consumer(Worker):
    """A consumer on a channel.

    Args:
        channel: the channel.
        row: where it counts.
        acknowledge: after how many messages it acknowledges them; 0: they need no acknowledgement.
        rate: messages a second; 0 for as many as possible.
        left: how many messages all consumers together may still consume; None for no limit.
        quota: how many it consumes itself, and the broker sends it; 0 for no limit.
        transaction: messages of a transaction; 0 for none.
        clock: of the time stamps; None: they are not looked at.
        ended: called when it has reached its quota.

    Attributes:
        consumed: messages consumed.
        began_ns: only messages that were sent since then are measured.
    """

    def __init__(
        self,
        channel: LoadChannel,
        row: Row,
        *,
        acknowledge: int,
        rate: float = 0.0,
        left: Callable[[], int] | None = None,
        quota: int = 0,
        transaction: int = 0,
        clock: Clock | None = None,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._quota, self._ended = quota, ended
        self._channel, self._row, self._acknowledge, self._rate = channel, row, acknowledge, rate
        self._left, self._transaction, self._clock = left, transaction, clock
        self.consumed = 0
        self.began_ns = 0
        self._first = self._following = 0  # messages that are not acknowledged yet: from the one, up to the other
        self._uncommitted = 0
        self._began = 0.0
        channel.deliveries = self
        if rate:
            channel.line.after_input.append(self._keep_pace)

    def _keep_pace(self) -> None:
        """Do not read before the messages that were read are due."""
        now = time.monotonic()
        self._began = self._began or now
        due = self._began + self.consumed / self._rate
        if due > now:
            self._channel.line.hold(is_held=True)
            self._channel.line.loop.wake_at(due, self)

    def work(self, now: float) -> None:  # noqa: ARG002 – as the others have it
        """Read again."""
        self._channel.line.hold(is_held=False)

    # ---- as the owner of deliveries ----

    def on_message(self, number: int, body: bytes) -> None:
        """As `DeliveryOwner.on_message`."""
        if self._left is not None and self._left() < 1:
            return
        if self._clock is not None:
            self._measure(body, range(1) if len(body) >= STAMP.size else (), 1)
        self._take(number, 1, len(body))

    def on_messages(self, first: int, bodies: Bodies, skipped: int) -> None:
        """As `DeliveryOwner.on_messages`."""
        count = bodies.count if self._left is None else min(bodies.count, self._left())
        if count < 1:
            return
        size = bodies.smallest - skipped
        if self._clock is not None:
            places: Sequence[int] = ()
            if size >= STAMP.size:
                places = [bodies.at + bodies.start(number) + skipped for number in range(count)]
                if bodies.is_even:
                    stride = bodies.gap + bodies.largest
                    begin = bodies.at + bodies.start(0) + skipped
                    places = range(begin, begin + count * stride, stride)
            self._measure(bodies.data, places, count)
        self._take(first, count, size)

    def _measure(self, data: bytes, places: Sequence[int], count: int) -> None:
        """Count the latencies of messages, whose time stamps are at these places."""
        assert self._clock is not None
        now, latencies, size = self._clock(), self._row.latencies, STAMP.size
        known = at = 0
        while at < len(places):
            begin = places[at]
            stamp = data[begin : begin + size]
            end = at + 1
            while end < len(places) and data.startswith(stamp, places[end]):
                end += 1
            sent = int.from_bytes(stamp, "big")
            if self.began_ns <= sent <= now:
                latencies[bucket_of(now - sent)] += end - at
                known += end - at
            at = end
        self._row.cells[Cell.OTHERS] += count - known

    def _take(self, first: int, count: int, size: int) -> None:
        self.consumed += count
        self._row.cells[Cell.CONSUMED] += count
        self._row.touch()
        if self._rate and self._channel.line.read_bytes == READ_BYTES:
            self._channel.line.read_bytes = max(_MIN_READ, int((size + _MIN_READ) * self._rate / _READS))
        if self._acknowledge:
            self._settle(first, count)
        if self._quota and self.consumed >= self._quota:
            self.finish()
            self._ended()

    def finish(self) -> None:
        """Acknowledge what was consumed and is not acknowledged yet."""
        if self._first < self._following:
            self._accept(self._following)
        if self._transaction and self._uncommitted:
            self._uncommitted = 0
            self._channel.commit(_ignore)

    def _settle(self, first: int, count: int) -> None:
        if first != self._following:  # other numbers are between them
            if self._first < self._following:
                self._accept(self._following)
            self._first = first
        self._following = first + count
        while self._following - self._first >= self._acknowledge:
            self._accept(self._first + self._acknowledge)

    def _accept(self, end: int) -> None:
        self._channel.accept(self._first, end - 1)
        self._uncommitted += end - self._first
        self._first = end
        if self._transaction and self._uncommitted >= self._transaction:
            self._uncommitted = 0
            self._channel.commit(_ignore)


def _ignore(_error: Exception | None) -> None:
    """For calls whose answer is not waited for: their errors end the connection."""


def routes_of(names: Sequence[str], exchange: str, key: str | None) -> list[Route]:
    """Where messages go: to the queues with these names, or to an exchange, with a key or with the names as keys."""
    if exchange and key is not None:
        return [Route(exchange, key)]
    return [Route(exchange, name) for name in names]


def stamp_clock(*, is_wall: bool) -> Clock:
    """The clock of time stamps: monotonic, or that of the day, if publishers and consumers are on several machines."""
    return time.time_ns if is_wall else time.monotonic_ns
