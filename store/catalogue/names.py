"""The names of a store's queues, exchanges and general objects: unique for each kind of object.

Stored in memory by the thread that makes the changes: read from the catalogue when the store is opened, and changed
when the catalogue's batch is synced. So a crash, or a batch that fails, leaves nothing behind here, and looking a name
up takes as long in a store of 10,000 queues as in an empty one.

If a store has two objects with one name, which earlier versions permitted, both the name in the record and the name
that it is shown with (`topology.Duplicate`) are taken, until the object is deleted.
"""

from __future__ import annotations

from typing import TypeAlias

from qstore.formats.broker_records.topology import Bridge, Exchange, GeneralObject, Link, Queue
from qstore.formats.catalogue import Kind
from qstore.formats.wording import printable
from qstore.store.catalogue.topology import Topology
from qstore.store.errors import NameTakenError

Record: TypeAlias = Queue | Exchange | Link | Bridge | GeneralObject
_Name: TypeAlias = tuple[str, str]  # the kind of object, and its name


class TakenNames:
    """The names of one store's objects.

    Args:
        topology: the content of the store when it is opened.
    """

    def __init__(self, topology: Topology) -> None:
        self._holders: dict[_Name, set[int]] = {}
        self._names: dict[tuple[Kind, int], list[_Name]] = {}
        for number, queue in topology.queues.items():
            self.add(Kind.QUEUE, number, queue.record)
        for number, exchange in topology.exchanges.items():
            self.add(Kind.EXCHANGE, number, exchange)
        for number, general in topology.general.items():
            self.add(Kind.GENERAL, number, general)
        for each in topology.duplicates:
            self._add(_SORTS.get(each.kind, Kind.GENERAL), each.number, (each.kind, each.name))

    def check(self, record: Record) -> None:
        """Check that an object with this record can be created.

        Raises:
            NameTakenError: an object of its kind and name exists.
        """
        kind, name = _name_of(record)
        holders = self._holders.get((kind, name))
        if holders and name:
            raise NameTakenError(f'{kind} "{printable(name)}" already exists, with the id {min(holders)}')

    def add(self, kind: Kind, number: int, record: Record) -> None:
        """An object was created."""
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
    """The kind of an object as text, and its name; empty if its record has none, and none is taken."""
    if isinstance(record, Queue):
        return "queue", record.name
    if isinstance(record, Exchange):
        return "exchange", record.name
    return record.kind, record.name or ""
