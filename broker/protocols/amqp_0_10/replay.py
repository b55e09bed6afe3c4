"""The replay buffer: commands that a session has sent, and must send again if it is resumed on another connection.

Commands are kept until the peer has completed them. The bytes before the last one are bounded; a session that exceeds
the bound cannot be resumed.

Source: AMQP 0-10, session (replay buffers).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from qstore.broker.model.content import Content

MAX_REPLAY_BYTES: Final = 16 * 1024 * 1024  # before the last command; beyond it, the session cannot be resumed


class Sent:
    """A command that was sent.

    Args:
        number: its command number.
        payload, header, body: its parts.

    Attributes:
        number, payload, header, body: as above.
    """

    __slots__ = ("body", "header", "number", "payload")

    def __init__(self, number: int, payload: bytes, header: bytes | None, body: Content | None) -> None:
        self.number, self.payload, self.header, self.body = number, payload, header, body

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return len(self.payload) + len(self.header or b"") + len(self.body or b"")


class Replay:
    """The replay buffer of one session, in order.

    Attributes:
        size: bytes held.
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
        """The number of the first command held; `following`, that of the next command, if there is none."""
        return self._sent[0].number if self._sent else following

    def keep(self, sent: Sent) -> bool:
        """Add a command. False if there was too much before it: then the buffer is cleared."""
        if self.size > MAX_REPLAY_BYTES:  # not counting this one: a single message of any size can be replayed
            self.clear()
            return False
        self._sent.append(sent)
        self.size += sent.size
        return True

    def clear(self) -> None:
        """Discard all commands."""
        self._sent.clear()
        self.size = 0

    def forget(self, ranges: list[tuple[int, int]]) -> None:
        """Discard commands that the peer has completed, in merged ranges."""
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
        """Discard all commands before `number`."""
        if self._sent:
            self.forget([(self._sent[0].number, number - 1)])
