"""A run: consecutive messages that differ only in their bodies, handled as one.

They have the same exchange, routing key and header, but for the size of the body where the header gives it, and lie in
one buffer, usually that in which they were read from one publisher's socket. They are routed once, appended to a
journal at once, and have one place on a queue (`RunEntry`), until something looks at single ones:

    at | header … body 0 | header … body 1 | …
                  ^ starts[0]       ^ starts[1]

    RUN       available. What consumers take of it is split off at its front
    HELD      one consumer has all of them, and settles them from the front, or in the middle, which splits it
    unfolded  single entries have taken its place

A message is a run of one; those that are read singly never become one. Either all messages of an entry were delivered
before, or none was.

Messages that a publisher sends with different routing keys are a run, too (`KeyedRun`), if all go to the same queues.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from qstore.broker.model.queues.entry import RUN, Entry
from qstore.formats.kernels.bodies import Bodies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qstore.broker.model.message import Handling, Message
    from qstore.formats.kernels.bodies import SizeField

MIN_RUN: Final = 4
"""Messages from which on a run costs less than the single messages (`bench_runs`)."""

MAX_RUN: Final = 1024
"""Messages of a run: appending them takes about a millisecond in pure Python (`tests/bench/bench_runs`)."""

MAX_BODY: Final = 16 * 1024
"""Bytes of a body in a run: for larger ones the work for each message is small beside that for its bytes."""

_number: Final = itemgetter(0)
_WASTE: Final = 4  # times as many messages as are left: then those get a buffer of their own


class MessageRun:
    """The messages of a run, as they were received. Immutable.

    Args:
        template: has all that they have in common; without a body.
        bodies: their bodies.
        field: the field in the header of `template` that gives the size of the body; None if that header is right for
            all.
        header_size: bytes of the header of each, with `lead`, as queues count them.
        lead: what the content of each begins with, before its body: the descriptor of a section in AMQP 1.0.
        handlings: for each publisher in turn, the number of its first message, and the `handling` of its messages;
            empty if all are of one publisher.

    Attributes:
        template, bodies, field, lead: as above.
        count: their number.
        largest: bytes of header and content of the largest, or more.
    """

    __slots__ = (
        "_contents", "_handlings", "_header_size", "_size", "bodies", "count", "field", "largest", "lead", "template",
    )  # fmt: skip

    def __init__(
        self,
        template: Message,
        bodies: Bodies,
        field: SizeField | None,
        header_size: int,
        lead: bytes = b"",
        handlings: tuple[tuple[int, Handling], ...] = (),
    ) -> None:
        self.template, self.bodies, self.field, self._header_size = template, bodies, field, header_size
        self.lead, self._handlings = lead, handlings
        self.count = bodies.count
        self.largest = header_size + bodies.largest
        self._size = self.largest if bodies.is_even else 0  # of each, if it is the same
        self._contents: tuple[Bodies | None] | None = None

    @property
    def contents(self) -> Bodies | None:
        """What consumers of other protocols get, in the same buffer; None if each has to be converted by itself."""
        if self._contents is None:
            self._contents = (self.template.contents_of(self.bodies, self.lead) if self.bodies.is_even else None,)
        return self._contents[0]

    def size(self, first: int, count: int) -> int:
        """Bytes of the headers and contents of `count` messages, as queues count them."""
        if self._size:
            return count * self._size
        return count * self._header_size + self.bodies.size(first, count)

    def stored_form(self) -> tuple[bytes, SizeField | None, Bodies]:
        """The stored data before each body, the field in them that gives its size, and the bodies.

        No field if the data before the bodies are the same for all.
        """
        head = self.template.stored_head(len(self.lead) + self.bodies.largest) + self.lead
        return head, None if self.field is None else self.field.moved(len(head) - self._header_size), self.bodies

    def beginning(self, count: int) -> MessageRun:
        """The first `count` messages, in the same buffer."""
        return self._with(self.bodies.beginning(count), self._handlings)

    def part(self, first: int, count: int) -> MessageRun:
        """Some of the messages in a buffer of their own."""
        handlings = self._handlings
        if first and handlings:
            at = bisect_right(handlings, first, key=_number) - 1
            handlings = tuple([(max(0, number - first), handling) for number, handling in handlings[at:]])
        return self._with(self.bodies.copy(first, count), handlings)

    def _with(self, bodies: Bodies, handlings: tuple[tuple[int, Handling], ...]) -> MessageRun:
        return MessageRun(self.template, bodies, self.field, self._header_size, self.lead, handlings)

    def message(self, number: int) -> Message:
        """One of the messages, by number from 0."""
        message, handlings = self.template.with_body(self.lead + self.bodies.body(number), self.field), self._handlings
        if handlings:
            message.handling = handlings[bisect_right(handlings, number, key=_number) - 1][1]
        return message

    def may_be_of(self, publisher: object) -> bool:
        """Whether some of them may be of this publisher."""
        if self._handlings:
            return any(handling.publisher is publisher for _, handling in self._handlings)
        return self.template.handling.publisher is publisher

    def like(self, template: Message) -> MessageRun:
        """The same bodies with a header that was changed."""
        field, lead = None if self.field is None else template.size_field, self.lead
        size = template.size - len(template.body) + len(lead)
        return MessageRun(template, self.bodies, field, size, lead, self._handlings)


class KeyedRun(MessageRun):
    """A run whose messages have equal headers, but several exchanges or routing keys.

    They have one route, and consumers without a selector get them together. Queues that change messages, or number
    them, do not take it (`Queue.takes_run`).

    Args:
        templates: for each exchange and routing key, the `template` of its messages; at most 256.
        kinds: for each message, the number of its template.
        bodies, field, header_size: as of `MessageRun`. There is a field.

    Attributes:
        templates, kinds: as above; `template` is the first of them.
    """

    __slots__ = ("kinds", "templates")

    def __init__(
        self, templates: Sequence[Message], kinds: bytes, bodies: Bodies, field: SizeField | None, header_size: int
    ) -> None:
        super().__init__(templates[0], bodies, field, header_size)
        self.templates, self.kinds = templates, kinds

    @property
    def contents(self) -> Bodies | None:
        """As `MessageRun.contents`: none."""
        return None

    def stored_form(self) -> tuple[bytes, SizeField | None, Bodies]:
        """As `MessageRun.stored_form`: what is stored of each is the body of another run, in a buffer of its own."""
        bodies, field, size, stored = self.bodies, self.field, -1, list[bytes]()
        plain = [template.stored_head(bodies.largest) for template in self.templates]
        heads = plain
        for number in range(self.count):
            body = bodies.body(number)
            if field is not None and len(body) != size:  # most are as large as the one before
                size = len(body)
                heads = [field.moved(len(head) - self._header_size).set_in(head, size) for head in plain]
            stored.append(heads[self.kinds[number]] + body)
        return b"", None, Bodies.of(stored)

    def beginning(self, count: int) -> MessageRun:
        """As `MessageRun.beginning`."""
        bodies = self.bodies.beginning(count)
        return KeyedRun(self.templates, self.kinds[:count], bodies, self.field, self._header_size)

    def part(self, first: int, count: int) -> MessageRun:
        """As `MessageRun.part`."""
        bodies = self.bodies.copy(first, count)
        return KeyedRun(self.templates, self.kinds[first : first + count], bodies, self.field, self._header_size)

    def message(self, number: int) -> Message:
        """As `MessageRun.message`."""
        return self.templates[self.kinds[number]].with_body(self.bodies.body(number), self.field)

    def like(self, template: Message) -> MessageRun:
        """Queues that change messages do not take it."""
        raise NotImplementedError(f"a header for several routing keys: {template}")


def read_run(first: Message, bodies: Bodies, number: int = 0) -> MessageRun:
    """A run that was read from a journal (`Message.head_in`).

    Args:
        first: one of its messages.
        bodies: the bodies of all.
        number: which one is that of `first`.
    """
    size, content = bodies.size(number, 1), first.body
    assert isinstance(content, bytes)
    lead = content[: len(content) - size]
    field = None if bodies.is_even else first.size_field
    return MessageRun(first.with_body(b"", None), bodies, field, first.size - size, lead)


class RunEntry(Entry):
    """The place of consecutive messages of a run on one queue. It has no `message`.

    Args:
        run: the run.
        first: the number of the first of the messages in the run.
        count: their number.
        position: of the first; the others follow.
        rid: of the first in the queue's journal; the others follow. 0 if they are not stored.
        state: RUN or HELD.
        is_redelivered: whether they were delivered before.

    Attributes:
        run, first, count: as above.
        entries: its replacements, in order; None until then.
    """

    __slots__ = ("count", "entries", "first", "run")

    def __init__(
        self,
        run: MessageRun,
        first: int,
        count: int,
        position: int,
        rid: int,
        state: int = RUN,
        *,
        is_redelivered: bool = False,
    ) -> None:
        self.run, self.first, self.count = run, first, count
        self.position, self.rid, self.state, self.is_redelivered = position, rid, state, is_redelivered
        self.entries: list[Entry] | None = None

    @property
    def size(self) -> int:
        """Bytes of the headers and contents."""
        return self.run.size(self.first, self.count)

    def single(self, number: int, state: int) -> Entry:
        """An entry for one of its messages, by number from 0, that is not linked yet."""
        entry = Entry()
        entry.message = self.run.message(self.first + number)
        entry.position = self.position + number
        entry.rid = self.rid + number if self.rid else 0
        entry.state = state
        entry.is_redelivered = self.is_redelivered
        return entry

    def split(self, count: int, state: int) -> RunEntry:
        """Take the first `count` messages, fewer than all, out of it: returns an entry for these, not linked yet."""
        is_redelivered = self.is_redelivered
        front = RunEntry(self.run, self.first, count, self.position, self.rid, state, is_redelivered=is_redelivered)
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
