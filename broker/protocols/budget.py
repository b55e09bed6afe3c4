"""What connections share fairly: the memory of incomplete messages, and the time in which input is processed.

A connection processes the input of one read, or what is left of it, for `MAX_SECONDS` at a time; the rest waits until
other connections were served. The clock is read once for every `FRAMES_PER_LOOK` frames of the hot path, and after each
other one, as those may be dear: a declaration, or a message that is not like the one before, whose route may be new.

The memory is that of all connections of a protocol together.

A message for which there is no room waits: its connection is not read until others are complete. So that this ends,

    room         messages of more than an eighth of the limit leave an eighth of it to smaller ones, unless the limit
                 is hardly more than one message may have
    refused      is a message that could never get room: all connections that hold incomplete messages wait themselves
    stalled      is a message of which nothing comes for `STALLED_SECONDS`; while others wait, one of which less than
                 `PROGRESS` bytes come in `CONTENDED_SECONDS`. It is refused, and its bytes are free for others
    at most      a message waits for `STALLED_SECONDS`, and is refused then
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from qstore.broker.model.tick import Turns

MAX_SECONDS: Final = 0.010
"""How long a connection processes input before it yields to others, but for the end of a command."""

FRAMES_PER_LOOK: Final = 8

STALLED_SECONDS: Final = 60.0
CONTENDED_SECONDS: Final = 10.0
PROGRESS: Final = 64 * 1024

_SMALL: Final = 8  # the part of the limit that a small message has at most
_RESERVED: Final = 8  # the part that is left to small ones


class Holder(Protocol):
    """Has incomplete messages of one connection."""

    def found_room(self) -> None:
        """There may be room for what has waited."""


class Budget:
    """A limit of bytes.

    Args:
        max_bytes: the limit.
        largest: bytes that one message may have, for which there is room in any case; None for as many as the limit.
        turns: in which waiting connections are resumed; None: none waits, and what finds no room is refused.

    Attributes:
        max_bytes: as above.
        used: bytes in use.
        waiting: who waits for room -> since when, by the clock of `is_overdue`; 0.0 before its first call.
    """

    __slots__ = ("_holders", "_max_large", "_turns", "max_bytes", "used", "waiting")

    def __init__(self, max_bytes: int, largest: int | None = None, turns: Turns | None = None) -> None:
        self.max_bytes, self._turns = max_bytes, turns
        largest = max_bytes if largest is None else min(largest, max_bytes)
        self._max_large = max(max_bytes - max_bytes // _RESERVED, largest)
        self.used = 0
        self._holders: dict[Holder, None] = {}
        self.waiting: dict[Holder, float] = {}

    def has_room(self, size: int, of_message: int) -> bool:
        """Whether there is room for so many bytes of a message that has, or will have, a size of its own."""
        limit = self.max_bytes if of_message <= self.max_bytes // _SMALL else self._max_large
        return self.used + size <= limit

    def holds(self, holder: Holder, size: int) -> None:
        """A connection's incomplete messages have so many bytes now."""
        if size > 0:
            self._holders[holder] = None
        elif holder in self._holders:
            del self._holders[holder]

    def freed(self) -> None:
        """Bytes are free that were in use: tell those who wait."""
        if self.waiting and self._turns is not None and not self._turns.has(self):
            self._turns.do(self, self._tell())

    def _tell(self) -> Iterator[None]:
        yield  # not now: the caller that freed them is in the middle of an operation
        for holder in list(self.waiting):
            if holder in self.waiting:
                holder.found_room()  # which waits on if there is not enough
                yield

    def may_wait(self, holder: Holder) -> bool:
        """Wait for room. False if none would ever be freed: the message must be refused."""
        if self._turns is None or all(each is holder or each in self.waiting for each in self._holders):
            self.waiting.pop(holder, None)
            return False
        self.waiting.setdefault(holder, 0.0)
        return True

    def has_found(self, holder: Holder) -> None:
        """It does not wait any more."""
        self.waiting.pop(holder, None)

    def is_overdue(self, holder: Holder, now: float) -> bool:
        """Whether it waits for too long."""
        since = self.waiting.get(holder)
        if since is None:
            return False
        if not since:
            self.waiting[holder] = now
        return 0 < since < now - STALLED_SECONDS

    def forget(self, holder: Holder) -> None:
        """A connection is closed, or does not wait any more."""
        self._holders.pop(holder, None)
        self.waiting.pop(holder, None)
        self.freed()


class Pace:
    """How an incomplete message gets on.

    Attributes:
        since: when it had so many bytes as are marked; 0.0 before it was looked at.
    """

    __slots__ = ("_marked", "since")

    def __init__(self) -> None:
        self._marked, self.since = 0, 0.0

    def has_stalled(self, size: int, now: float, budget: Budget, *, is_read: bool) -> bool:
        """Whether its sender has stalled; it has so many bytes now. `is_read`: whether its connection is being read."""
        wanted = 1
        limit = STALLED_SECONDS
        if budget.waiting and size > PROGRESS:
            wanted, limit = PROGRESS, CONTENDED_SECONDS
        if not self.since or not is_read or size - self._marked >= wanted:
            self._marked, self.since = size, now
            return False
        return now - self.since > limit
