"""The names that a store's queues, exchanges and general objects have: each is given once for each kind of object.

Kept in memory, by the thread that makes the changes: it is filled from the catalogue when the store is opened, and
changes when the catalogue's batch is on the disk. So a crash, or a batch that fails, leaves nothing behind here, and to
look a name up takes as long in a store of 10,000 queues as in an empty one.

Where a store has two objects of one name, which earlier versions made, both the name in the record and the name that it
is shown by (`wiring.Duplicate`) are taken, until the object is deleted.
"""

from __future__ import annotations

from typing import TypeAlias

from formats.broker_records.wiring import Bridge, Exchange, GeneralObject, Link, Queue
from formats.catalogue import Kind
from formats.wording import printable
from store.catalogue.wiring import Wiring
from store.errors import NameTakenError

Record: TypeAlias = Queue | Exchange | Link | Bridge | GeneralObject
_Name: TypeAlias = tuple[str, str]  # the kind of object, and its name


class TakenNames:
    """The names of one store's objects.

    Args:
        wiring: what the store has when it is opened.
    """

    def __init__(self, wiring: Wiring) -> None:
        self._holders: dict[_Name, set[int]] = {}
        self._names: dict[tuple[Kind, int], list[_Name]] = {}
        for number, queue in wiring.queues.items():
            self.add(Kind.QUEUE, number, queue.record)
        for number, exchange in wiring.exchanges.items():
            self.add(Kind.EXCHANGE, number, exchange)
        for number, general in wiring.general.items():
            self.add(Kind.GENERAL, number, general)
        for each in wiring.duplicates:
            self._add(_SORTS.get(each.kind, Kind.GENERAL), each.number, (each.kind, each.name))

    def check(self, record: Record) -> None:
        """See that an object with this record can be made.

        Raises:
            NameTakenError: there is one of its kind and name.
        """
        kind, name = _name_of(record)
        holders = self._holders.get((kind, name))
        if holders and name:
            raise NameTakenError(
                f'there is a {kind} of the name "{printable(name)}" already, with the id {min(holders)}'
            )

    def add(self, kind: Kind, number: int, record: Record) -> None:
        """An object was made."""
        self._add(kind, number, _name_of(record))

    def remove(self, kind: Kind, number: int) -> None:
        """An object was deleted."""
        for name in self._names.pop((kind, number), ()):
            holders = self._holders[name]
            holders.discard(number)
            if not holders:
                del self._holders[name]

    def _add(self, kind: Kind, number: int, name: _Name) -> None:
        self._holders.setdefault(name, set()).add(number)
        self._names.setdefault((kind, number), []).append(name)


_SORTS = {"queue": Kind.QUEUE, "exchange": Kind.EXCHANGE}


def _name_of(record: Record) -> _Name:
    """The kind of an object in words, and its name; empty where its record has none, and none is taken."""
    if isinstance(record, Queue):
        return "queue", record.name
    if isinstance(record, Exchange):
        return "exchange", record.name
    return record.kind, record.name or ""
