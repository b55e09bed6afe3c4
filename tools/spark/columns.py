"""The tables, their columns, which rows are read, and values as Arrow arrays.

Tables and columns are declared once; schemas and documentation are derived from that.

Unsigned 64-bit numbers (record ids, times to live, as a forged store may contain them) are stored in a `bigint` with
the same bits: values above 2^63 - 1 become negative. Names that are not UTF-8 are escaped as by `qstore-dump`.

Rows of the table of records are selected by options of the data source, and by filters that are pushed down. Options
apply to every use of the loaded DataFrame, so they are always safe. Filters are accepted only on request (`data_source`
explains why). A filter on queue, type, record id or transaction id with "equal", "one of", "less" or "greater" is
applied here completely, so Spark does not apply it again. Every other one is left to Spark. Filters are recognized by
the names of their classes, since PySpark 4.0 does not have them yet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from qstore.formats.named_tuple import NamedTuple
from qstore.tools.console.text import escape_name, escape_names

#: Column types: strings is an array of strings, map a map from strings to strings.
TYPES: Final = ("string", "long", "int", "boolean", "binary", "strings", "map")


class Column(NamedTuple):
    """A column.

    Attributes:
        name: its name.
        type: one of `TYPES`.
        doc: its definition.
    """

    name: str
    type: str
    doc: str


_STORE: Final = Column("store", "string", "the store's path, as found")
_QUEUE: Final = Column("queue", "string", 'the queue; "TplStore" for the transaction prepared list')

_HOST: Final = (
    Column("vhost", "string", "its virtual host"),
    Column("name", "string", "its name there; the full name is host, U+001F and name, unless the host is /"),
)

_PLACES: Final = (
    _STORE,
    Column("format", "string", "the journal's format: qstore, legacystore, linearstore"),
    _QUEUE,
    Column("journal", "string", "path of the journal's directory"),
    Column("file", "string", "path of the file in which the record begins"),
    Column("offset", "long", "bytes from the file's start to the record's header; null for the whole file"),
    Column("position", "long", "bytes from the start of the journal's oldest file, without file headers: the "
        "order in which records were written"),
)  # fmt: skip

_RECORD: Final = (
    Column("type", "string", "enqueue, dequeue, commit, abort, filler (on request), or damage"),
    Column("rid", "long", "record id"),
    Column("dequeued_rid", "long", "of a dequeue, the record id of the enqueue that it removes"),
    Column("xid", "string", "transaction id in hex; null outside transactions"),
    Column("prepared", "string", "of an enqueue in the prepared list: dtx or local"),
    Column("flags", "strings", "names of the flags, as in qstore-dump"),
    Column("flush", "long", "qstore: low 32 bits of the number of its flush"),
    Column("size", "long", "bytes on disk, with padding; of damage the bytes that were skipped, if known"),
    Column("checksum", "string", "what was verified: crc ok, adler ok, tail ok (qpidd's legacystore), none"),
    Column("damage", "string", "what is wrong; null if nothing is"),
    Column("damage_kind", "string", "the stable name of what is wrong: `file-size`, `record-broken`"),
    Column("consequence", "string", "of damage: how reading continues"),
)

MESSAGE_COLUMNS: Final = (
    Column("protocol", "string", "0-10, 0-9-1 or 1.0"),
    Column("exchange", "string", "the exchange to which the message was sent"),
    Column("routing_key", "string", "its routing key; AMQP 1.0: its subject"),
    Column("message_id", "string", "its id"),
    Column("durable", "boolean", "whether its delivery mode is persistent; null if it has none"),
    Column("priority", "int", "its priority"),
    Column("ttl", "long", "time to live, milliseconds"),
    Column("expiration", "long", "when it expires, seconds since 1970"),
    Column("timestamp", "long", "seconds since 1970, set by the publisher or the broker"),
    Column("content_type", "string", "its content type"),
    Column("content_encoding", "string", "its content encoding"),
    Column("correlation_id", "string", "its correlation id"),
    Column("reply_to", "string", "the reply address, or exchange and routing key as JSON"),
    Column("user_id", "string", "the publisher's user id"),
    Column("app_id", "string", "the application that sent it"),
    Column("headers", "map", "application headers; values that are not text are JSON"),
    Column("header_types", "map", "their types, with the protocol's names"),
    Column("body_length", "long", "bytes of the body"),
    Column("body", "binary", "the body, up to the option body_limit"),
)

#: Table -> its columns.
TABLES: Final[dict[str, tuple[Column, ...]]] = {
    "records": (*_PLACES, *_RECORD, *MESSAGE_COLUMNS),
    "files": (
        _STORE,
        Column("kind", "string", "journal file; damage, notice (from reading the store); unusable (not a store)"),
        Column("format", "string", "the detected format: qstore, legacystore, linearstore, journal, journal file"),
        _QUEUE,
        Column("journal", "string", "path of the journal's directory"),
        Column("file", "string", "path of the file; of an unusable input its path"),
        Column("number", "int", "the file's number in its journal"),
        Column("age", "int", "its position in the order of writing, 0 the oldest"),
        Column("size", "long", "bytes of the file; null if it is missing"),
        Column("first_record", "long", "offset of its first record; null if no record begins in it, or unknown"),
        Column("first_flush", "long", "qstore: number of the first flush in it"),
        Column("written", "long", "when its header was created, nanoseconds since 1970"),
        Column("offset", "long", "of damage, its offset in the file"),
        Column("rid", "long", "of damage, the record id"),
        Column("reason", "string", "what is wrong, or worth knowing"),
        Column("damage_kind", "string", "of damage: its stable name: `file-size`, `record-broken`"),
        Column("consequence", "string", "of damage: how reading continues"),
    ),
    "queues": (
        _STORE,
        Column("format", "string", "the detected format: qstore, legacystore, linearstore, journal, journal file"),
        _QUEUE,
        Column("journal", "string", "path of its journal's directory; null if it has none"),
        Column("arguments", "map", "its arguments; values that are not text are JSON; null if no catalogue has them"),
        Column("alternate_exchange", "string", "its alternate exchange"),
        Column("files", "int", "number of files of its journal"),
        Column("file_size", "long", "bytes of each"),
        Column("messages", "long", "messages that a restart would deliver"),
        *_HOST,
    ),
    "exchanges": (
        _STORE,
        Column("exchange", "string", "its name"),
        Column("type", "string", "its type"),
        Column("durable", "boolean", "whether it is durable"),
        Column("arguments", "map", "its arguments; values that are not text are JSON"),
        Column("alternate_exchange", "string", "its alternate exchange"),
        *_HOST,
    ),
    "bindings": (
        _STORE,
        Column("exchange", "string", "the exchange that is bound"),
        _QUEUE,
        Column("key", "string", "the binding key"),
        Column("arguments", "map", "its arguments; values that are not text are JSON"),
    ),
    "transactions": (
        _STORE,
        Column("xid", "string", "transaction id in hex"),
        Column("type", "string", "dtx or local"),
        Column("state", "string", "what recovery does with it"),
        Column("xid_format", "long", "of a distributed one, the format of its id"),
        Column("global_id", "string", "of a distributed one, its global id in hex"),
        Column("branch_id", "string", "of a distributed one, its branch id in hex"),
        Column("enqueues", "long", "its undecided enqueues"),
        Column("dequeues", "long", "its undecided dequeues"),
    ),
}  # fmt: skip


class OptionError(ValueError):
    """An option of the data source is unusable; the text says why."""


def table_columns(table: str, chosen: str | None = None) -> tuple[Column, ...]:
    """The columns of a table.

    Args:
        table: its name.
        chosen: names of columns, separated by commas, in the requested order; None for all.

    Raises:
        OptionError: there is no such table or column, or a column is named twice.
    """
    columns = TABLES.get(table)
    if columns is None:
        raise OptionError(f'option table: there is no table "{table}"; the tables are {", ".join(TABLES)}')
    if chosen is None:
        return columns
    by_name = {column.name: column for column in columns}
    names = [name.strip() for name in chosen.split(",") if name.strip()]
    for name in names:
        if name not in by_name:
            raise OptionError(f'option columns: table {table} has no column "{name}"; it has {", ".join(by_name)}')
    if not names or len(set(names)) != len(names):
        raise OptionError(f'option columns: "{chosen}" names no column, or one of them twice')
    return tuple(by_name[name] for name in names)


# ---- which rows ----

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
_HEX: Final = re.compile("([0-9A-Fa-f]{2})+")
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
    xids = _texts(options, "xid")
    if xids is not None and not all(_HEX.fullmatch(xid) for xid in xids):
        raise OptionError(f"option xid: must be transaction ids in hex, not {options['xid']!r}")
    lower = None if xids is None else frozenset(xid.lower() for xid in xids)
    return _with_rids(Selection(_texts(options, "queue"), kinds, lower), options)


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


# ---- values as Arrow arrays ----

ARROW_TYPES: Final[dict[str, Any]] = {
    "string": pa.string(),
    "long": pa.int64(),
    "int": pa.int32(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "strings": pa.list_(pa.string()),
    "map": pa.map_(pa.string(), pa.string()),
}
_UUID_BYTES: Final = 16
_HYPHENS: Final = (8, 13, 18, 23)
_NEGATIVE: Final = 1 << 63
_MODULUS: Final = 1 << 64


#: Columns of the records that usually have few values, and so may be dictionaries with numbers into them.
CODED: Final = frozenset((
    "store", "format", "queue", "journal", "file", "type", "checksum", "protocol", "exchange", "routing_key",
    "content_type", "content_encoding", "user_id", "app_id",
))  # fmt: skip
CODED_TYPE: Final = pa.dictionary(pa.int32(), pa.string())


def arrow_schema(columns: Iterable[Column], *, coded: bool = False) -> Any:
    """The Arrow schema of some columns; `coded`: those in `CODED` have dictionaries."""
    return pa.schema([
        pa.field(column.name, CODED_TYPE if coded and column.name in CODED else ARROW_TYPES[column.type])
        for column in columns
    ])  # fmt: skip


def array(kind: str, values: Sequence[Any]) -> Any:
    """An array of one of the types of `columns.TYPES`; maps are dictionaries of JSON values."""
    if kind == "string":
        return pa.array(_names(values), pa.string())
    if kind == "map":
        return _maps(values)
    if kind == "long":
        return _long(values)
    return pa.array(values, ARROW_TYPES[kind])


def constant(kind: str, value: Any, count: int) -> Any:
    """An array that repeats one value."""
    if value is None:
        return pa.nulls(count, ARROW_TYPES[kind])
    if kind == "map":  # Arrow does not repeat it
        return array(kind, [value]).take(pa.repeat(pa.scalar(0), count))
    return pa.repeat(array(kind, [value])[0], count)


def signed(number: int) -> int:
    """An unsigned 64-bit number as the signed one with the same bits."""
    return number if number < _NEGATIVE else number - _MODULUS


def uuids(raw: bytes) -> Any:
    """The texts of UUIDs, of which `raw` has 16 bytes each."""
    count = len(raw) // _UUID_BYTES
    offsets = pa.array(range(0, len(raw) * 2 + 1, _UUID_BYTES * 2), pa.int32())
    texts = pa.StringArray.from_buffers(count, offsets.buffers()[1], pa.py_buffer(raw.hex().encode()))
    for place in _HYPHENS:
        texts = pc.binary_replace_slice(texts, place, place, "-")
    return texts


def _long(values: Sequence[int | None]) -> Any:
    try:
        return pa.array(values, pa.int64())
    except (OverflowError, pa.ArrowInvalid):
        return pa.array([None if value is None else signed(value % _MODULUS) for value in values], pa.int64())


def _names(values: Sequence[str | None]) -> Sequence[str | None]:
    for value in set(values):
        if value is not None and ("\\x" in value or not value.isascii()):
            return [None if each is None else escape_name(each) for each in values]
    return values


def _maps(values: Sequence[dict[str, Any] | None]) -> Any:
    """Maps: names escaped, values that are not text as JSON; null stays null."""
    if values and values[0]:
        names = tuple(values[0])
        if all(value is not None and tuple(value) == names for value in values):
            columns = [list(column) for column in zip(*(value.values() for value in values if value), strict=True)]
            return maps_of(names, columns, len(values))
    offsets: list[int | None] = []
    keys: list[str] = []
    entries: list[Any] = []
    for value in values:
        offsets.append(None if value is None else len(keys))
        if value:
            keys.extend(value)
            entries.extend(value.values())
    offsets.append(len(keys))
    texts = [entry if type(entry) is str and entry.isascii() else _text(entry) for entry in entries]
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(_names(keys), pa.string()), pa.array(texts, pa.string())
    )


def maps_of(names: tuple[str, ...], columns: Sequence[Sequence[Any]], count: int) -> Any:
    """`count` maps that all have the same keys, as those of a queue's messages often do: a third of the time of others.

    Args:
        names: the keys.
        columns: the values of each key: one for each map, or one for all.
        count: number of maps.
    """
    width = len(names)
    texts = pa.concat_arrays([_entries(column) for column in columns])
    offsets = pa.array(range(0, count * width + 1, width), pa.int32())
    rows = numbers = pa.array(range(count * width), pa.int64())
    which = pa.repeat(pa.scalar(0, pa.int64()), count)
    if width > 1:
        rows = pc.divide(numbers, width)
        which = pc.subtract(numbers, pc.multiply(rows, width))
    if width > 1 or len(columns[0]) < count:
        begins = pa.array(accumulate([len(column) for column in columns[:-1]], initial=0), pa.int64())
        steps = pa.array([int(len(column) > 1) for column in columns], pa.int64())
        texts = texts.take(pc.add(begins.take(which), pc.multiply(steps.take(which), rows)))
    return pa.MapArray.from_arrays(offsets, pa.array(_names(names), pa.string()).take(which), texts)


def _entries(values: Sequence[Any]) -> Any:
    kinds = set(map(type, values))
    if kinds == {int}:
        try:
            return pa.array(values, pa.int64()).cast(pa.string())
        except OverflowError:
            pass
    return pa.array(
        [value if type(value) is str and value.isascii() else _text(value) for value in values], pa.string()
    )


def _text(value: Any) -> str | None:
    if value is None or type(value) is str:
        return value if value is None else escape_name(value) if not value.isascii() else value
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return orjson.dumps(escape_names(value)).decode()
