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


class Declined:
    """The entries that the same kinds have declined.

    Attributes:
        kinds: those.
        behind: the entries that the queue's cursor has passed.
    """

    __slots__ = ("behind", "kinds")

    def __init__(self, kinds: frozenset[Hashable]) -> None:
        self.kinds = kinds
        self.behind: dict[Entry, None] = {}


class PassedOver:
    """What one queue has passed over.

    Attributes:
        entries: entry -> who has declined it, and with it which others.
    """

    __slots__ = ("_groups", "entries")

    def __init__(self) -> None:
        self.entries: dict[Entry, Declined] = {}
        self._groups: dict[frozenset[Hashable], Declined] = {}

    def add(self, entry: Entry, kinds: frozenset[Hashable]) -> None:
        """The queue passes over an entry that these kinds have declined, and perhaps others before them."""
        before = self.entries.get(entry)
        if before is not None:
            before.behind.pop(entry, None)
            kinds |= before.kinds
        group = self._groups.get(kinds)
        if group is None:
            group = self._groups[kinds] = Declined(kinds)
        self.entries[entry] = group
        group.behind[entry] = None

    def discard(self, entry: Entry) -> None:
        """An entry is acquired."""
        group = self.entries.pop(entry, None)
        if group is not None:
            group.behind.pop(entry, None)
        if not self.entries:
            self._groups.clear()

    def first_for(self, kind: Hashable) -> Entry | None:
        """The first entry behind the cursor that this kind has not declined; None if there is none.

        The cursor is to go back to it: it, and those after it that this kind has not declined, count as ahead of it.
        """
        unseen = [group for group in self._groups.values() if group.behind and kind not in group.kinds]
        if not unseen:
            return None
        first = min((entry for group in unseen for entry in group.behind), key=_POSITION)
        for group in unseen:
            group.behind = {}
        return first
