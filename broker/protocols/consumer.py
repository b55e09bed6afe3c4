"""A consumer of a queue that sends messages to its client: the part common to all protocols.

A protocol's `deliver` handles every outgoing message: it adds the frames of a message to the connection's output. In
0-10 and 0-9-1 its header and its body have frames of their own, whose heads are prepared once for each length. A
message takes its own size plus `COST_OF_MESSAGE` from the connection's `room`.

The window depends on the protocol: credit in messages (and bytes), which settling or completing a delivery returns.
When the session ends, unsettled messages return to their queues.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from math import ceil
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from qstore.broker.model.queues.entry import ACQUIRED, HELD, Entry
from qstore.broker.model.run import KeyedRun, MessageRun, RunEntry
from qstore.broker.model.selectors.candidate import Candidate
from qstore.broker.model.settlement import AT_ONCE, release_in_turns
from qstore.broker.model.topology.deletion import DELETED_AT_ONCE
from qstore.formats.values import TypedMap

if TYPE_CHECKING:
    from qstore.broker.model.message import Message
    from qstore.broker.model.queues.queue import Queue
    from qstore.broker.model.selectors.candidate import LastCandidate
    from qstore.broker.model.tick import Turns
    from qstore.formats.kernels.bodies import Bodies

NO_NUMBER: Final = 1 << 62
"""Above all numbers of deliveries."""

_HEADS_KEPT: Final = 1024
_first = attrgetter("first")


class SendingConsumer:
    """A consumer.

    Args:
        destination: its name in its session.
        queue: the queue that it consumes.
        acquires: whether it acquires messages, or browses them.
        is_accepting: whether messages are dequeued only when the client accepts them.
        arguments: the client's arguments.

    Attributes:
        acquires, cursor, is_waiting: as in `Consumer`.
        destination, queue, is_accepting, is_windowed, arguments: as in `ManagedSubscription`.
    """

    __slots__ = (
        "acquires", "arguments", "cursor", "destination", "is_accepting", "is_waiting", "is_windowed", "queue",
    )  # fmt: skip
    __deletable__ = ("cursor",)  # mypyc must know what `del` removes

    cursor: Entry

    def __init__(
        self, destination: str, queue: Queue, *, acquires: bool, is_accepting: bool, arguments: TypedMap
    ) -> None:
        self.destination, self.queue, self.arguments = destination, queue, arguments
        self.acquires, self.is_accepting = acquires, is_accepting
        self.is_waiting, self.is_windowed = False, True

    @property
    def prefetch(self) -> int:
        """As `ManagedSubscription.prefetch`."""
        return 0

    def room_for(self, run: MessageRun) -> int:  # noqa: ARG002 – for subclasses
        """As `Consumer.room_for`: most take single messages."""
        return 0

    def deliver_run(self, run: RunEntry) -> int:
        """As `Consumer.deliver_run`."""
        raise NotImplementedError(f"{self.destination} takes single messages")


class FramedConsumer(SendingConsumer):
    """A consumer of a protocol that sends header and body of a message in frames of their own (0-10 and 0-9-1)."""

    __slots__ = ("_body_heads", "_heads")

    def __init__(
        self, destination: str, queue: Queue, *, acquires: bool, is_accepting: bool, arguments: TypedMap
    ) -> None:
        super().__init__(destination, queue, acquires=acquires, is_accepting=is_accepting, arguments=arguments)
        self._heads: dict[int, bytes] = {}  # by size of the header
        self._body_heads: dict[int, bytes] = {}  # by size of the body

    @abstractmethod
    def encode_head(self, length: int) -> bytes:
        """The bytes before a header of `length` bytes."""

    @abstractmethod
    def encode_body_head(self, length: int) -> bytes:
        """The bytes between header and body, before a body of `length` bytes."""

    def make_head(self, length: int) -> bytes:
        """As `encode_head`, cached for later messages."""
        head = self.encode_head(length)
        if len(self._heads) < _HEADS_KEPT:
            self._heads[length] = head
        return head

    def make_body_head(self, length: int) -> bytes:
        """As `encode_body_head`, cached for later messages."""
        head = self.encode_body_head(length)
        if len(self._body_heads) < _HEADS_KEPT:
            self._body_heads[length] = head
        return head

    def forget_heads(self) -> None:
        """Clear the caches: the session has another channel."""
        self._heads.clear()
        self._body_heads.clear()


class MessageCondition(Protocol):
    """Decides which messages a consumer gets: a selector, or what a protocol has besides.

    Attributes:
        text: conditions with equal texts match the same messages.
    """

    @property
    def text(self) -> str:
        """As above."""

    def matches(self, candidate: Candidate) -> bool:
        """Whether a message matches. Adds to the candidate's work."""


class SelectorCheck:
    """Decides which messages of a queue a consumer gets, by a selector. A message that was refused is evaluated once.

    Args:
        selector: the selector.
        last: the last candidate examined by any consumer of the broker.

    Attributes:
        text: of the selector: consumers with equal ones can take the same messages.
    """

    __slots__ = ("_declined", "_last", "_selected", "_selector", "_was_redelivered", "_work", "text")

    def __init__(self, selector: MessageCondition, last: LastCandidate) -> None:
        self._selector, self._last, self.text = selector, last, selector.text
        self._selected: Message | None = None  # a matching message that was refused
        self._declined: Message | None = None  # the template of the last run that does not match
        self._was_redelivered = False  # whether its delivery would have been marked as redelivered
        self._work = 0

    def admits(self, entry: Entry) -> bool:
        """Whether the message of an entry matches."""
        self._work, is_redelivered = 0, entry.is_redelivered
        if entry.message is self._selected and is_redelivered is self._was_redelivered:
            return True
        candidate = self._last.of(entry.message, is_redelivered=is_redelivered)
        before = candidate.work
        matches = self._selector.matches(candidate)
        if matches:
            self._last.forget()
            self._was_redelivered = is_redelivered
        self._work = candidate.work - before
        return matches

    def admits_run(self, run: MessageRun, connection: Roomy) -> bool:
        """Whether all messages of a run match, whose content no selector reads, be they redelivered or not.

        The work for that takes from the room of the connection. A run that has not matched is not evaluated again.
        """
        template = run.template
        if template is self._declined or isinstance(run, KeyedRun):  # a selector may read the routing key
            return False
        for is_redelivered in (False, True):
            candidate = Candidate(template, is_redelivered=is_redelivered)
            matches = self._selector.matches(candidate)
            connection.room -= candidate.work
            if not matches:
                self._declined = template
                return False
        return True

    def answered(self, entry: Entry, connection: Roomy, *, is_refused: bool) -> None:
        """Note what the consumer has answered to an entry: the work for it takes from the room of its connection."""
        self._selected = entry.message if is_refused else None
        connection.room -= self._work
        if connection.room <= 0 and self._work:
            connection.has_output()  # renews its room


class Roomy(Protocol):
    """A connection, as its consumers see it.

    Attributes:
        room: bytes that may be sent before yielding to other connections.
    """

    room: int

    def has_output(self) -> None:
        """Schedule the output to be sent."""


def with_numbers(written: bytes | memoryview, at: int, number: int, bodies: Bodies, first: int, count: int) -> bytes:
    """Messages of a run as a consumer gets them, with consecutive numbers in their headers.

    Args:
        written: the messages, as `write_deliveries` has written them.
        at: where in the first one the number is, 8 bytes, big endian.
        number: the number of the first; those of the others follow.
        bodies: the bodies of the run.
        first: the number of the first of them.
        count: how many.
    """
    numbers = struct.pack(f">{count}Q", *range(number, number + count))
    out = bytearray(written)
    if bodies.is_even:  # 15 ns a message, and not 150
        size = len(written) // count
        for place in range(8):
            out[at + place :: size] = numbers[place::8]
        return bytes(out)
    around = (len(written) - bodies.size(first, count)) // count
    for index in range(count):
        out[at : at + 8] = numbers[8 * index : 8 * index + 8]
        at += around + bodies.size(first + index, 1)
    return bytes(out)


class HeldRun:
    """Messages of a run that were delivered to one consumer and are not settled.

    Args:
        queue, entry: their queue, and their entry there.
        consumer: the consumer.
        first: the number under which the first was delivered; the others follow.

    Attributes:
        queue, entry, consumer, first: as above. As messages are settled it begins later.
    """

    __slots__ = ("consumer", "entry", "first", "queue")

    def __init__(self, queue: Queue, entry: RunEntry, consumer: Any, first: int) -> None:
        self.queue, self.entry, self.consumer, self.first = queue, entry, consumer, first

    @property
    def end(self) -> int:
        """The number after the last."""
        return self.first + self.entry.count

    @property
    def is_whole(self) -> bool:
        """Whether they can be settled together: their queue exists, and nothing has looked at single ones."""
        return self.entry.state == HELD and not self.queue.is_deleted

    def singly(self) -> Iterator[tuple[int, Entry]]:
        """The number and the entry of each message, which has its own entry now."""
        return enumerate(self.queue.unfold_run(self.entry), self.first)


class HeldRuns:
    """The unsettled deliveries to one session in runs, by number.

    Attributes:
        count: how many messages.
    """

    __slots__ = ("_runs", "count")

    def __init__(self) -> None:
        self._runs: deque[HeldRun] = deque()  # ascending
        self.count = 0

    def __iter__(self) -> Iterator[HeldRun]:
        return iter(self._runs)

    @property
    def first(self) -> int:
        """The first number; NO_NUMBER if there is none."""
        return self._runs[0].first if self._runs else NO_NUMBER

    def add(self, run: HeldRun) -> None:
        """Add a run, whose numbers are after all others."""
        self._runs.append(run)
        self.count += run.entry.count

    def beginning_with(self, number: int) -> HeldRun | None:
        """The run that begins with a number, split off from the one that contains it; None if none does."""
        runs = self._runs
        if not runs or number < runs[0].first:
            return None
        at = 0
        if len(runs) > 1 and runs[1].first <= number:
            at = bisect_right(runs, number, key=_first) - 1
        run = runs[at]
        if number >= run.end:
            return None
        if number > run.first and run.is_whole:
            runs.insert(at, self._split(run, number - run.first))
        return run

    def overlapping(self, first: int, last: int) -> HeldRun | None:
        """The first run with any number from `first` to `last`; None if there is none."""
        runs = self._runs
        if not runs or runs[0].first > last:
            return None
        at = 0 if first < runs[0].end else max(0, bisect_right(runs, first, key=_first) - 1)
        if runs[at].end <= first:
            at += 1
        return runs[at] if at < len(runs) and runs[at].first <= last else None

    def settled(self, run: HeldRun, count: int) -> None:
        """The first `count` messages of a run were settled, and its entry knows."""
        self.count -= count
        if not run.entry.count:
            self._drop(run)
        run.first += count

    def take(self, run: HeldRun, most: int = NO_NUMBER) -> HeldRun:
        """Remove a run, or its first messages if it has more than `most`."""
        if most < run.entry.count and run.is_whole:
            run = self._split(run, most)
        else:
            self._drop(run)
        self.count -= run.entry.count
        return run

    def take_first(self, end: int, most: int = NO_NUMBER) -> HeldRun | None:
        """Remove at most `most` messages of the first run, with numbers below `end`; None if there are none."""
        return self.take(self._runs[0], min(most, end - self.first)) if self.first < end else None

    def take_all(self) -> deque[HeldRun]:
        """Remove all runs."""
        runs, self._runs, self.count = self._runs, deque(), 0
        return runs

    @staticmethod
    def _split(run: HeldRun, count: int) -> HeldRun:
        front = HeldRun(run.queue, run.queue.order.split(run.entry, count), run.consumer, run.first)
        run.first += count
        return front

    def _drop(self, run: HeldRun) -> None:
        runs = self._runs
        if runs[0] is run:
            runs.popleft()
        else:
            del runs[bisect_right(runs, run.first, key=_first) - 1]


DROPPED_AT_ONCE: Final = 500
"""Consumers of a session that has ended that are dropped in one turn: about 5 ms."""

COST_OF_DELETION: Final = ceil(DROPPED_AT_ONCE / DELETED_AT_ONCE)
"""What a consumer counts for whose queue may be deleted with it."""

_Dropped = TypeVar("_Dropped", bound=SendingConsumer)


def first_portion(consumers: Iterable[_Dropped]) -> list[_Dropped]:
    """Those of the consumers of a session that are dropped in the next turn."""
    portion: list[_Dropped] = []
    left = DROPPED_AT_ONCE
    for consumer in consumers:
        if left <= 0:
            break
        portion.append(consumer)
        left -= COST_OF_DELETION if consumer.queue.auto_delete else 1
    return portion


def has_many(consumers: Collection[SendingConsumer]) -> bool:
    """Whether the consumers of a session are dropped in several turns."""
    return len(consumers) > DELETED_AT_ONCE and len(first_portion(consumers)) < len(consumers)


def give_back(
    owner: object, turns: Turns, count: int, held: Iterator[tuple[Queue, Entry]], *, is_redelivered: bool = True
) -> None:
    """Make the messages held by a client available again, because its session ends.

    Args:
        owner: the session.
        turns: releases many messages in turns, after earlier work of the session.
        count: the number of messages.
        held: the messages.
        is_redelivered: whether they are marked as delivered before.
    """
    if count > AT_ONCE or turns.has(owner):
        turns.do(owner, release_in_turns(held, is_redelivered=is_redelivered))
        return
    for queue, entry in held:
        if not queue.is_gone and entry.state == ACQUIRED:
            queue.release(entry, is_redelivered=is_redelivered)


def numbers_among(ranges: list[tuple[int, int]], among: Mapping[int, object], end: int) -> Iterator[int]:
    """Yields the numbers in merged ranges that are in `among` and below `end`, in ascending order.

    A peer may send any range, so the smaller of the two is walked: the ranges or `among`.
    """
    span = 0
    for first, last in ranges:
        span += last - first + 1
    if span <= len(among):
        for first, last in ranges:
            for number in range(first, min(last + 1, end)):
                if number in among:
                    yield number
        return
    numbers = sorted(among)
    for first, last in ranges:
        for number in islice(numbers, bisect_left(numbers, first), bisect_right(numbers, last)):
            if number in among:
                yield number
