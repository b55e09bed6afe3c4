"""A stretch: consecutive available messages of a queue that are out of memory, with their entries.

It takes their place in the queue's list, as one entry with the state OUT, and keeps of each message what the queue
needs, in packed arrays: 12 bytes, and a little more for what few messages have.

    key              8 bytes    where the message is (`source`)
    size             4          header and content
    position         4          relative to the first; only if they are not consecutive
    expiry           8          only if one of them expires
    flags            1          only if one of them has any
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from qstore.broker.model.queues.entry import AVAILABLE, OUT, Entry

if TYPE_CHECKING:
    from qstore.broker.model.message import Message

MAX_STRETCH: Final = 512
"""Messages in a stretch: reading so many back takes 2 to 4 ms of the event loop."""

BYTES_PER_MESSAGE: Final = 28
"""Memory for a message in a stretch: 12 bytes, and 16 in the store."""


class Portions(NamedTuple):
    """How messages go out.

    Attributes:
        window: messages that are next for the consumers, and stay in memory if they fit into half the budget.
        largest, smallest: messages in the largest stretch, and in the smallest that is worth it.
        bytes: a stretch that has so many bytes gets no more messages.
        patience: messages that come and go, at least, between two walks over the whole queue that find little.
    """

    window: int = 2 * MAX_STRETCH
    largest: int = MAX_STRETCH
    smallest: int = 16
    bytes: int = 4 << 20
    patience: int = 2048


PORTIONS: Final = Portions()

REDELIVERED: Final = 1
ATYPICAL: Final = 2  # a message that is not persistent in a journal's stretch, or one that is in another

_MAX_SIZE: Final = 0xFFFFFFFF
_MAX_SPAN: Final = 0xFFFFFFFF  # of positions

_new_entry: Final = Entry.__new__


class Item(NamedTuple):
    """What is known of one message of a stretch.

    Attributes:
        key, position, size, expires_at: as above; seconds since 1970, 0.0 for never.
        is_redelivered: whether it was delivered before.
        is_persistent: as of the message.
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
        keys: of its messages, in order.
        sizes: of its messages.
        count, size: how many they are, and the sum of their sizes.
        first_expiry: when the first of them expires, in seconds since 1970; 0.0 if none does.
        is_fetched: they are being read back.
    """

    __slots__ = (
        "_expiries", "_flags", "_offsets", "count", "first_expiry", "is_fetched", "is_stored", "keys", "size", "sizes",
    )  # fmt: skip

    def __init__(self, position: int, keys: Sequence[int], sizes: Sequence[int], *, is_stored: bool) -> None:
        self.position, self.state, self.rid, self.is_redelivered = position, OUT, 0, False
        self.is_stored, self.is_fetched = is_stored, False
        self.keys, self.sizes = array("Q", keys), array("I", sizes)
        self.count, self.size = len(self.keys), sum(sizes)
        self.first_expiry = 0.0
        self._offsets: array[int] | None = None
        self._expiries: array[float] | None = None
        self._flags: bytearray | None = None

    def set_redelivered(self, numbers: Sequence[int]) -> None:
        """Mark some messages, by number from 0, as delivered before."""
        if not numbers:
            return
        if self._flags is None:
            self._flags = bytearray(self.count)
        for number in numbers:
            self._flags[number] |= REDELIVERED

    def set_details(self, entries: Sequence[Entry]) -> None:
        """Note what few messages have: a gap before their position, an expiry, flags."""
        first, last = entries[0].position, entries[-1].position
        if last - first != self.count - 1:
            self._offsets = array("I", [entry.position - first for entry in entries])
        expiries = [entry.message.expires_at for entry in entries]
        if any(expiries):
            self._expiries = array("d", expiries)
            self.first_expiry = min(each for each in expiries if each)
        is_stored = self.is_stored
        flags = bytearray(
            REDELIVERED * entry.is_redelivered + ATYPICAL * (entry.message.is_persistent is not is_stored)
            for entry in entries
        )
        if any(flags):
            self._flags = flags

    def items(self) -> Iterator[Item]:
        """What is known of its messages, in order."""
        offsets, expiries, flags, is_stored = self._offsets, self._expiries, self._flags, self.is_stored
        for number in range(self.count):
            flag = 0 if flags is None else flags[number]
            yield Item(
                self.keys[number],
                self.position + (number if offsets is None else offsets[number]),
                self.sizes[number],
                0.0 if expiries is None else expiries[number],
                bool(flag & REDELIVERED),
                is_stored is not bool(flag & ATYPICAL),
            )

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
    """Whether an available entry can be in a stretch with another that precedes it."""
    return (
        (entry.rid != 0) is (first.rid != 0)
        and entry.message.size <= _MAX_SIZE
        and entry.position - first.position <= _MAX_SPAN
    )


def entry_of(item: Item, message: Message, *, is_stored: bool) -> Entry:
    """An available entry for a message of a stretch, not linked yet."""
    entry = _new_entry(Entry)
    entry.message, entry.position, entry.state = message, item.position, AVAILABLE
    entry.rid = item.key if is_stored else 0
    entry.is_redelivered = item.is_redelivered
    return entry
