"""The table of records: slices of a journal -> Arrow record batches with exactly the requested columns.

The walk over a journal (`stretches`) has checked the records and returns their log offsets only: an object for each
record would cost more than the walk. Columns are made here, one after another over all rows of a slice:

    headers    of the formats' fixed layouts; taken out of the slice by Arrow, eight bytes at a time, for all records
               at once: 3 µs less for each record than with a struct (`_Heads`; 30 stores of 1.36 GiB)
    messages   decoded only if a column needs them; of many headers of one layout only the fields that differ
               (`variable_fields`), of others all, which are tuples and transposed into columns
    bodies     copied only if requested

Damage has rows of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

import qstore.formats.qls.records as qls
import qstore.formats.rhm.records as rhm
from qstore.formats.broker_records.message_header import MessageHeader
from qstore.formats.broker_records.messages import HEADER_SIZE_BYTES, decode_message_header, header_size
from qstore.formats.broker_records.variable_fields import VariableField, variable_fields
from qstore.formats.errors import BrokerRecordError, RhmError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.plain import plain_bytes, plain_uuid
from qstore.formats.rhm.compressed import Decompressor
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.records import COMPRESSED, EXTERNAL, Kind
from qstore.store.damage import Damage, DamageKind
from qstore.store.disk import Disk
from qstore.store.journal.files import JournalFile, JournalFormat
from qstore.store.journal.journal import Journal, MessageData
from qstore.store.journal.line.records import LinearRecords
from qstore.store.journal.records import RecordHeader
from qstore.store.journal.recovery import JournalRecovery
from qstore.store.journal.ring.records import Version1Records
from qstore.tools.console.text import escape_names
from qstore.tools.dump.rows import record_object
from qstore.tools.spark.columns import (
    CODED,
    MESSAGE_COLUMNS,
    Column,
    Selection,
    array,
    arrow_schema,
    constant,
    maps_of,
    signed,
    uuids,
)
from qstore.tools.spark.inputs import Input
from qstore.tools.spark.stretches import JournalPart, Slice, Stretch, format_label, slices

BODY_LIMIT: Final = 128 << 20  # of a body, by default
DAMAGE: Final = "damage"
_MAX_BUFFERED: Final = 16 << 20  # of a slice, read at once
_MESSAGE_COLUMNS: Final = frozenset(column.name for column in MESSAGE_COLUMNS)
_LETTERS: Final = {kind >> 24: kind for kind in rhm.RECORD_KINDS}  # the last letter of a magic, in all formats
_ENQUEUE: Final = Kind.ENQUEUE >> 24
_DEQUEUE: Final = Kind.DEQUEUE >> 24
_FILLER: Final = Kind.FILLER >> 24


def read_stretch(
    stretch: Stretch,
    disk: Disk,
    columns: tuple[Column, ...],
    selection: Selection,
    *,
    fillers: bool = False,
    body_limit: int = BODY_LIMIT,
    recovery: JournalRecovery | None = None,
    coded: bool = False,
) -> Iterator[Any]:
    """The rows of a stretch as record batches.

    Args:
        stretch: what to read.
        disk: where to read it.
        columns: of the table of records.
        selection: which rows.
        fillers: whether fillers are rows.
        body_limit: largest number of bytes read of a body.
        recovery: of a whole journal without fillers: gets its records, too.
        coded: whether the columns `columns.CODED` have dictionaries.
    """
    damage_rows = _DamageRows(stretch.source, stretch.journal, columns, selection, coded=coded)
    yield from damage_rows.batch([(damage, None) for damage in stretch.damage])
    part = stretch.journal
    if part is None or stretch.begin >= stretch.end:
        return
    journal = part.open(disk)
    rows = _Rows(part, journal, columns, selection, body_limit, coded=coded)
    try:
        for slice_ in slices(journal, stretch.begin, stretch.end, part.closing, fillers=fillers, recovery=recovery):
            if slice_.places:
                yield from rows.batch(slice_)
            yield from damage_rows.batch(slice_.damage)
    except OSError as error:
        path, reason = str(error.filename or part.path), error.strerror or str(error)
        yield from damage_rows.batch([(Damage(path, None, None, DamageKind.JOURNAL_BREAKS_OFF, reason=reason), None)])
    finally:
        journal.close()


def read_places(
    part: JournalPart, disk: Disk, columns: tuple[Column, ...], places: Sequence[int], *, body_limit: int = BODY_LIMIT
) -> Iterator[Any]:
    """The rows of the enqueues at ascending log offsets of a journal, which hold no more than `_MAX_BUFFERED` each."""
    journal = part.open(disk)
    rows = _Rows(part, journal, columns, Selection(), body_limit)
    try:
        held: list[int] = []
        for place in places:
            if held and place - held[0] > _MAX_BUFFERED:
                yield from rows.batch(Slice(held[0], held[-1] + _MAX_BUFFERED + 1, held))
                held = []
            held.append(place)
        if held:
            yield from rows.batch(Slice(held[0], held[-1] + _MAX_BUFFERED + 1, held))
    finally:
        journal.close()


class _DamageRows:
    """Rows for damage."""

    def __init__(
        self, source: Input, part: JournalPart | None, columns: tuple[Column, ...], selection: Selection, *, coded: bool
    ) -> None:
        self._source, self._part, self._columns, self._selection = source, part, columns, selection
        self._schema = arrow_schema(columns, coded=coded)

    def batch(self, found: Sequence[tuple[Damage, int | None]]) -> Iterator[Any]:
        """One batch, if any of the damage is selected."""
        wanted = [self._row(damage, size) for damage, size in found if self._is_wanted(damage)]
        if wanted:
            arrays = [array(column.type, [row.get(column.name) for row in wanted]) for column in self._columns]
            plain = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(self._columns))
            yield plain.cast(self._schema) if plain.schema != self._schema else plain

    def _is_wanted(self, damage: Damage) -> bool:
        selection, part = self._selection, self._part
        return (
            selection.wants_kind(DAMAGE)
            and selection.wants_rid(None if damage.rid is None else signed(damage.rid))
            and selection.wants_xid(None)
            and selection.wants_queue(None if part is None else part.name)
        )

    def _row(self, damage: Damage, size: int | None) -> dict[str, Any]:
        part = self._part
        row: dict[str, Any] = {
            "store": self._source.path,
            "file": self._source.shown(damage.file),
            "offset": damage.offset,
            "type": DAMAGE,
            "rid": damage.rid,
            "size": size,
            "damage": damage.what,
            "damage_kind": damage.kind.label,
            "consequence": damage.consequence,
        }
        if part is not None:
            row |= {"format": format_label(part.files), "queue": part.name, "journal": self._source.shown(part.path)}
            row["position"] = _position(part, damage)
        return row


def _position(part: JournalPart, damage: Damage) -> int | None:
    geometry = part.files.geometry
    files: list[JournalFile[Any]] = list(part.files.files)
    for index, file in enumerate(files):
        if file.path == damage.file and damage.offset is not None and damage.offset >= geometry.header_size:
            return index * geometry.data_size + damage.offset - geometry.header_size
    return None


# ---- headers ----


class _HeadFormat(NamedTuple):
    """A format's record headers, as numbers of eight bytes each.

    The first has magic, version and flags in all formats (`formats.rhm.records.COMMON`, `formats.qls.records.COMMON`).

    Attributes:
        rid: which number has the record id; the next two are xid size and data, in a dequeue the other way round, or,
            if there are flush numbers, xid size and flush in one number, and then data.
        has_flushes: whether they are.
        sizes: by letter, bytes of the header.
        known_flags: by letter, the flags that are defined, none for a filler; None for all of every record.
        tail_size: bytes of a record's tail.
        external: the flag of an enqueue whose data are not in the journal; 0 if the format has none.
        compressed: the flag of one whose content is compressed; 0 if the format has none.
        tail_always: whether every record has a tail.
    """

    rid: int
    has_flushes: bool
    sizes: Any
    known_flags: Any
    tail_size: int
    external: int
    compressed: int
    tail_always: bool


_WORD: Final = struct.calcsize("<Q")
_WORDS: Final = BLOCK_SIZE // _WORD  # of the block in which a record begins; no header is longer
assert rhm.COMMON.size == _WORD
assert rhm.LAYOUTS[1, Kind.ENQUEUE].rest.format == "<QQQ"
assert rhm.LAYOUTS[2, Kind.ENQUEUE].rest.format == "<QIIQ"
assert qls.COMMON.format == "<IHHQQ"
_ALL: Final = 0xFFFF


def _by_letter(of_kind: Callable[[Kind], int]) -> Any:
    """A number for each letter, as an array by letter: to take from it is a tenth of the time of `index_in`."""
    return pa.array([of_kind(_LETTERS[letter]) if letter in _LETTERS else 0 for letter in range(256)], pa.int64())


def _known_flags(records: type[Version1Records | LinearRecords], kind: Kind) -> int:
    return 0 if kind is Kind.FILLER else records.known_flags.get(kind, _ALL)


_FORMATS: Final[dict[JournalFormat, _HeadFormat]] = {
    JournalFormat.VERSION_1: _HeadFormat(
        1, False, _by_letter(lambda kind: rhm.LAYOUTS[1, kind].size),
        _by_letter(lambda kind: _known_flags(Version1Records, kind)), rhm.TAIL_SIZE, EXTERNAL, 0,
        tail_always=False,
    ),
    JournalFormat.VERSION_2: _HeadFormat(
        1, True, _by_letter(lambda kind: rhm.LAYOUTS[2, kind].size), None, rhm.TAIL_SIZE, 0, COMPRESSED,
        tail_always=True,
    ),
    JournalFormat.LINEAR: _HeadFormat(
        2, False, _by_letter(lambda kind: qls.HEADER_SIZES[kind]),
        _by_letter(lambda kind: _known_flags(LinearRecords, kind)), qls.TAIL_SIZE, EXTERNAL, 0,
        tail_always=False,
    ),
}  # fmt: skip


class _Heads:
    """The headers of some records as columns.

    Attributes:
        letters, flags, rids, xid_sizes, flushes: of each record; flags are the defined ones.
        data: of an enqueue its data's size, of a dequeue the dequeued record id, of a filler its blocks.
    """

    def __init__(self, layout: _HeadFormat, blocks: Any) -> None:
        count = len(blocks)
        words = pa.Array.from_buffers(pa.int64(), count * _WORDS, [None, blocks.buffers()[1]], offset=blocks.offset)
        table = pa.FixedSizeListArray.from_arrays(words, _WORDS)

        def word(index: int) -> Any:
            return pc.list_element(table, index)

        first = word(0)
        self.letters = pc.bit_wise_and(pc.shift_right(first, 24), 0xFF)
        self.flags = pc.bit_wise_and(pc.shift_right(first, 48), 0xFFFF)
        self.rids = word(layout.rid)
        if layout.has_flushes:
            sizes = word(layout.rid + 1)
            self.xid_sizes = pc.bit_wise_and(sizes, 0xFFFFFFFF)
            self.flushes = pc.bit_wise_and(pc.shift_right(sizes, 32), 0xFFFFFFFF)
            self.data = word(layout.rid + 2)
            return
        self.flushes = pa.nulls(count, pa.int64())
        one, other = word(layout.rid + 1), word(layout.rid + 2)
        is_dequeue, is_filler = pc.equal(self.letters, _DEQUEUE), pc.equal(self.letters, _FILLER)
        self.xid_sizes = pc.if_else(is_filler, 0, pc.if_else(is_dequeue, other, one))
        self.data = pc.if_else(is_filler, 1, pc.if_else(is_dequeue, one, other))
        self.rids = pc.if_else(is_filler, pa.scalar(None, pa.int64()), self.rids)
        assert layout.known_flags is not None
        self.flags = pc.bit_wise_and(self.flags, layout.known_flags.take(self.letters))

    def filtered(self, wanted: list[int]) -> _Heads:
        """Those of some records."""
        some = object.__new__(_Heads)
        rows = pa.array(wanted, pa.int64())
        for name in ("letters", "flags", "rids", "xid_sizes", "flushes", "data"):
            setattr(some, name, getattr(self, name).take(rows))
        return some


def _is_set(flags: Any, bit: int) -> Any:
    return pc.not_equal(pc.bit_wise_and(flags, bit), 0)


def _padded(sizes: Any) -> Any:
    return pc.multiply(pc.shift_right(pc.add(sizes, BLOCK_SIZE - 1), BLOCK_SIZE.bit_length() - 1), BLOCK_SIZE)


def scatter(rows: Sequence[int], values: Sequence[Any], count: int, kind: Any) -> Any:
    """An array of `count` values: those given in their rows, null elsewhere."""
    if not rows:
        return pa.nulls(count, kind)
    numbers = pa.array(range(count), pa.int64())
    return pa.array(values, kind).take(pc.index_in(numbers, pa.array(rows, pa.int64())))


# ---- messages ----

_TOO_SHORT: Final = "the data are shorter than the length of the message header in them"
_EXTERNAL: Final = "the record is external: its data are not in the journal"
_PERSISTENT: Final = 2
_MILLISECONDS: Final = 1000
_FEW: Final = 16  # messages of a slice that are decoded one by one: to look for a layout would take longer
_SAMPLES: Final = 8  # headers in which variable fields are looked for
_LAYOUTS: Final = 8  # that headers of one size are tried with
_INT64: Final = pa.int64()
_header_size: Final = struct.Struct(">I").unpack_from  # as in `broker_records.messages`


class _Message(NamedTuple):
    """A decoded stored message.

    Attributes:
        header: its decoded header; None if it cannot be decoded, and then the body is all of the data.
        problem: why it cannot be decoded, or, if it can, what is wrong with the compressed content; None if nothing is.
        body_length: size of the body in bytes.
        body: the body, or the beginning of it; None if not requested.
    """

    header: MessageHeader | None
    problem: str | None
    body_length: int
    body: bytes | None


def _decoded(size: int, read: Callable[[int, int], bytes], body_limit: int) -> _Message:
    """A message with data of `size` bytes.

    Args:
        size: size of the record's data in bytes.
        read: reads a range of the data: offset, length.
        body_limit: largest number of bytes of the body; 0 for none.
    """
    if not size:
        return _Message(None, _EXTERNAL, 0, b"" if body_limit else None)
    header, problem, start = None, None, 0
    try:
        begin = HEADER_SIZE_BYTES + header_size(read(0, min(HEADER_SIZE_BYTES, size)))
        if begin > size:
            raise BrokerRecordError(_TOO_SHORT)
        header = decode_message_header(read(HEADER_SIZE_BYTES, begin - HEADER_SIZE_BYTES))
        start = begin
    except BrokerRecordError as error:
        problem = error.what
    if header is not None and header.amqp_1_0 is not None:
        sections = header.amqp_1_0.body_sections
        length = sum(count for _, count in sections)
        body = b"".join(read(HEADER_SIZE_BYTES + at, count) for at, count in sections) if body_limit else None
        return _Message(header, None, length, None if body is None else body[:body_limit])
    length = size - start
    return _Message(header, problem, length, read(start, min(length, body_limit)) if body_limit else None)


def _decompressed(
    size: int, read: Callable[[int, int], bytes], body_limit: int, decompressor: Decompressor
) -> _Message:
    """As `_decoded`, for data whose content is compressed: it is restored only if the body is requested."""
    try:
        data = MessageData(read, size, decompressor)
        return _decoded(data.size, data.read, body_limit)
    except RhmError as error:
        stored = _decoded(size, read, body_limit)
        return stored if stored.header is None else stored._replace(problem=error.what)


def _text(value: bytes | str | None) -> str | None:
    return plain_bytes(value) if isinstance(value, bytes) else value


def _reply_to(value: tuple[str, str] | str | None) -> str | None:
    if not isinstance(value, tuple):
        return value
    return orjson.dumps(escape_names({"exchange": value[0], "routing_key": value[1]})).decode()


def _durable(mode: int | None) -> bool | None:
    return None if mode is None else mode == _PERSISTENT


#: Column -> field of a message's header, and how its value is converted.
_FIELDS: Final[dict[str, tuple[str, Callable[[Any], Any] | None]]] = {
    "durable": ("delivery_mode", _durable),
    "correlation_id": ("correlation_id", _text),
    "user_id": ("user_id", _text),
    "app_id": ("app_id", _text),
    "reply_to": ("reply_to", _reply_to),
}
#: Column -> its value for a message of AMQP 1.0, where it is not in that field.
_OF_1_0: Final[dict[str, Callable[[MessageHeader], Any]]] = {
    "routing_key": lambda header: header.amqp_1_0 and header.amqp_1_0.subject,
    "timestamp": lambda header: _seconds(header.timestamp, header.amqp_1_0 and header.amqp_1_0.creation_time),
    "expiration": lambda header: _seconds(header.expiration, header.amqp_1_0 and header.amqp_1_0.absolute_expiry_time),
}
_PLACES: Final = {name: place for place, name in enumerate(MessageHeader._fields)}
_AMQP_1_0: Final = _PLACES["amqp_1_0"]
_NO_HEADER: Final = (None,) * len(MessageHeader._fields)


def _seconds(value: int | None, milliseconds: int | None) -> int | None:
    return value if milliseconds is None else milliseconds // _MILLISECONDS


class _Same(NamedTuple):
    """A column that has one value for all messages, as most columns of a queue's messages have."""

    value: Any


class _Decoded:
    """Messages of which each is decoded, as columns.

    Attributes:
        headers, lengths, bodies: of each message, as in `_Message`; without a header, its fields are None.
        odd: those about which there is more to tell, such as why one cannot be decoded: index -> message.
    """

    def __init__(self) -> None:
        self.headers: list[tuple[Any, ...]] = []
        self.lengths: list[int] = []
        self.bodies: list[bytes | None] = []
        self.odd: dict[int, _Message] = {}
        self._fields: list[tuple[Any, ...]] = []

    def add(self, message: _Message) -> None:
        """Add a message."""
        if message.problem is not None or message.header is None or message.header.amqp_1_0 is not None:
            self.odd[len(self.headers)] = message
        self.headers.append(message.header or _NO_HEADER)
        self.lengths.append(message.body_length)
        self.bodies.append(message.body)

    def column(self, column: Column) -> Any:
        """The values of a column."""
        name, count = column.name, len(self.headers)
        if name == "body_length":
            return pa.array(self.lengths, _INT64)
        if name == "body":
            return pa.array(self.bodies, pa.binary())
        if name in _OF_DAMAGE:
            values = {index: _OF_DAMAGE[name](message) for index, message in self.odd.items()}
            return scatter(list(values), list(values.values()), count, pa.string())
        if not self._fields:
            self._fields = list(zip(*self.headers, strict=True))
        field, convert = _FIELDS.get(name, (name, None))
        found: Sequence[Any] = self._fields[_PLACES[field]]
        if self.odd and name in _OF_1_0:
            found = list(found)
            for index, (header, *_) in self.odd.items():
                if header is not None and header.amqp_1_0 is not None:
                    found[index] = _OF_1_0[name](header)
        first = found[0]
        if found.count(first) == count:
            return _Same(first if convert is None else convert(first))
        return array(column.type, found if convert is None else [convert(value) for value in found])


class _Alike:
    """Messages whose headers have one layout, as columns: only the first is decoded, of the others what differs.

    A message costs 1 µs instead of 5 (30 stores of 1.36 GiB).

    Attributes:
        lengths, bodies: of each message; no bodies if they are not requested.
    """

    def __init__(
        self, header: MessageHeader, differing: Mapping[VariableField, Sequence[Any]], lengths: list[int],
        bodies: list[bytes] | None,
    ) -> None:  # fmt: skip
        self._header, self._lengths, self._bodies = header, lengths, bodies
        self._fields = {field.name: (field, values) for field, values in differing.items() if field.key is None}
        self._entries = {field.key: (field, values) for field, values in differing.items() if field.key is not None}

    def column(self, column: Column) -> Any:
        """The values of a column."""
        name, count = column.name, len(self._lengths)
        if name == "body_length":
            return pa.array(self._lengths, _INT64)
        if name == "body":
            return _Same(None) if self._bodies is None else pa.array(self._bodies, pa.binary())
        if name in _OF_DAMAGE:
            return _Same(None)
        if name == "headers" and self._entries:
            values = {
                key: _values(*self._entries[key]) if key in self._entries else (value,)
                for key, value in self._header.headers.items()
            }
            return maps_of(tuple(values), list(values.values()), count)
        place, convert = _FIELDS.get(name, (name, None))
        if place not in self._fields:
            value = getattr(self._header, place)
            return _Same(value if convert is None else convert(value))
        field, raw = self._fields[place]
        if field.decode is plain_uuid:
            return uuids(b"".join(raw))
        found = _values(field, raw)
        return array(column.type, found if convert is None else [convert(value) for value in found])


def _values(field: VariableField, raw: Sequence[Any]) -> Sequence[Any]:
    if field.decode is None:
        return raw
    known = {each: field.decode(each) for each in set(raw)}
    return [known[each] for each in raw]


def _alike(buffer: bytes, begins: list[int], size: int) -> tuple[dict[VariableField, Sequence[Any]], list[int]]:
    """The fields in which headers differ from the first, and which of them have another layout.

    Args:
        buffer: contains them.
        begins: where in it; the first is a valid header.
        size: bytes of each.
    """
    first = begins[0]
    template = buffer[first : first + size]
    few = begins[:: -(-len(begins) // _SAMPLES)]
    fields = [
        field
        for field in variable_fields(template)
        if any(buffer[at + field.begin : at + field.end] != template[field.begin : field.end] for at in few)
    ]
    form, end = [">"], 0
    for field in fields:
        form.append(f"{field.begin - end}s{field.form}")
        end = field.end
    unpack = struct.Struct("".join([*form, f"{size - end}s"])).unpack_from
    columns = list(zip(*[unpack(buffer, at) for at in begins], strict=True))
    others: set[int] = set()
    for same in columns[::2]:
        if same.count(same[0]) != len(same):
            others.update(index for index, piece in enumerate(same) if piece != same[0])
    differing: dict[VariableField, Sequence[Any]] = dict(zip(fields, columns[1::2], strict=True))
    if others:
        kept = [index for index in range(len(begins)) if index not in others]
        differing = {field: [values[index] for index in kept] for field, values in differing.items()}
    return differing, sorted(others)


class _Messages:
    """The messages of some enqueues as columns.

    Args:
        parts: the messages, and the number of each among the enqueues.

    Attributes:
        order: of each enqueue the number of its value in a column; None if it is its own.
    """

    def __init__(self, parts: Sequence[tuple[_Decoded | _Alike, list[int]]]) -> None:
        self._parts = [(part, len(numbers)) for part, numbers in parts]
        self.order = None
        if len(parts) > 1:
            self.order = pc.sort_indices(pa.array([number for _, numbers in parts for number in numbers], _INT64))

    def column(self, column: Column) -> Any:
        """The values of a column: an array, or `_Same`."""
        found = [(part.column(column), count) for part, count in self._parts]
        first, _ = found[0]
        if len(found) == 1 or (isinstance(first, _Same) and all(values == first for values, _ in found)):
            return first
        return pa.concat_arrays(
            constant(column.type, values.value, count) if isinstance(values, _Same) else values
            for values, count in found
        )


def _problem(message: _Message) -> str | None:
    return None if message.problem is None else _kind(message).words(problem=message.problem)


def _problem_kind(message: _Message) -> str | None:
    return None if message.problem is None else _kind(message).label


def _kind(message: _Message) -> DamageKind:
    return DamageKind.MESSAGE_UNDECODABLE if message.header is None else DamageKind.CONTENT_DAMAGED


#: Column -> its value for a record's message; null if the message was not decoded.
_OF_DAMAGE: Final[dict[str, Callable[[_Message], str | None]]] = {"damage": _problem, "damage_kind": _problem_kind}


# ---- rows ----


class _Rows:
    """Rows for the records of one journal."""

    def __init__(
        self, part: JournalPart, journal: Journal, columns: tuple[Column, ...], selection: Selection, body_limit: int,
        *, coded: bool = False,
    ) -> None:  # fmt: skip
        self._part, self._journal, self._columns, self._selection = part, journal, columns, selection
        self._schema = arrow_schema(columns, coded=coded)
        self._coded = CODED if coded else frozenset[str]()
        names = {column.name for column in columns}
        self._wants_messages = not part.is_prepared_list and bool(names & _MESSAGE_COLUMNS)
        self._body_limit = body_limit if "body" in names else 0
        source = part.source
        self._constants = {
            "store": source.path,
            "format": journal.format.label,
            "queue": part.name,
            "journal": source.shown(part.path),
        }
        self._paths = array("string", [source.shown(file.path) for file in journal.stream.files])
        self._layout = _FORMATS[journal.format]
        self._decompressor = Decompressor()
        self._buffer, self._base = b"", 0

    def batch(self, slice_: Slice) -> Iterator[Any]:
        """One batch, if any of the records is selected."""
        places, size = slice_.places, slice_.end - slice_.begin
        self._base = slice_.begin
        self._buffer = self._journal.stream.read(slice_.begin, size) if size <= _MAX_BUFFERED else b""
        heads = _Heads(self._layout, self._blocks(places))
        if not self._selection.wants_every_record:
            wanted = self._wanted(places, heads, slice_.xids)
            places, heads = [places[index] for index in wanted], heads.filtered(wanted)
        if not places:
            return
        rows = _SliceRows(self._layout, places, heads, slice_.xids)
        messages, spread = None, None
        if self._wants_messages:
            enqueues = pc.indices_nonzero(rows.is_enqueue)
            messages = self._messages(rows, enqueues) if len(enqueues) else None
            spread = None if messages is None else messages.order
            if len(enqueues) < len(places):  # null for records that are not enqueues
                numbers = pc.subtract(pc.cumulative_sum(pc.cast(rows.is_enqueue, _INT64)), 1)
                numbers = pc.if_else(rows.is_enqueue, numbers, pa.scalar(None, _INT64))
                spread = numbers if spread is None else spread.take(numbers)
        arrays = [self._column(column, rows, messages, spread) for column in self._columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _blocks(self, places: list[int]) -> Any:
        """The block in which each record begins."""
        kind = pa.binary(BLOCK_SIZE)
        if self._buffer:
            every = pa.Array.from_buffers(kind, len(self._buffer) // BLOCK_SIZE, [None, pa.py_buffer(self._buffer)])
            begins = pc.subtract(pa.array(places, _INT64), self._base)
            return every.take(pc.shift_right(begins, BLOCK_SIZE.bit_length() - 1))
        read = self._journal.stream.read_aside
        blocks = b"".join(read(place, BLOCK_SIZE) for place in places)
        return pa.Array.from_buffers(kind, len(places), [None, pa.py_buffer(blocks)])

    def _wanted(self, places: list[int], heads: _Heads, xids: Mapping[int, bytes]) -> list[int]:
        selection = self._selection
        columns = zip(places, heads.letters.to_pylist(), heads.rids.to_pylist(), strict=True)
        return [
            index
            for index, (place, letter, rid) in enumerate(columns)
            if selection.wants_kind(_LETTERS[letter].label)
            and selection.wants_rid(rid)
            and selection.wants_xid(None if (xid := xids.get(place)) is None else xid.hex())
        ]

    def _column(self, column: Column, rows: _SliceRows, messages: _Messages | None, spread: Any) -> Any:
        name = column.name
        if name in self._constants:
            return self._same(column, self._constants[name], rows.zeros)
        if name in _MESSAGE_COLUMNS or name in _OF_DAMAGE:
            values = _Same(None) if messages is None else messages.column(column)
            if isinstance(values, _Same):
                return self._same(column, values.value, rows.enqueue_zeros)
            if spread is not None:
                values = values.take(spread)
            return values.dictionary_encode() if name in self._coded else values
        if name == "consequence":
            return self._same(column, None, rows.zeros)
        return _VALUES[name](self, rows)

    def _same(self, column: Column, value: Any, zeros: Any) -> Any:
        """A column with one value where `zeros` has a zero, and null where it has none."""
        if value is None:
            return pa.nulls(len(zeros), self._schema.field(column.name).type)
        if column.name in self._coded:
            return pa.DictionaryArray.from_arrays(zeros, array(column.type, [value]))
        if not zeros.null_count:
            return constant(column.type, value, len(zeros))
        return array(column.type, [value]).take(zeros)

    def _few(self, name: str, numbers: Any, values: Any) -> Any:
        """A column of few values: their numbers, which are not null, and the values, each once."""
        return pa.DictionaryArray.from_arrays(numbers, values) if name in self._coded else values.take(numbers)

    def files(self, rows: _SliceRows) -> Any:
        """The path of each record's file."""
        return self._few("file", pc.cast(self._file_numbers(rows), pa.int32()), self._paths)

    def offsets(self, rows: _SliceRows) -> Any:
        """For each record its offset in its file."""
        begins = pc.multiply(self._file_numbers(rows), self._journal.stream.data_size)
        return pc.add(pc.subtract(rows.positions, begins), self._journal.stream.geometry.header_size)

    def _file_numbers(self, rows: _SliceRows) -> Any:
        if rows.file_numbers is None:
            rows.file_numbers = pc.divide(rows.positions, self._journal.stream.data_size)
        return rows.file_numbers

    def kinds(self, rows: _SliceRows) -> Any:
        """The name of each record's type."""
        return self._few("type", _KIND_NUMBERS.take(rows.heads.letters), _KIND_NAMES)

    def flags(self, rows: _SliceRows) -> Any:
        """For each record the names of its flags."""
        numbers, shown = self._shown(rows)
        return pa.array([each["flags"] for each in shown], pa.list_(pa.string())).take(numbers)

    def checksums(self, rows: _SliceRows) -> Any:
        """For each record what was verified."""
        numbers, shown = self._shown(rows)
        values = [each["checksum"] for each in shown]
        once = list(dict.fromkeys(values))
        places = pa.array([once.index(value) for value in values], pa.int32())
        return self._few("checksum", places.take(numbers), pa.array(once, pa.string()))

    def _shown(self, rows: _SliceRows) -> tuple[Any, list[dict[str, Any]]]:
        """Values derived from letters and flags: the numbers of the records' combinations, and what each shows."""
        if rows.shown is None:
            heads = rows.heads
            has_xid = pc.cast(pc.greater(heads.xid_sizes, 0), _INT64)
            keys = pc.add(pc.add(heads.letters, pc.shift_left(heads.flags, 8)), pc.shift_left(has_xid, 24))
            coded = keys.dictionary_encode()
            shown = []
            for key in coded.dictionary.to_pylist():
                header = _header(self._journal.format, _LETTERS[key & 0xFF], key >> 8 & 0xFFFF, key >> 24)
                shown.append(record_object("", header, b"", "", 0))
            rows.shown = coded.indices, shown
        return rows.shown

    def prepared(self, rows: _SliceRows) -> Any:
        """For each enqueue in the prepared list whether its transaction is distributed."""
        if not self._part.is_prepared_list:
            return pa.nulls(len(rows.places), pa.string())
        enqueues = rows.is_enqueue.to_pylist()
        columns = zip(enqueues, rows.data_places.to_pylist(), rows.stored_sizes.to_pylist(), strict=True)
        values = [
            ("local" if self._read(place, min(size, 1)) in (b"", b"\0") else "dtx") if is_enqueue else None
            for is_enqueue, place, size in columns
        ]
        return pa.array(values, pa.string())

    # ---- messages ----

    def _read(self, place: int, length: int) -> bytes:
        at = place - self._base
        end = at + length
        return self._buffer[at:end] if end <= len(self._buffer) else self._journal.stream.read(place, length)

    def _messages(self, rows: _SliceRows, enqueues: Any) -> _Messages:
        begins, stored = rows.data_places.take(enqueues), rows.stored_sizes.take(enqueues)
        end, places, sizes = pc.max(pc.add(begins, stored)).as_py(), begins.to_pylist(), stored.to_pylist()
        compressed = None if rows.compressed is None else rows.compressed.take(enqueues).to_pylist()
        parts: list[tuple[_Decoded | _Alike, list[int]]] = []
        single: list[int] = []
        of_size: dict[int, list[int]] = {}
        buffer, base, length, least = self._buffer, self._base, len(self._buffer), min(sizes)
        if compressed is None and least > HEADER_SIZE_BYTES and end - base <= length:
            in_front = [_header_size(buffer, place - base)[0] for place in places]
            if in_front.count(in_front[0]) == len(in_front):
                of_size[in_front[0]] = list(range(len(places)))
            else:
                for number, size in enumerate(in_front):
                    of_size.setdefault(size, []).append(number)
        else:
            for number, (place, size) in enumerate(zip(places, sizes, strict=True)):
                at = place - base
                if size > HEADER_SIZE_BYTES and at + size <= length and (compressed is None or not compressed[number]):
                    of_size.setdefault(_header_size(buffer, at)[0], []).append(number)
                else:
                    single.append(number)
        for size, numbers in of_size.items():
            left, needed = numbers, HEADER_SIZE_BYTES + size
            if needed > least:
                left = [each for each in numbers if needed <= sizes[each]]
                single += [each for each in numbers if needed > sizes[each]]
            for _ in range(_LAYOUTS):
                if len(left) < _FEW:
                    break
                left = self._add_alike(parts, size, left, places, sizes)
            single += left
        if single:
            single.sort()
            parts.append((self._decoded(single, places, sizes, compressed), single))
        return _Messages(parts)

    def _add_alike(
        self, parts: list[tuple[_Decoded | _Alike, list[int]]], header_size: int, numbers: list[int],
        places: list[int], sizes: list[int],
    ) -> list[int]:  # fmt: skip
        """Add those of some messages that have the layout of the first; returns the others."""
        begins = [places[each] - self._base + HEADER_SIZE_BYTES for each in numbers]
        try:
            header = decode_message_header(self._buffer[begins[0] : begins[0] + header_size])
        except BrokerRecordError:
            return numbers
        if header.protocol != "0-10":
            return numbers
        differing, others = _alike(self._buffer, begins, header_size)
        own = numbers
        if others:
            left_out = set(others)
            own = [number for index, number in enumerate(numbers) if index not in left_out]
        in_front = HEADER_SIZE_BYTES + header_size
        lengths = [sizes[each] - in_front for each in own]
        bodies = None
        if self._body_limit:
            buffer, limit, base = self._buffer, self._body_limit, in_front - self._base
            bodies = [
                buffer[places[each] + base : places[each] + base + min(count, limit)]
                for each, count in zip(own, lengths, strict=True)
            ]
        parts.append((_Alike(header, differing, lengths, bodies), own))
        return [numbers[index] for index in others]

    def _decoded(
        self, numbers: list[int], places: list[int], sizes: list[int], compressed: list[bool] | None
    ) -> _Decoded:
        found = _Decoded()
        add_header, add_length, add_body = found.headers.append, found.lengths.append, found.bodies.append
        buffer, base, limit = self._buffer, self._base, self._body_limit
        length = len(buffer)
        for number in numbers:
            at, size = places[number] - base, sizes[number]
            end = at + size
            if compressed is not None and compressed[number]:
                found.add(_decompressed(size, self._reading(places[number]), limit, self._decompressor))
                continue
            # The inner loop of a scan, without calls besides that of the codec: 1 of 8 µs for each message.
            if size > HEADER_SIZE_BYTES and end <= length:
                begin = at + HEADER_SIZE_BYTES
                start = begin + _header_size(buffer, at)[0]
                if start <= end:
                    try:
                        header = decode_message_header(buffer[begin:start])
                    except BrokerRecordError:
                        header = None
                    if header is not None and header[_AMQP_1_0] is None:
                        add_header(header)
                        add_length(end - start)
                        add_body(buffer[start : min(end, start + limit)] if limit else None)
                        continue
            found.add(_decoded(size, self._reading(places[number]), limit))
        return found

    def _reading(self, place: int) -> Callable[[int, int], bytes]:
        return lambda offset, length: self._read(place + offset, length)


def _header(journal_format: JournalFormat, kind: Kind, flags: int, xid_size: int) -> RecordHeader:
    """A header of these flags, with or without a transaction, as the format's own type."""
    if journal_format is JournalFormat.LINEAR:
        return qls.RecordHeader(kind, flags, xid_size=xid_size)
    return rhm.RecordHeader(kind, int(journal_format), flags, xid_size=xid_size, blocks=kind is Kind.FILLER)


_KIND_NAMES: Final = pa.array([kind.label for kind in _LETTERS.values()], pa.string())
_KIND_NUMBERS: Final = pa.array(
    [list(_LETTERS).index(letter) if letter in _LETTERS else None for letter in range(256)], pa.int32()
)  # by letter


class _SliceRows:
    """The records of a slice that become rows.

    Attributes:
        file_numbers, shown: kept by `_Rows`, for several columns.
        zeros: a zero for each record; `enqueue_zeros`: for each enqueue, null for others.
    """

    def __init__(self, layout: _HeadFormat, places: list[int], heads: _Heads, xids: dict[int, bytes]) -> None:
        self.places, self.heads, self._xids = places, heads, xids
        self.file_numbers: Any = None
        self.shown: tuple[Any, list[dict[str, Any]]] | None = None
        self.positions = pa.array(places, _INT64)
        self.is_enqueue = pc.equal(heads.letters, _ENQUEUE)
        self.zeros = pa.repeat(pa.scalar(0, pa.int32()), len(places))
        self.enqueue_zeros = self.zeros
        if pc.any(pc.invert(self.is_enqueue)).as_py():
            self.enqueue_zeros = pc.if_else(self.is_enqueue, pa.scalar(0, pa.int32()), pa.scalar(None, pa.int32()))
        in_front = pc.add(layout.sizes.take(heads.letters), heads.xid_sizes)
        self.data_places = pc.add(self.positions, in_front)
        stored = heads.data
        if layout.external:
            stored = pc.if_else(_is_set(heads.flags, layout.external), 0, stored)
        self.stored_sizes = pc.if_else(self.is_enqueue, stored, 0)
        self.compressed = None
        if layout.compressed and pc.any(is_compressed := _is_set(heads.flags, layout.compressed)).as_py():
            self.compressed = is_compressed
        has_tail = pa.scalar(True) if layout.tail_always else pc.or_(self.is_enqueue, pc.greater(heads.xid_sizes, 0))
        tails = pc.if_else(has_tail, layout.tail_size, 0)
        sizes = _padded(pc.add(pc.add(in_front, self.stored_sizes), tails))
        blocks = pc.multiply(pc.if_else(pc.equal(heads.letters, _FILLER), heads.data, 0), BLOCK_SIZE)
        self.sizes = pc.if_else(pc.equal(heads.letters, _FILLER), blocks, sizes)

    def dequeued(self) -> Any:
        """For each dequeue the record id of its message."""
        return pc.if_else(pc.equal(self.heads.letters, _DEQUEUE), self.heads.data, pa.scalar(None, _INT64))

    def xids(self) -> Any:
        """For each record of a transaction its id."""
        if not self._xids:
            return pa.nulls(len(self.places), pa.string())
        places = pa.array(list(self._xids), _INT64)
        xids = pa.array([xid.hex() for xid in self._xids.values()], pa.string())
        return xids.take(pc.index_in(self.positions, places))


#: Column -> its values for a slice's records.
_VALUES: Final[dict[str, Callable[[_Rows, _SliceRows], Any]]] = {
    "file": _Rows.files,
    "offset": _Rows.offsets,
    "position": lambda _, rows: rows.positions,
    "type": _Rows.kinds,
    "rid": lambda _, rows: rows.heads.rids,
    "dequeued_rid": lambda _, rows: rows.dequeued(),
    "xid": lambda _, rows: rows.xids(),
    "prepared": _Rows.prepared,
    "flags": _Rows.flags,
    "flush": lambda _, rows: rows.heads.flushes,
    "size": lambda _, rows: rows.sizes,
    "checksum": _Rows.checksums,
}
