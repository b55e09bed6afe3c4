"""A run: consecutive messages of one publisher that differ only in their bodies, handled as one.

They have the same exchange, routing key and header, and bodies of equal size, and lie in the buffer in which they were
read from the socket, at equal distances. They are routed once, appended to a journal at once, and have one place on a
queue (`RunEntry`), until something looks at single ones:

    at | header … body 0 | header … body 1 | …
         <-- stride ---->

    RUN       available. What consumers take of it is split off at its front
    HELD      one consumer has all of them, and settles them from the front, or in the middle, which splits it
    unfolded  single entries have taken its place

A message is a run of one; those that are read singly never become one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from qstore.broker.model.queues.entry import RUN, Entry

if TYPE_CHECKING:
    from qstore.broker.model.message import Message

MIN_RUN: Final = 4
"""Messages from which on a run costs less than the single messages (`bench_runs`)."""

MAX_RUN: Final = 1024
"""Messages of a run: appending them takes about a millisecond in pure Python (`tests/bench/bench_runs`)."""

MAX_BODY: Final = 16 * 1024
"""Bytes of a body in a run: for larger ones the work for each message is small beside that for its bytes."""

_WASTE: Final = 4  # times as many messages as are left: then those get a buffer of their own


class MessageRun:
    """The messages of a run, as they were received. Immutable.

    Args:
        template: has all that they have in common; without a body.
        data: the buffer.
        at: where the body of the first begins.
        stride: bytes from one body to the next.
        body_size: bytes of each body.
        count: their number.
        size: bytes of header and content of each, as queues count them.

    Attributes:
        As above.
    """

    __slots__ = ("at", "body_size", "count", "data", "size", "stride", "template")

    def __init__(
        self, template: Message, data: bytes, at: int, stride: int, body_size: int, count: int, size: int
    ) -> None:
        self.template, self.data, self.at, self.stride = template, data, at, stride
        self.body_size, self.count, self.size = body_size, count, size

    def beginning(self, count: int) -> MessageRun:
        """The first `count` messages, in the same buffer."""
        return MessageRun(self.template, self.data, self.at, self.stride, self.body_size, count, self.size)

    def part(self, first: int, count: int) -> MessageRun:
        """Some of the messages in a buffer of their own."""
        begin = self.at + first * self.stride
        data = self.data[begin : begin + (count - 1) * self.stride + self.body_size]
        return MessageRun(self.template, data, 0, self.stride, self.body_size, count, self.size)

    def message(self, number: int) -> Message:
        """One of the messages, by number from 0."""
        begin = self.at + number * self.stride
        return self.template.with_body(self.data[begin : begin + self.body_size])


class RunEntry(Entry):
    """The place of consecutive messages of a run on one queue. It has no `message`.

    Args:
        run: the run.
        first: the number of the first of the messages in the run.
        count: their number.
        position: of the first; the others follow.
        rid: of the first in the queue's journal; the others follow. 0 if they are not stored.
        state: RUN or HELD.

    Attributes:
        run, first, count: as above.
        entries: its replacements, in order; None until then.
    """

    __slots__ = ("count", "entries", "first", "run")

    def __init__(self, run: MessageRun, first: int, count: int, position: int, rid: int, state: int = RUN) -> None:
        self.run, self.first, self.count = run, first, count
        self.position, self.rid, self.state, self.is_redelivered = position, rid, state, False
        self.entries: list[Entry] | None = None

    @property
    def size(self) -> int:
        """Bytes of the headers and contents."""
        return self.run.size * self.count

    def single(self, number: int, state: int) -> Entry:
        """An entry for one of its messages, by number from 0, that is not linked yet."""
        entry = Entry()
        entry.message = self.run.message(self.first + number)
        entry.position = self.position + number
        entry.rid = self.rid + number if self.rid else 0
        entry.state = state
        entry.is_redelivered = False
        return entry

    def split(self, count: int, state: int) -> RunEntry:
        """Take the first `count` messages, fewer than all, out of it: returns an entry for these, not linked yet."""
        front = RunEntry(self.run, self.first, count, self.position, self.rid, state)
        self.skip(count)
        return front

    def keep_only_own(self) -> None:
        """If these are few of the messages that the buffer has, keep them in one of their own."""
        run = self.run
        if run.count >= _WASTE * self.count:
            self.run, self.first = run.part(self.first, self.count), 0

    def skip(self, count: int) -> None:
        """The first `count` messages, fewer than all, have left it."""
        self.first += count
        self.position += count
        self.count -= count
        if self.rid:
            self.rid += count
        self.keep_only_own()
