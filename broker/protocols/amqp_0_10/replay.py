"""The commands that a session has sent and may have to send again, when it is resumed on another connection.

They are kept until the peer has completed them. What came before the last one is bounded in bytes; a session that has
sent more cannot be resumed.

Source: AMQP 0-10, session (replay buffers).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from broker.model.content import Content

MOST_REPLAY_BYTES: Final = 16 * 1024 * 1024  # kept for a resumption before the last command; with more there is none


class Sent:
    """A command that was sent.

    Args:
        number: its own.
        payload, header, body: what it consists of.

    Attributes:
        number, payload, header, body: as above.
    """

    __slots__ = ("body", "header", "number", "payload")

    def __init__(self, number: int, payload: bytes, header: bytes | None, body: Content | None) -> None:
        self.number, self.payload, self.header, self.body = number, payload, header, body

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return len(self.payload) + len(self.header or b"") + len(self.body or b"")


class Replay:
    """What a session keeps of what it has sent, in order.

    Attributes:
        size: bytes that are kept.
    """

    __slots__ = ("_sent", "size")

    def __init__(self) -> None:
        self._sent: deque[Sent] = deque()
        self.size = 0

    def __len__(self) -> int:
        return len(self._sent)

    def __iter__(self) -> Iterator[Sent]:
        return iter(self._sent)

    def first_number(self, following: int) -> int:
        """The number of the first that is kept; `following`, that of the next command, if none is."""
        return self._sent[0].number if self._sent else following

    def keep(self, sent: Sent) -> bool:
        """Keep one more. False if there was too much before it: nothing is kept then."""
        if self.size > MOST_REPLAY_BYTES:  # before it: one message, however large, can be sent again
            self.clear()
            return False
        self._sent.append(sent)
        self.size += sent.size
        return True

    def clear(self) -> None:
        """Keep nothing."""
        self._sent.clear()
        self.size = 0

    def forget(self, ranges: list[tuple[int, int]]) -> None:
        """The peer has these, in merged ranges: they need not be sent again."""
        kept = self._sent
        if not kept or not ranges:
            return
        if len(ranges) == 1 and ranges[0][0] <= kept[0].number:
            while kept and kept[0].number <= ranges[0][1]:
                self.size -= kept.popleft().size
            return
        self._sent = deque()
        index = 0
        for each in kept:
            while index < len(ranges) and ranges[index][1] < each.number:
                index += 1
            if index < len(ranges) and ranges[index][0] <= each.number:
                self.size -= each.size
            else:
                self._sent.append(each)

    def forget_before(self, number: int) -> None:
        """The peer has all before `number`."""
        if self._sent:
            self.forget([(self._sent[0].number, number - 1)])
