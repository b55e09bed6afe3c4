"""Which messages a queue accepts, how many it holds, and which ones leave when others arrive.

Eligibility: which messages it accepts. Others are dropped, and count as routed: they do not go to an alternate
exchange.

    no-local       all except those published over its owner's connection: the owner is the session to which the queue
                   is exclusive, or else its exclusive consumer
    qpid.filter    those that a selector matches
    qpid.trace.exclude     those that have not passed one of these brokers: the header `x-qpid.trace` has their names

A queue with qpid.trace.id adds its own name to that header of each message, once; the queue from which another broker
takes messages has it, so that they do not go round in circles (`broker.federation`).

The publisher of a message is known until the broker stops, even if the message has moved from a deleted queue. A
message published in a transaction takes a place on the queue until the commit, even if it is then dropped.

Limit: what happens to a message beyond the capacity of the queue, its policy.

    reject                 it is refused: its publisher gets resource-limit-exceeded (`Limit`)
    reject-publish, reject-publish-dlx
                           likewise, but only publishers with confirms get an answer (`OverflowLimit`)
    ring                   the oldest messages make room for it, whether or not a consumer holds them (`Ring`)
    ring_strict            likewise, but it is refused if a consumer holds the oldest message (`RingLimit`)
    flow_to_disk           messages leave memory; it is refused only if they cannot (`DiskLimit`)
    self-destruct          it is enqueued, and the queue is deleted as if by a client (`SelfDestruct`)

A message larger than the whole ring is refused. One that is published in a transaction takes its place at the commit.
Which message is discarded first depends on the queue's order: on a priority queue the oldest of the lowest priority,
which may be the new message itself.

Displacement: messages that leave because another one arrives, on rings and last value queues (`last_value`). The new
message is enqueued first, and then the displaced ones are dequeued: all records are in one flush, and a crash that cuts
it short leaves too many messages, never too few; the next start displaces those (`recovered`). A displaced message that
a consumer holds leaves the queue as well, and settling it has no effect any more.

Messages that a ring displaces are discarded, or go to the alternate exchange: such a message leaves the ring once it is
stored there; until then the ring holds it, but does not count it. A crash in between leaves it in both places, and the
next start moves it again. It is discarded if there is no room at its destination, or if another such move displaces it:
alternate exchanges may lead back to the same ring.

Sources: Qpid C++ Broker Book, 1.2.1.1 and 1.5; MRG 2 Messaging User Guide, 3; qpidd, Queue.cpp (qpid.filter) and
LossyQueue.cpp (alternate exchange).
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from qstore.broker.model.errors import (
    InternalError,
    InvalidArgumentError,
    QueueOverflowError,
    ResourceLimitExceededError,
)
from qstore.broker.model.exchanges.matching import MAX_STEPS
from qstore.broker.model.queues.entry import ACQUIRED, AVAILABLE, Entry
from qstore.broker.model.run import MessageRun
from qstore.broker.model.selectors.candidate import Candidate
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import STR16, TypedValue

if TYPE_CHECKING:
    from qstore.broker.model.message import Message
    from qstore.broker.model.queues.queue import Queue
    from qstore.broker.model.residency.residency import Residency
    from qstore.broker.model.selectors.selector import Selector

MAX_AT_ONCE: Final = 250
"""Messages that one arriving message displaces in one turn: a few milliseconds if they move elsewhere."""

_RETRY_SECONDS: Final = 1.0


TRACE: Final = "x-qpid.trace"
"""The header with the names of the brokers that a message has passed, separated by commas."""


class Eligibility:
    """Which messages a queue accepts, and how it marks them; one that accepts every message has no such object.

    Args:
        no_local: whether messages of the queue's owner are dropped.
        selector: selects those that are accepted; None for all.
        trace_id: the name that is added to the header `x-qpid.trace`; empty for none.
        excludes: names in that header with which a message is dropped.

    Attributes:
        trace_id: as above.
    """

    __slots__ = ("_excludes", "_no_local", "_selector", "trace_id")

    def __init__(
        self, *, no_local: bool, selector: Selector | None, trace_id: str = "", excludes: frozenset[str] = frozenset()
    ) -> None:
        self._no_local, self._selector, self.trace_id, self._excludes = no_local, selector, trace_id, excludes

    @property
    def takes_runs(self) -> bool:
        """Whether all messages of a run are accepted if one of them is."""
        return not self._no_local and self._selector is None

    def marked(self, message: Message) -> Message:
        """The message with the queue's name in its trace; unchanged if its headers cannot be decoded."""
        trace = message.header_text(TRACE) or ""
        if not self.trace_id or self.trace_id in _names(trace):
            return message
        value = f"{trace},{self.trace_id}" if trace else self.trace_id
        try:
            return message.with_headers({TRACE: TypedValue(STR16, value)})
        except InvalidArgumentError:
            return message

    def marked_run(self, run: MessageRun) -> MessageRun:
        """As `marked`, of a run."""
        template = self.marked(run.template)
        return run if template is run.template else run.like(template)

    def admits(self, queue: Queue, message: Message) -> bool:
        """Whether the queue accepts the message."""
        if self._no_local:
            publisher = message.handling.publisher
            owner = queue.owner if queue.owner is not None else queue.exclusive_consumer
            if publisher is not None and owner is not None and getattr(owner, "publisher", None) is publisher:
                return False
        if self._excludes and not self._excludes.isdisjoint(_names(message.header_text(TRACE) or "")):
            return False
        return self._selector is None or self._selector.matches(Candidate(message, is_redelivered=False))


def _names(trace: str) -> list[str]:
    return trace.replace(",", " ").split()


class Capacity(NamedTuple):
    """How much a queue may hold; its limit and its default thresholds are derived from it.

    Attributes:
        messages: number of messages, including those that consumers hold; 0 for no limit.
        bytes: bytes of their headers and content; 0 for no limit.
        overhead: bytes added for each message: the broker's default limit counts memory.
    """

    messages: int = 0
    bytes: int = 0
    overhead: int = 0

    def percent(self, percent: int) -> tuple[int, int]:
        """A share of it in messages and in bytes, each rounded down."""
        return self.messages * percent // 100, self.bytes * percent // 100


class Limit:
    """Refuses messages beyond the limit; a queue without a limit has no such object.

    Args:
        capacity: how much the queue holds.

    Attributes:
        max_messages, max_bytes: as in the capacity, `sys.maxsize` for no limit.
        overhead: bytes added for each message.
        refused: number of messages refused.
    """

    __slots__ = ("max_bytes", "max_messages", "overhead", "refused")

    def __init__(self, capacity: Capacity) -> None:
        self.max_messages, self.max_bytes = capacity.messages or sys.maxsize, capacity.bytes or sys.maxsize
        self.overhead = capacity.overhead
        self.refused = 0

    def is_exceeded(self, count: int, size: int) -> bool:
        """Whether `count` messages with `size` bytes of headers and content are beyond the limit."""
        return count > self.max_messages or size + self.overhead * count > self.max_bytes

    def check(self, queue: Queue, message: Message) -> None:
        """Raise ResourceLimitExceededError if the queue has no room for the message."""
        overhead, count = self.overhead, queue.messages_enqueued - queue.messages_dequeued
        size = queue.bytes_enqueued - queue.bytes_dequeued + message.size + overhead * count + overhead
        if size > self.max_bytes or count >= self.max_messages:
            self.check_all(queue, 1, message.size)

    def has_room(self, queue: Queue, count: int, size: int) -> bool:
        """Whether it would refuse none of `count` messages with `size` bytes of headers and content."""
        return not self.is_exceeded(queue.message_count + count, queue.message_bytes + size)

    def check_all(self, queue: Queue, count: int, size: int) -> None:
        """As `check`, for `count` messages with `size` bytes of headers and content."""
        counted = self.counted(queue)
        if counted + count > self.max_messages:
            self.refused += count
            used = f"{counted} of {self.max_messages} messages are on it"
            raise ResourceLimitExceededError(f'Maximum depth exceeded on queue "{queue.name}": {used}')
        held = queue.message_bytes + self.overhead * queue.message_count
        if held + size + self.overhead * count > self.max_bytes:
            self.refused += count
            used = f"{held} of {self.max_bytes} bytes are used"
            raise ResourceLimitExceededError(f'Maximum depth exceeded on queue "{queue.name}": {used}')

    def counted(self, queue: Queue) -> int:
        """Messages on the queue that count towards its limit."""
        return queue.message_count


class OverflowLimit(Limit):
    """Refuses messages beyond the limit as x-overflow says (`arguments`).

    As in RabbitMQ, messages that consumers hold do not count towards the limit of messages.

    Args:
        capacity: as for `Limit`.
        is_dead: whether a refused message goes to the dead-letter exchange of the queue.
    """

    __slots__ = ("_is_dead",)

    def __init__(self, capacity: Capacity, *, is_dead: bool) -> None:
        super().__init__(capacity)
        self._is_dead = is_dead

    def counted(self, queue: Queue) -> int:
        """As `Limit.counted`: without those that consumers hold."""
        return queue.available_count + queue.uncommitted

    def check_all(self, queue: Queue, count: int, size: int) -> None:
        """As `Limit.check_all`. Raises QueueOverflowError."""
        try:
            super().check_all(queue, count, size)
        except ResourceLimitExceededError as error:
            raise QueueOverflowError(str(error), queue, is_dead=self._is_dead) from None


class DiskLimit(Limit):
    """Lets messages beyond the limit leave memory, and refuses them only while they cannot.

    The limit says how many bytes remain in memory; a number of messages is converted at their average size.

    Args:
        capacity: as for `Limit`, without overhead.
        residency: lets them leave memory.
    """

    __slots__ = ("_residency", "_retry_at")

    def __init__(self, capacity: Capacity, residency: Residency) -> None:
        super().__init__(capacity)
        self._residency, self._retry_at = residency, 0.0

    def check(self, queue: Queue, message: Message) -> None:
        """As `Limit.check`, while messages cannot leave memory; also update the average size."""
        residency = self._residency
        count = queue.message_count - residency.messages_out + residency.messages_in
        if count > self.max_messages:
            residency.budget = min(residency.budget, queue.memory * self.max_messages // count)
        if residency.has_failed:
            self.check_all(queue, 1, message.size)

    def has_room(self, queue: Queue, count: int, size: int) -> bool:  # noqa: ARG002 – for other limits
        """As `Limit.has_room`; beyond the number of messages in memory they are to be checked singly."""
        residency = self._residency
        resident = queue.message_count - residency.messages_out + residency.messages_in
        return resident + count <= self.max_messages and not residency.has_failed

    def check_all(self, queue: Queue, count: int, size: int) -> None:
        """As `check`, for `count` messages with `size` bytes of headers and content."""
        if self._residency.has_failed and not self._has_recovered():
            super().check_all(queue, count, size)

    def _has_recovered(self) -> bool:
        """Whether messages can leave memory again: retries from time to time."""
        now = time.monotonic()
        if now < self._retry_at:
            return False
        self._retry_at = now + _RETRY_SECONDS
        self._residency.keep_within_budget()
        return not self._residency.has_failed


class RingLimit(Limit):
    """Refuses messages for which a ring cannot make room.

    Args:
        capacity: as for `Limit`.
        is_strict: whether messages that consumers hold are kept.
    """

    __slots__ = ("_is_strict",)

    def __init__(self, capacity: Capacity, *, is_strict: bool) -> None:
        super().__init__(capacity)
        self._is_strict = is_strict

    def check(self, queue: Queue, message: Message) -> None:
        """Raise ResourceLimitExceededError if the ring cannot make room for the message."""
        if self.is_exceeded(1, message.size):
            self.refused += 1
            size = f"{message.size} of {self.max_bytes} bytes"
            raise ResourceLimitExceededError(f'Message larger than the maximum depth of queue "{queue.name}": {size}')
        self.check_all(queue, 1, message.size)

    def check_all(self, queue: Queue, count: int, size: int) -> None:
        """Raise ResourceLimitExceededError if a consumer holds a message that would have to go, and the ring is strict.

        Args:
            queue: the queue.
            count: how many messages are to be enqueued.
            size: bytes of their headers and content.
        """
        if not self._is_strict or not self.is_exceeded(queue.message_count + count, queue.message_bytes + size):
            return
        first = queue.order.first_to_discard()
        if first is not None and first.state == ACQUIRED:
            self.refused += count
            why = "a consumer holds its oldest message"
            raise ResourceLimitExceededError(f'Maximum depth exceeded on queue "{queue.name}": {why}')


class Displacement:
    """Decides which messages an arriving one displaces; the base class displaces none.

    Listeners to enqueues and dequeues are subclasses, too.
    """

    __slots__ = ()

    @property
    def refers_to_entries(self) -> bool:
        """Whether it keeps references to entries of available messages, which then must stay in memory."""
        return False

    def arrived(self, queue: Queue, entry: Entry) -> None:  # noqa: ARG002
        """Handle a message that was enqueued, and may be delivered once it is on the disk. Default: as `recovered`."""
        self.recovered(queue)

    def recovered(self, queue: Queue) -> None:
        """Displace messages for which there is no place. After a start the queue has all messages of the store."""

    def changed(self, queue: Queue) -> None:
        """Handle another limit of the queue."""

    def released(self, queue: Queue, entry: Entry) -> None:
        """Handle a message that a consumer has released."""

    def withdrawn(self, entry: Entry) -> None:
        """Handle the removal of a message that never arrived because its transaction failed."""

    def removed(self, entry: Entry) -> None:
        """Handle a message that has left the queue, for whatever reason."""

    def displace(self, queue: Queue, entry: Entry) -> bool:
        """Dequeue a message, if it is available or held by a consumer. Returns whether it is gone.

        If its journal cannot be written, it is no longer delivered, and reappears after a restart.
        """
        if entry.state == AVAILABLE:
            queue.acquire(entry, is_consumed=False)
        elif entry.state != ACQUIRED:
            return False
        with contextlib.suppress(InternalError):
            queue.dequeue(entry)
            return True
        return False


class Ring(Displacement):
    """Discards the oldest messages beyond the limit, or moves them away.

    Args:
        limit: the limit of the queue.
        divert: moves an acquired message of a queue to its alternate exchange. Returns False if there is none, or no
            room there.
    """

    __slots__ = ("_divert", "_is_diverting", "_is_shrinking", "_leaving", "_leaving_bytes", "_limit")

    def __init__(self, limit: RingLimit, divert: Callable[[Queue, Entry], bool]) -> None:
        self._limit, self._divert = limit, divert
        self._is_diverting = self._is_shrinking = False
        self._leaving: dict[Entry, None] = {}  # diverted, and still on the queue
        self._leaving_bytes = 0

    @property
    def is_diverting(self) -> bool:
        """Whether messages are on their way elsewhere."""
        return bool(self._leaving)

    def use(self, limit: RingLimit) -> None:
        """Displace messages beyond another limit from now on."""
        self._limit = limit

    def recovered(self, queue: Queue) -> None:
        """Displace messages until the queue is within its limit, except uncommitted ones and those leaving already."""
        while self._displaces(queue, MAX_AT_ONCE):
            pass

    def arrived(self, queue: Queue, entry: Entry) -> None:  # noqa: ARG002
        """As `recovered`; if one message displaces very many, the rest leave in turns."""
        self.changed(queue)

    def changed(self, queue: Queue) -> None:
        """As `arrived`: the limit may be exceeded."""
        if self._displaces(queue, MAX_AT_ONCE) and not self._is_shrinking:
            self._is_shrinking = True
            queue.do_in_turns(self._shrink(queue))

    def _shrink(self, queue: Queue) -> Iterator[None]:
        is_unfinished = True
        while is_unfinished and not queue.is_deleted:
            yield
            is_unfinished = not queue.is_deleted and self._displaces(queue, MAX_AT_ONCE)
        self._is_shrinking = False

    def _displaces(self, queue: Queue, most: int) -> bool:
        """Displace at most `most` messages. Returns whether more have to leave."""
        before = 0
        for number in range(most):
            if not self._limit.is_exceeded(
                queue.message_count - queue.uncommitted - len(self._leaving),
                queue.message_bytes - queue.uncommitted_bytes - self._leaving_bytes,
            ):
                return False
            if not number:
                before = queue.moving_steps
            elif queue.moving_steps - before > MAX_STEPS:
                return True  # the others in later turns: routing them is expensive
            first = queue.order.first_to_discard()
            if first is None or not (self._is_diverted(queue, first) or self.displace(queue, first)):
                return False
            queue.counters.discarded += 1
        return True

    def _is_diverted(self, queue: Queue, entry: Entry) -> bool:
        """Move a message to the alternate exchange; False if it stays acquired."""
        if self._is_diverting:
            return False
        if entry.state == AVAILABLE:
            queue.acquire(entry, is_consumed=False)
        self._is_diverting = True
        self._leaving[entry] = None
        self._leaving_bytes += entry.message.size
        try:
            is_diverted = self._divert(queue, entry)
        finally:
            self._is_diverting = False
        if not is_diverted:
            self.removed(entry)
        return is_diverted

    def removed(self, entry: Entry) -> None:
        """Forget a diverted message: it has left the queue, or was discarded instead."""
        if entry in self._leaving:
            del self._leaving[entry]
            self._leaving_bytes -= entry.message.size


class SelfDestruct(Displacement):
    """Deletes the queue once it exceeds its limit; all its messages, the last one included, leave as at any deletion.

    Args:
        limit: the limit; not the `limit` of the queue, which refuses no message.
        delete: schedules the deletion of the queue.
    """

    __slots__ = ("_delete", "_is_asked", "_limit")

    def __init__(self, limit: Limit, delete: Callable[[], None]) -> None:
        self._limit, self._delete = limit, delete
        self._is_asked = False

    def recovered(self, queue: Queue) -> None:
        """Nothing to do: if a crash prevented the deletion, the next message causes it."""

    def arrived(self, queue: Queue, entry: Entry) -> None:  # noqa: ARG002
        """Delete the queue if it exceeds its limit."""
        if not self._is_asked and self._limit.is_exceeded(queue.message_count, queue.message_bytes):
            self._is_asked = True
            self._delete()
