"""Messages that none of the consumers they were offered to can ever take.

Consumers of one kind can take the same messages. The queue passes over a message that all ready kinds have declined: it
is offered again only when a consumer of another kind is ready. So each message is examined once per kind, however often
the queue is dispatched, and however many such messages are at its head.

A message is removed from this record when it is acquired. If it is released, it is offered to all kinds again.
"""

from __future__ import annotations

from collections.abc import Hashable
from operator import attrgetter
from typing import Final

from qstore.broker.model.queues.entry import Entry

_POSITION: Final = attrgetter("position")


class PassedOver:
    """The messages that one queue has passed over.

    Attributes:
        declined: entry -> the kinds that have declined it. Read-only; always the same dictionary.
    """

    __slots__ = ("_passed", "declined")

    def __init__(self) -> None:
        self.declined: dict[Entry, frozenset[Hashable]] = {}
        #: Those of the same entries that are before the queue's cursor, by kinds.
        self._passed: dict[frozenset[Hashable], dict[Entry, None]] = {}

    def add(self, entry: Entry, kinds: frozenset[Hashable]) -> None:
        """The queue passes over an entry; `kinds` are all that have declined it so far."""
        before = self.declined.get(entry)
        if before is not None and before != kinds:
            self._take_from(before, entry)
        passed = self._passed.setdefault(kinds, {})
        self.declined[entry] = kinds
        passed[entry] = None

    def discard(self, entry: Entry) -> None:
        """An entry is acquired: remove it, if it was passed over."""
        kinds = self.declined.pop(entry, None)
        if kinds is not None:
            self._take_from(kinds, entry)

    def first_for(self, kind: Hashable) -> Entry | None:
        """The first entry before the cursor that this kind has not declined; None if there is none.

        The caller moves the cursor back to it: all entries not declined by this kind then count as after the cursor.
        """
        unseen = [kinds for kinds in self._passed if kind not in kinds]
        if not unseen:
            return None
        return min((entry for kinds in unseen for entry in self._passed.pop(kinds)), key=_POSITION)

    def _take_from(self, kinds: frozenset[Hashable], entry: Entry) -> None:
        passed = self._passed.get(kinds)
        if passed is not None:
            passed.pop(entry, None)
            if not passed:
                del self._passed[kinds]
