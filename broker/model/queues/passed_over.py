"""Messages that wait on a queue, and that none of the consumers who were offered them can ever take.

Consumers of one kind can take the same messages. What all kinds that waited have declined, the queue passes over: it is
offered again only when a consumer of another kind waits. So each message is looked at once for each kind, however often
the queue is dispatched, and however many such messages stand at its head.

A message is forgotten here when it is acquired. If it comes back, it is offered to everybody again.
"""

from __future__ import annotations

from collections.abc import Hashable
from operator import attrgetter
from typing import Final

from broker.model.queues.entry import Entry

_POSITION: Final = attrgetter("position")


class PassedOver:
    """What one queue has passed over.

    Attributes:
        declined: entry -> the kinds that have declined it. To be read only; the same dictionary for ever.
    """

    __slots__ = ("_behind", "declined")

    def __init__(self) -> None:
        self.declined: dict[Entry, frozenset[Hashable]] = {}
        #: Of the same entries those that the queue's cursor has passed, by the same kinds.
        self._behind: dict[frozenset[Hashable], dict[Entry, None]] = {}

    def add(self, entry: Entry, kinds: frozenset[Hashable]) -> None:
        """The queue passes over an entry; `kinds` are all that have declined it so far."""
        before = self.declined.get(entry)
        if before is not None and before != kinds:
            self._take_from(before, entry)
        behind = self._behind.setdefault(kinds, {})
        self.declined[entry] = kinds
        behind[entry] = None

    def discard(self, entry: Entry) -> None:
        """An entry is acquired, if it was not before."""
        kinds = self.declined.pop(entry, None)
        if kinds is not None:
            self._take_from(kinds, entry)

    def first_for(self, kind: Hashable) -> Entry | None:
        """The first entry behind the cursor that this kind has not declined; None if there is none.

        The cursor is to go back to it: all that this kind has not declined counts as ahead of the cursor from now on.
        """
        unseen = [kinds for kinds in self._behind if kind not in kinds]
        if not unseen:
            return None
        return min((entry for kinds in unseen for entry in self._behind.pop(kinds)), key=_POSITION)

    def _take_from(self, kinds: frozenset[Hashable], entry: Entry) -> None:
        behind = self._behind.get(kinds)
        if behind is not None:
            behind.pop(entry, None)
            if not behind:
                del self._behind[kinds]
