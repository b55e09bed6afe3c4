"""Fair share: how many messages of a level are delivered before the levels below it have their turn.

A round goes through the levels from the highest to the lowest. A level's turn ends after as many messages as its limit,
or when it has no more; a level without a limit has its turn until it is empty. After the lowest level, or when nothing
is left to be delivered, the next round begins at the highest. A message that arrives in a round waits for its level's
turn, even if the level is higher than the present one.

Source: qpidd, Fairshare.cpp (behaviour); it does not begin at the highest level when nothing is left.
"""

from __future__ import annotations

from collections.abc import Sequence


class FairShare:
    """The rounds of one queue.

    Args:
        limits: for each level, from the lowest, the messages of one turn; 0 for no limit.
    """

    __slots__ = ("_count", "_level", "_limits", "_sequences")

    def __init__(self, limits: Sequence[int]) -> None:
        self._limits = list(limits)
        top = len(self._limits) - 1
        self._sequences = [
            [*range(start, -1, -1), *range(top, start, -1)] for start in range(top + 1)
        ]  # by the level at which it begins
        self._level, self._count = top, 0  # whose turn it is, and its messages so far

    def sequence(self) -> list[int]:
        """The levels in the order in which the next message is searched: each once."""
        level, limit = self._level, self._limits[self._level]
        if limit and self._count >= limit:
            level = level - 1 if level else len(self._limits) - 1
        return self._sequences[level]

    def took(self, level: int) -> None:
        """The next message is of this level: the first of the sequence that has one."""
        limit = self._limits[level]
        if level != self._level or (limit and self._count >= limit):  # if no other level has any, it has another turn
            self._level, self._count = level, 0
        self._count += 1

    def restart(self) -> None:
        """Nothing is left to be delivered: the next message begins a round."""
        self._level, self._count = len(self._limits) - 1, 0
