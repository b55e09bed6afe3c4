"""The objects that consoles know: their ids in QMF version 1, since when they exist, and what was published of them.

An object is entered when it is first told to a console, and forgotten when a sweep of the publisher finds that it is
gone. Its id stays the same until then. The id of an object that survives a restart has the sequence 0, its class and
its number in the store; others have the number of starts of this broker, and the next number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from qstore.broker.management.objects.classes import CLASSES, ManagedObject, find_object
from qstore.formats.qmf.v1.object_id import ObjectId

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.objects.element import ManagedClass

BROKER_BANK: Final = 1
_CLASS_SHIFT: Final = 48
_NUMBERS: Final = {of: number for number, of in enumerate(CLASSES, 1)}


class Known:
    """An object that was told to a console.

    Attributes:
        name: its name.
        id: its id.
        created: when it was created, or first seen, in seconds since 1970.
        sweep: the number of the last sweep that has found it.
        values: its properties and statistics as last published; None if they were not.
    """

    __slots__ = ("created", "id", "name", "sweep", "values")

    def __init__(self, name: str, object_id: ObjectId, created: float, sweep: int) -> None:
        self.name, self.id, self.created, self.sweep = name, object_id, created, sweep
        self.values: tuple[tuple[Any, ...], tuple[Any, ...]] | None = None


class Registry:
    """The known objects of one broker.

    Args:
        managed: the broker.

    Attributes:
        sweep: the number of the current sweep.
    """

    def __init__(self, managed: ManagedBroker) -> None:
        self._managed = managed
        self._known: dict[ManagedClass, dict[str, Known]] = {of: {} for of in CLASSES}
        self._by_name: dict[str, Known] = {}
        self._names: dict[tuple[int, int], str] = {}  # sequence and number -> name
        self._next = 0
        self.sweep = 0

    def known(self, each: ManagedObject) -> Known:
        """What is known of an object, which is entered if it is new."""
        of = self._known[each.of]
        found = of.get(each.key)
        if found is None:
            stored = each.of.stored_id(each.target)
            created = each.of.created(each.target) or self._managed.broker.clock()
            found = of[each.key] = Known(each.name, self._new_id(each.of, stored), created, self.sweep)
            self._names[found.id.sequence, found.id.number] = found.name
            self._by_name[found.name] = found
        return found

    def id_of(self, name: str) -> ObjectId:
        """The id of the object with this name; one without a meaning if there is none."""
        known = self._by_name.get(name)
        if known is not None:
            return known.id
        found = find_object(self._managed, name)
        return ObjectId(0, 0, 0, 0, 0) if found is None else self.known(found).id

    def find(self, object_id: ObjectId) -> ManagedObject | None:
        """The object with this id."""
        name = self._names.get((object_id.sequence, object_id.number))
        return None if name is None or object_id.agent_bank else find_object(self._managed, name)

    def of_class(self, of: ManagedClass) -> dict[str, Known]:
        """The known objects of a class, by key."""
        return self._known[of]

    def forget(self, of: ManagedClass, key: str) -> None:
        """An object is gone."""
        gone = self._known[of].pop(key)
        self._names.pop((gone.id.sequence, gone.id.number), None)
        self._by_name.pop(gone.name, None)

    def _new_id(self, of: ManagedClass, stored: int) -> ObjectId:
        if stored:
            return ObjectId(0, 0, BROKER_BANK, 0, _NUMBERS[of] << _CLASS_SHIFT | stored)
        self._next += 1
        return ObjectId(0, self._managed.identity.starts, BROKER_BANK, 0, self._next)
