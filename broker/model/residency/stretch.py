"""A stretch: consecutive available messages of a queue that are out of memory, with their entries.

It replaces them in the queue's list, as one entry with the state OUT, and keeps what the queue needs of each message in
packed arrays: 4 bytes, or 12 if their keys do not follow one another, and a little more for attributes that few
messages have.

    key              8 bytes    the key of the message in its source (`sources`); only if they are not consecutive
    size             4          header and content
    position         4          relative to the first; only if they are not consecutive
    expiry           8          only if one of them expires
    flags            1          only if one of them has any
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from qstore.broker.model.queues.entry import AVAILABLE, OUT, Entry
from qstore.formats.named_tuple import NamedTuple

if TYPE_CHECKING:
    from qstore.broker.model.message import Message

MAX_STRETCH: Final = 512
"""Messages in a stretch: reading them back takes 2 to 4 ms of the event loop."""

BYTES_PER_MESSAGE: Final = 28
"""Memory of a message in a stretch: 12 bytes, and 16 in the store. Those of a run take less."""


class Portions(NamedTuple):
    """The way messages leave memory.

    Attributes:
        window: messages next for the consumers, which stay in memory if they fit into half the budget.
        largest, smallest: messages in the largest stretch, and in the smallest that is worth it; `least`: also while
            the broker is short of memory, when many queues may have few messages each.
        bytes: a stretch of this size gets no more messages.
        patience: minimum number of messages that come and go between two walks over the whole queue that find little;
            or `bytes`, if they are large.
        rest: bytes of the messages of a queue from which on stored ones leave memory that are not next for consumers;
            `rest_unserved`: while it has no consumer that takes messages.
        together: bytes of references that are moved out and written together, or an eighth of the budget.
        ahead: bytes that are read back before the consumers need them, plus one stretch.
    """

    window: int = 2 * MAX_STRETCH
    largest: int = MAX_STRETCH
    smallest: int = 16
    least: int = 2
    bytes: int = 4 << 20
    patience: int = 2048
    ahead: int = 4 << 20
    together: int = 1 << 19
    rest: int = 16 << 20
    rest_unserved: int = 2 << 20


PORTIONS: Final = Portions()

REDELIVERED: Final = 1
ATYPICAL: Final = 2  # a message that is not persistent in a journal's stretch, or one that is in another

_MAX_SIZE: Final = 0xFFFFFFFF
MAX_SPAN: Final = 0xFFFFFFFF  # of positions
_REDELIVERED: Final = bytes(flags | REDELIVERED for flags in range(256))


class Item(NamedTuple):
    """One message of a stretch.

    Attributes:
        key, position, size, expires_at: as above; seconds since 1970, 0.0 for never.
        is_redelivered: whether it was delivered before.
        is_persistent: as in `Message`.
    """

    key: int
    position: int
    size: int
    expires_at: float
    is_redelivered: bool
    is_persistent: bool


class Stretch(Entry):
    """A stretch. Its position is that of its first message.

    Attributes:
        is_stored: whether the keys are record ids.
        keys: the keys of its messages, in order; a range if they are known to be consecutive.
        sizes: the sizes of its messages.
        count, size: their number, and the sum of their sizes.
        expiries: when each of them expires, in seconds since 1970, 0.0 for never; None if none does.
        first_expiry: the earliest of these times; 0.0 if none expires.
        is_fetched: whether they are being read back.
    """

    __slots__ = (
        "_flags", "_offsets", "count", "expiries", "first_expiry", "is_fetched", "is_stored", "keys", "size", "sizes",
    )  # fmt: skip

    def __init__(self, position: int, keys: Sequence[int], sizes: Sequence[int], *, is_stored: bool) -> None:
        self.keys: range | array[int] = keys if isinstance(keys, range) else array("Q", keys)
        self.sizes = array("I", sizes)
        self.position, self.state, self.rid, self.is_redelivered = position, OUT, 0, False
        self.is_stored, self.is_fetched = is_stored, False
        self.count, self.size = len(self.keys), sum(sizes)
        self.first_expiry = 0.0
        self._offsets: array[int] | None = None
        self.expiries: array[float] | None = None
        self._flags: bytearray | None = None

    def set_redelivered(self, numbers: Sequence[int]) -> None:
        """Mark some messages, by number from 0, as delivered before."""
        if not numbers:
            return
        if len(numbers) == self.count:  # all, after a crash: 1 ns for each, not 36 (tests.bench.bench_tricks)
            self._flags = bytearray((self._flags or b"\0" * self.count).translate(_REDELIVERED))
            return
        if self._flags is None:
            self._flags = bytearray(self.count)
        for number in numbers:
            self._flags[number] |= REDELIVERED

    def set_details(self, entries: Sequence[Entry]) -> None:
        """Note attributes that few messages have: a gap before their position, an expiry, flags."""
        first, last = entries[0].position, entries[-1].position
        if last - first != self.count - 1:
            self._offsets = array("I", [entry.position - first for entry in entries])
        is_stored, can_expire, have_flags = self.is_stored, False, False
        for entry in entries:
            message = entry.message
            if message.expires_at:
                can_expire = True
            if entry.is_redelivered or message.is_persistent is not is_stored:
                have_flags = True
        if can_expire:
            self.expiries = expiries = array("d", [entry.message.expires_at for entry in entries])
            self.first_expiry = min(each for each in expiries if each)
        if have_flags:
            self._flags = bytearray(
                REDELIVERED * entry.is_redelivered + ATYPICAL * (entry.message.is_persistent is not is_stored)
                for entry in entries
            )

    def extend(self, other: Stretch) -> None:
        """Append the messages of another stretch, which are later, and from the same source."""
        count, distance = self.count, other.position - self.position
        if distance != count or self._offsets is not None or other._offsets is not None:
            own = array("I", range(count)) if self._offsets is None else self._offsets
            own.extend(distance + offset for offset in other._offsets or range(other.count))
            self._offsets = own
        if self.expiries is not None or other.expiries is not None:
            self.expiries = self.expiries or array("d", bytes(8 * count))
            self.expiries.extend(other.expiries or array("d", bytes(8 * other.count)))
            self.first_expiry = min(each for each in self.expiries if each)
        if self._flags is not None or other._flags is not None:
            self._flags = (self._flags or bytearray(count)) + (other._flags or bytearray(other.count))
        if isinstance(self.keys, range) and isinstance(other.keys, range) and self.keys.stop == other.keys.start:
            self.keys = range(self.keys.start, other.keys.stop)
        else:
            self.keys = array("Q", self.keys)
            self.keys.extend(other.keys)
        self.sizes.extend(other.sizes)
        self.count, self.size = count + other.count, self.size + other.size

    def item(self, number: int) -> Item:
        """One of its messages, by number from 0."""
        offsets, expiries, flags = self._offsets, self.expiries, self._flags
        flag = 0 if flags is None else flags[number]
        return Item(
            self.keys[number],
            self.position + (number if offsets is None else offsets[number]),
            self.sizes[number],
            0.0 if expiries is None else expiries[number],
            bool(flag & REDELIVERED),
            self.is_stored is not bool(flag & ATYPICAL),
        )

    def parts(self, first: int, end: int) -> list[tuple[int, int]]:
        """Split its messages from one number up to another where a run ends: in each part positions are consecutive.

        In each part all were delivered before, or none was. A message that expires, or is otherwise unlike most, is a
        part of its own.
        """
        offsets, expiries, flags = self._offsets, self.expiries, self._flags
        if offsets is None and expiries is None:
            if flags is None:
                return [(first, end)]
            if flags.count(REDELIVERED, first, end) == end - first:  # as after a crash
                return [(first, end)]
        parts: list[tuple[int, int]] = []
        begin, before = first, 0
        for number in range(first, end):
            kind = 0 if flags is None else flags[number]
            if expiries is not None and expiries[number]:
                kind |= ATYPICAL
            has_gap = offsets is not None and number > first and offsets[number] != offsets[number - 1] + 1
            if number > begin and (has_gap or kind != before or kind & ATYPICAL):
                parts.append((begin, number))
                begin = number
            before = kind
        parts.append((begin, end))
        return parts

    def was_delivered(self, number: int) -> bool:
        """Whether one of its messages, by number from 0, was delivered before."""
        return self._flags is not None and self._flags[number] & REDELIVERED != 0

    def position_of(self, number: int) -> int:
        """The position of one of its messages."""
        return self.position + (number if self._offsets is None else self._offsets[number])

    def number_at(self, position: int) -> int:
        """The number of the message with a position, which is one of its messages."""
        offset = position - self.position
        return offset if self._offsets is None else bisect_left(self._offsets, offset)

    def entries(self, first: int, messages: Sequence[Message]) -> list[Entry]:
        """Entries for its messages, in order, from number `first` on; available, and not linked yet."""
        position, offsets, flags = self.position, self._offsets, self._flags
        rids = list(self.keys[first : first + len(messages)]) if self.is_stored else [0] * len(messages)
        entries: list[Entry] = []
        for number, message in enumerate(messages, first):
            entry = Entry()
            entry.message = message
            entry.position = position + (number if offsets is None else offsets[number])
            entry.state = AVAILABLE
            entry.rid = rids[number - first]
            entry.is_redelivered = flags is not None and flags[number] & REDELIVERED != 0
            entries.append(entry)
        return entries

    @property
    def last(self) -> int:
        """The position of its last message."""
        return self.position + (self.count - 1 if self._offsets is None else self._offsets[-1])

    def redelivered(self) -> list[int]:
        """The keys of the messages that were delivered before."""
        if self._flags is None:
            return []
        return [key for key, flags in zip(self.keys, self._flags, strict=True) if flags & REDELIVERED]


def can_join(entry: Entry, first: Entry) -> bool:
    """Whether an available entry can be in the same stretch as one that precedes it."""
    return (
        (entry.rid != 0) is (first.rid != 0)
        and entry.message.size <= _MAX_SIZE
        and entry.position - first.position <= MAX_SPAN
    )


def index_stretches(
    position: int, rids: Sequence[int], sizes: Sequence[int], redelivered: Sequence[int], largest: int
) -> Iterator[Stretch]:
    """Stretches of messages that recovery has found in a journal and not read.

    Args:
        position: the position of the first message.
        rids: their record ids, ascending.
        sizes: their sizes, as estimated.
        redelivered: those that were delivered before, by number from 0, ascending.
        largest: messages in a stretch.
    """
    for begin in range(0, len(rids), largest):
        end = begin + largest
        keys = rids[begin:end]
        if keys[-1] - keys[0] == len(keys) - 1:
            keys = range(keys[0], keys[-1] + 1)
        stretch = Stretch(position + begin, keys, sizes[begin:end], is_stored=True)
        marked = redelivered[bisect_left(redelivered, begin) : bisect_left(redelivered, end)]
        if marked:
            is_all = len(marked) == stretch.count
            stretch.set_redelivered(range(stretch.count) if is_all else [number - begin for number in marked])
        yield stretch
