"""Filters that Spark pushes down: which rows of the table of records are wanted.

A filter on queue, type, record id or transaction id that says "equal", "one of", "less" or "greater" is done here
whole, so Spark does not look again. Every other one is left to Spark. Filters are known by the names of their classes,
since PySpark 4.0 does not have them yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

LOWEST: Final = -(1 << 63)
HIGHEST: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows are wanted; None for all.

    Attributes:
        queues: the queues' names.
        kinds: the types of records.
        xids: transaction ids in hex.
        lowest, highest: record ids, as numbers with a sign; both ends are wanted. Rows without one are wanted only
            while nothing is said of record ids.
        rids: single record ids, of which it must be one.
    """

    queues: frozenset[str] | None = None
    kinds: frozenset[str] | None = None
    xids: frozenset[str] | None = None
    lowest: int | None = None
    highest: int | None = None
    rids: frozenset[int] | None = None

    @property
    def says_nothing_of_rids(self) -> bool:
        """Whether all record ids are wanted, and rows that have none."""
        return self.lowest is None and self.highest is None and self.rids is None

    @property
    def wants_every_record(self) -> bool:
        """Whether no record is left out, whatever its queue."""
        return self.kinds is None and self.xids is None and self.says_nothing_of_rids

    def wants_kind(self, kind: str) -> bool:
        """Whether rows of that type are wanted."""
        return self.kinds is None or kind in self.kinds

    def wants_queue(self, queue: str | None) -> bool:
        """Whether rows of that queue are wanted."""
        return self.queues is None or queue in self.queues

    def wants_rid(self, rid: int | None) -> bool:
        """Whether rows with that record id are wanted."""
        if rid is None:
            return self.says_nothing_of_rids
        if (self.lowest is not None and rid < self.lowest) or (self.highest is not None and rid > self.highest):
            return False
        return self.rids is None or rid in self.rids

    def wants_xid(self, xid: str | None) -> bool:
        """Whether rows with that transaction id are wanted."""
        return self.xids is None or xid in self.xids


_SETS: Final = {"queue": "queues", "type": "kinds", "xid": "xids", "rid": "rids"}


def push(filters: Iterable[Any]) -> tuple[Selection, list[Any]]:
    """What filters select, and those that are left to Spark."""
    selection, left = Selection(), []
    for each in filters:
        narrowed = _narrowed(selection, each)
        if narrowed is None:
            left.append(each)
        else:
            selection = narrowed
    return selection, left


def _narrowed(selection: Selection, pushed: Any) -> Selection | None:
    """The selection with one more filter; None if that is not understood."""
    attribute: Any = getattr(pushed, "attribute", ())
    value: Any = getattr(pushed, "value", None)
    if len(attribute) != 1 or attribute[0] not in _SETS:
        return None
    name = str(attribute[0])
    match type(pushed).__name__:
        case "EqualTo":
            return _one_of(selection, name, (value,))
        case "In":
            return _one_of(selection, name, tuple(value))
        case "GreaterThan" if name == "rid" and isinstance(value, int):
            return _at_least(selection, value + 1)
        case "GreaterThanOrEqual" if name == "rid" and isinstance(value, int):
            return _at_least(selection, value)
        case "LessThan" if name == "rid" and isinstance(value, int):
            return _at_most(selection, value - 1)
        case "LessThanOrEqual" if name == "rid" and isinstance(value, int):
            return _at_most(selection, value)
    return None


def _one_of(selection: Selection, name: str, values: tuple[Any, ...]) -> Selection | None:
    expected = int if name == "rid" else str
    wanted = frozenset(value for value in values if value is not None)  # no row equals null
    if not all(isinstance(value, expected) for value in wanted):
        return None
    before: frozenset[Any] | None = getattr(selection, _SETS[name])
    narrowed: dict[str, Any] = {_SETS[name]: wanted if before is None else before & wanted}
    return replace(selection, **narrowed)


def _at_least(selection: Selection, rid: int) -> Selection:
    return replace(selection, lowest=rid if selection.lowest is None else max(rid, selection.lowest))


def _at_most(selection: Selection, rid: int) -> Selection:
    return replace(selection, highest=rid if selection.highest is None else min(rid, selection.highest))
