"""Selection of rows of the table of records: by options of the data source, and by filters that are pushed down.

Options apply to every use of the loaded DataFrame, so they are always safe. Filters are accepted only on request
(`data_source` explains why). A filter on queue, type, record id or transaction id with "equal", "one of", "less" or
"greater" is applied here completely, so Spark does not apply it again. Every other one is left to Spark. Filters are
recognized by the names of their classes, since PySpark 4.0 does not have them yet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from qstore.tools.spark.columns import OptionError

HIGHEST: Final = (1 << 63) - 1
#: Types that rows may have.
ROW_TYPES: Final = ("enqueue", "dequeue", "commit", "abort", "filler", "damage")


@dataclass(frozen=True, slots=True)
class Selection:
    """The selected rows; None for all.

    Attributes:
        queues: the queues' names.
        kinds: the types of records.
        xids: transaction ids in hex.
        lowest, highest: record ids, as signed numbers, inclusive. Rows without one are selected only if there is no
            condition on record ids.
        rids: record ids, of which it must be one.
        ranges: of record ids, first and last, in one of which it must be.
    """

    queues: frozenset[str] | None = None
    kinds: frozenset[str] | None = None
    xids: frozenset[str] | None = None
    lowest: int | None = None
    highest: int | None = None
    rids: frozenset[int] | None = None
    ranges: tuple[tuple[int, int], ...] | None = None

    @property
    def accepts_all_rids(self) -> bool:
        """Whether there is no condition on record ids, so that rows without one are selected."""
        return self.lowest is None and self.highest is None and self.rids is None and self.ranges is None

    @property
    def wants_every_record(self) -> bool:
        """Whether no record is left out, whatever its queue."""
        return self.kinds is None and self.xids is None and self.accepts_all_rids

    def wants_kind(self, kind: str) -> bool:
        """Whether rows of that type are selected."""
        return self.kinds is None or kind in self.kinds

    def wants_queue(self, queue: str | None) -> bool:
        """Whether rows of that queue are selected."""
        return self.queues is None or queue in self.queues

    def wants_rid(self, rid: int | None) -> bool:
        """Whether rows with that record id are selected."""
        if rid is None:
            return self.accepts_all_rids
        if (self.lowest is not None and rid < self.lowest) or (self.highest is not None and rid > self.highest):
            return False
        if self.ranges is not None and not any(low <= rid <= high for low, high in self.ranges):
            return False
        return self.rids is None or rid in self.rids

    def wants_xid(self, xid: str | None) -> bool:
        """Whether rows with that transaction id are selected."""
        return self.xids is None or xid in self.xids


_RANGE: Final = re.compile(r"(?P<low>[0-9]{1,19})(-(?P<high>[0-9]{0,19}))?")
_SETS: Final = {"queue": "queues", "type": "kinds", "xid": "xids", "rid": "rids"}


def chosen(options: Mapping[str, str]) -> Selection:
    """The selection by options: queue, type and xid, each one value or several separated by commas, and rids.

    Values that contain commas are given as a JSON array. In `rids`, as "7,9,100-200,300-", ranges include both ends,
    and one without an end is open.

    Raises:
        OptionError: an option cannot be parsed.
    """
    kinds = _texts(options, "type")
    unknown = sorted((kinds or frozenset()) - frozenset(ROW_TYPES))
    if unknown:
        raise OptionError(f'option type: there is no type "{unknown[0]}"; the types are {", ".join(ROW_TYPES)}')
    return _with_rids(Selection(_texts(options, "queue"), kinds, _texts(options, "xid")), options)


def _texts(options: Mapping[str, str], name: str) -> frozenset[str] | None:
    text = options.get(name)
    if text is None:
        return None
    values: Any = [value.strip() for value in text.split(",") if value.strip()]
    if text.lstrip().startswith("["):
        try:
            values = orjson.loads(text)
        except orjson.JSONDecodeError:
            values = []
    if not values or not all(isinstance(value, str) for value in values):
        raise OptionError(f"option {name}: must be one or more values, separated by commas, not {text!r}")
    return frozenset(values)


def _with_rids(selection: Selection, options: Mapping[str, str]) -> Selection:
    text = options.get("rids")
    if text is None:
        return selection
    found = [_RANGE.fullmatch(part.strip()) for part in text.split(",")]
    ranges = [
        (int(each["low"]), HIGHEST if each["high"] == "" else int(each["high"] or each["low"]))
        for each in found
        if each
    ]
    if len(ranges) < len(found) or any(low > high or high > HIGHEST for low, high in ranges):
        raise OptionError(f'option rids: must be record ids or ranges, such as "7,100-200,300-", not {text!r}')
    return replace(selection, ranges=tuple(ranges))


def push(filters: Iterable[Any], selection: Selection) -> tuple[Selection, list[Any]]:
    """The selection narrowed by filters, and the filters that are left to Spark."""
    left = []
    for each in filters:
        narrowed = _narrowed(selection, each)
        if narrowed is None:
            left.append(each)
        else:
            selection = narrowed
    return selection, left


def _narrowed(selection: Selection, pushed: Any) -> Selection | None:
    """The selection with one more filter; None if the filter is not supported."""
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
