"""Single messages of one queue that are out of memory while their entries stay: a `Reference` replaces each.

A reference keeps what queues and routing need: size, expiry, routing key and so on. Everything else is read back on
demand, while the event loop waits, and is not kept in memory. `Reference.whole` is the message itself: code that
routes, converts or delivers a message that was on a queue calls it first. A reference whose message cannot be read has
no headers and no properties, and no consumer can take it.

Consumers are not offered such a message before it was read back: the dispatch of the queue stops there (`awaits`), and
continues when the message is back. It is read together with others that are probably next, in the order of their level
or of arrival, and the system reads ahead as many after these. So the event loop does not wait for the disk. Only
operations other than deliveries, such as a move to another queue, read a single message while the loop waits (`read`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from qstore.broker.model.errors import InternalError
from qstore.broker.model.memory import MESSAGE_OVERHEAD
from qstore.broker.model.message import Message, Properties, StoredForm
from qstore.broker.model.queues.entry import AVAILABLE, END, OUT, Entry
from qstore.broker.model.residency.stretch import PORTIONS, Item
from qstore.formats.values import EMPTY_MAP, TypedMap, TypedValue

if TYPE_CHECKING:
    from qstore.broker.model.message import Content
    from qstore.broker.model.queues.fifo import Fifo
    from qstore.broker.model.queues.queue import Queue
    from qstore.broker.model.residency.sources import ContentSource, Loaded

REFERENCE_BYTES: Final = 280
"""Memory of a reference and its entry, as measured with `sys.getsizeof`, plus the store's share."""

READ_AHEADS: Final = 16
"""Portions that the system reads ahead after a consumer had to wait for one; otherwise they are in its page cache."""

_MAX_STEPS: Final = 2048
"""Entries that are passed in the search for the next references."""


_Kept: TypeAlias = "tuple[frozenset[int], frozenset[int]]"  # positions of the last two portions that were read
_NONE_KEPT: Final[_Kept] = (frozenset(), frozenset())

_MessageT = TypeVar("_MessageT", bound="Message")


class Reference(Message):
    """A message that is out of memory.

    Args:
        reader: reads it back.
        key, is_stored: its key, and whether that is a record id of the journal.
        position: its position on the queue.
        size, expires_at, is_persistent: as in `Message`.

    Attributes:
        key, is_stored, position: as above.
        was_tried: whether reading it back for a consumer has failed.
    """

    __slots__ = ("_reader", "is_stored", "key", "position", "was_tried")

    def __init__(
        self,
        reader: References,
        key: int,
        position: int,
        *,
        is_stored: bool,
        size: int,
        expires_at: float,
        is_persistent: bool,
    ) -> None:
        self._reader, self.key, self.position, self.is_stored = reader, key, position, is_stored
        self.was_tried = False
        self.size, self.expires_at, self.is_persistent = size, expires_at, is_persistent

    def whole(self) -> Message:
        """The message itself, read back. Raises InternalError: it cannot be read."""
        message = self._read()
        if message is None:
            raise InternalError(f"message {self.position} of its queue cannot be read back from the disk")
        return message

    def _read(self) -> Message | None:
        message = self._reader.read(self.key, self.position, is_stored=self.is_stored)
        if message is not None and self.expires_at:  # what is stored is in whole seconds
            message.expires_at = self.expires_at
        return message

    def stored_form(self) -> StoredForm:
        """The bytes that a journal stores. Raises as `whole`."""
        return self.whole().stored_form()

    def headers(self) -> TypedMap:
        """The application headers; empty if it cannot be read."""
        message = self._read()
        return EMPTY_MAP if message is None else message.headers()

    def properties(self) -> Properties:
        """The properties; none if it cannot be read."""
        message = self._read()
        return Properties() if message is None else message.properties()

    def content(self) -> Content | TypedValue:
        """The content. Raises as `whole`."""
        return self.whole().content()

    def converted(self, convert: Callable[[Message], _MessageT | None]) -> _MessageT | None:
        """As `Message.converted`. Raises as `whole`."""
        return self.whole().converted(convert)

    def expiring_at(self, moment: float) -> Message:
        """As `Message.expiring_at`. Raises InternalError: it cannot be read."""
        return self.whole().expiring_at(moment)

    def readdressed(self, exchange: str, routing_key: str, changes: Mapping[str, TypedValue | None]) -> Message:
        """As `Message.readdressed`. Raises also as `whole`."""
        return self.whole().readdressed(exchange, routing_key, changes)

    def with_headers(self, changes: Mapping[str, TypedValue | None]) -> Message:
        """A copy of the message with some headers set. Raises as `whole`, and as `Message.with_headers`."""
        return self.whole().with_headers(changes)


class Tally:
    """Counts the messages of one queue that have left memory and come back.

    Attributes:
        messages_out, bytes_out: messages moved out of memory so far, and their size.
        messages_in, bytes_in: those that have since come back or left the queue.
        memory_out: bytes of memory that the queue saves because they are out.
    """

    __slots__ = ("bytes_in", "bytes_out", "memory_out", "messages_in", "messages_out")

    def __init__(self) -> None:
        self.messages_out = self.bytes_out = self.messages_in = self.bytes_in = self.memory_out = 0

    def has_gone(self, size: int, memory: int) -> None:
        """Count a message of `size` bytes that is out, which freed `memory` bytes."""
        self.messages_out += 1
        self.bytes_out += size
        self.memory_out += memory

    def has_come(self, size: int, memory: int) -> None:
        """Count a message that is back, or has left the queue."""
        self.messages_in += 1
        self.bytes_in += size
        self.memory_out -= memory


class References:
    """The references of one queue.

    Args:
        stored: the source of messages in the queue's journal; None without one.
        others: the source of other messages; None if they stay in memory.
        tally: counts the messages.

    Attributes:
        is_reading: whether messages are being read back, for which consumers may wait.
    """

    __slots__ = (
        "_ahead", "_cached", "_kept", "_order", "_others", "_queue", "_stored", "_tally",
        "is_reading",
    )  # fmt: skip

    _queue: Queue
    _order: Fifo

    def __init__(self, stored: ContentSource | None, others: ContentSource | None, tally: Tally) -> None:
        self._stored, self._others, self._tally = stored, others, tally
        self._cached: tuple[int, bool, Message | None] = (0, False, None)  # the last message read
        self._kept = _NONE_KEPT
        self._ahead = 0  # number of portions still to be read ahead: the disk has been slow
        self.is_reading = False

    def attach(self, queue: Queue) -> None:
        """Attach the references to the queue, once it is made."""
        self._queue, self._order = queue, queue.order

    def close(self) -> None:
        """Detach from the queue, which was deleted."""
        self._tally = Tally()  # the other one refers to this

    def source(self, *, is_stored: bool) -> ContentSource | None:
        """The source of such messages that are out of memory."""
        return self._stored if is_stored else self._others

    # ---- out ----

    def release_read_ahead(self) -> None:
        """Allow messages that were read for consumers to leave memory again, because it is short."""
        self._kept = _NONE_KEPT

    @property
    def kept_count(self) -> int:
        """Messages that stay in memory because they were just read for consumers; some may be gone."""
        return len(self._kept[0]) + len(self._kept[1])

    def gain(self, entry: Entry) -> int:
        """Bytes freed if the message of an available entry leaves memory; 0 if it is out already, or has to stay."""
        message = entry.message
        if isinstance(message, Reference) or (self._stored if entry.rid else self._others) is None:
            return 0
        if entry.position in self._kept[0] or entry.position in self._kept[1]:
            return 0  # it was just read for a consumer
        return message.size + MESSAGE_OVERHEAD - REFERENCE_BYTES

    def put_out(self, entries: Sequence[Entry]) -> int:
        """Move messages of entries with a `gain` out of memory, the oldest first. Returns the bytes freed.

        Those that will probably be read back together are written together.
        """
        freed = self._keep([entry for entry in entries if entry.rid], is_stored=True)
        for part in self._order.by_turn([entry for entry in entries if not entry.rid]):
            freed += self._keep(part, is_stored=False)
        return freed

    def _keep(self, entries: Sequence[Entry], *, is_stored: bool) -> int:
        source = self.source(is_stored=is_stored)
        if source is None or not entries:
            return 0
        all_freed = 0
        for entry, key in zip(entries, source.keep(entries), strict=True):
            if key:
                message = entry.message
                item = Item(key, entry.position, message.size, message.expires_at, False, message.is_persistent)
                freed = message.size + MESSAGE_OVERHEAD - REFERENCE_BYTES
                entry.message = self.reference(item, is_stored=is_stored)
                self._tally.has_gone(item.size, freed)
                all_freed += freed
        return all_freed

    def reference(self, item: Item, *, is_stored: bool) -> Reference:
        """A reference to a message that is out."""
        return Reference(
            self,
            item.key,
            item.position,
            is_stored=is_stored,
            size=item.size,
            expires_at=item.expires_at,
            is_persistent=item.is_persistent,
        )

    def removed(self, reference: Reference) -> None:
        """Forget a message that has left the queue, or is in memory again."""
        self._has_come(reference)
        if (source := self.source(is_stored=reference.is_stored)) is not None:
            source.forget([reference.key])

    def _has_come(self, reference: Reference) -> None:
        tally = self._tally
        tally.has_come(reference.size, reference.size + MESSAGE_OVERHEAD - REFERENCE_BYTES)
        if tally.messages_out == tally.messages_in:
            self._kept = _NONE_KEPT

    # ---- back in ----

    def read(self, key: int, position: int, *, is_stored: bool) -> Message | None:
        """Read one message back, while the event loop waits; None if it cannot be read."""
        known, known_is_stored, message = self._cached
        if known != key or known_is_stored is not is_stored or message is None:
            source = self.source(is_stored=is_stored)
            message = None if source is None else self.numbered(source.load([key])[0], position)
            self._cached = (key, is_stored, message)
        return message

    def numbered(self, message: Message | None, position: int) -> Message | None:
        """The message with its number, if the queue has such a header."""
        if message is None or not self._queue.sequence_header:
            return message
        return self._queue.numbered(message, position)

    def awaits(self, entry: Entry) -> bool:
        """Whether the message of an available entry, next for a consumer, is out of memory and being read back.

        The queue is dispatched again when it is back. A message that cannot be read is not awaited: consumers decline
        it.
        """
        message = entry.message
        if not isinstance(message, Reference) or message.was_tried:
            return False
        if not self.is_reading:
            self._fetch(entry, message)
            message = entry.message
        return isinstance(message, Reference) and not message.was_tried

    def _fetch(self, entry: Entry, first: Reference) -> None:
        """Read a message back, with those that are probably next."""
        source = self.source(is_stored=first.is_stored)
        assert source is not None
        entries, following = self._upcoming(entry, first)
        keys = [reference.key for _, reference in entries]
        self.is_reading = True
        self._kept = (self._kept[1], frozenset(each.position for each, _ in entries))
        source.fetch(keys, partial(self._fetched, entries))  # which may call back at once
        if self.is_reading:
            self._ahead = READ_AHEADS
        if self._ahead and following:
            self._ahead -= 1
            source.will_need(following)

    def _upcoming(self, entry: Entry, first: Reference) -> tuple[list[tuple[Entry, Reference]], Sequence[int]]:
        """The references that are probably next, from the first on, and the keys of as many later ones."""
        entries: list[tuple[Entry, Reference]] = []
        following: list[int] = []
        size, order = 0, self._order
        for _ in range(_MAX_STEPS):
            message = entry.message if entry.state == AVAILABLE else None  # a run has none
            if isinstance(message, Reference) and not message.was_tried and message.is_stored is first.is_stored:
                size += message.size
                if entries and (size > 2 * PORTIONS.bytes or len(following) == PORTIONS.largest):
                    break
                if entries and (following or size > PORTIONS.bytes or len(entries) == PORTIONS.largest):
                    following.append(message.key)
                else:
                    entries.append((entry, message))
            entry = order.after(entry)
            if entry.state in (END, OUT):
                break
        return entries, following

    def _fetched(self, entries: list[tuple[Entry, Reference]], messages: Loaded) -> None:
        """Put back messages that were read, unless they have left the queue meanwhile, or it was deleted."""
        self.is_reading = False
        if self._order.pager is None:
            return
        keys: list[int] = []
        for (entry, reference), loaded in zip(entries, messages, strict=True):
            reference.was_tried = True
            message = self.numbered(loaded, reference.position)
            if message is None or entry.state != AVAILABLE or entry.message is not reference:
                continue
            if reference.expires_at:  # what is stored is in whole seconds
                message.expires_at = reference.expires_at
            if message.size != reference.size:  # was estimated at the start
                self._queue.bytes_enqueued += message.size - reference.size
            entry.message = message
            self._has_come(reference)
            keys.append(reference.key)
        if keys and (source := self.source(is_stored=entries[0][1].is_stored)) is not None:
            source.forget(keys)
        self._queue.mark_ready()
