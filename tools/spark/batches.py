"""Slices of a journal -> Arrow record batches with exactly the requested columns.

Columns are built one after another over all rows of a slice. A column that is not requested costs nothing: bodies are
not copied, and messages not decoded, unless a column needs them. Damage has rows of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from qstore.formats.rhm.compressed import Decompressor
from qstore.formats.rhm.records import Kind
from qstore.store.damage import Damage, DamageKind
from qstore.store.disk import Disk
from qstore.store.journal.files import JournalFile, JournalFormat
from qstore.store.journal.journal import Journal
from qstore.tools.dump.rows import record_object
from qstore.tools.spark.arrays import array, arrow_schema, constant, signed
from qstore.tools.spark.columns import MESSAGE_COLUMNS, Column
from qstore.tools.spark.headers import HEAD_SIZE, HEADS, LETTERS, Head, as_header
from qstore.tools.spark.inputs import Input
from qstore.tools.spark.messages import Message, decode_compressed, decode_message, decode_message_at, message_values
from qstore.tools.spark.plan import JournalPart, Stretch, format_label
from qstore.tools.spark.selection import Selection
from qstore.tools.spark.stretches import Slice, slices

BODY_LIMIT: Final = 128 << 20  # of a body, by default
DAMAGE: Final = "damage"
_MAX_BUFFERED: Final = 16 << 20  # of a slice, read at once
_MESSAGE_COLUMNS: Final = frozenset(column.name for column in MESSAGE_COLUMNS)
_ENQUEUE: Final = Kind.ENQUEUE >> 24
_DEQUEUE: Final = Kind.DEQUEUE >> 24
_FILLER: Final = Kind.FILLER >> 24
_LABELS: Final = {letter: kind.label for letter, kind in LETTERS.items()}


def read_stretch(
    stretch: Stretch,
    disk: Disk,
    columns: tuple[Column, ...],
    selection: Selection,
    *,
    fillers: bool = False,
    body_limit: int = BODY_LIMIT,
) -> Iterator[Any]:
    """The rows of a stretch as record batches.

    Args:
        stretch: what to read.
        disk: where to read it.
        columns: of the table of records.
        selection: which rows.
        fillers: whether fillers are rows.
        body_limit: largest number of bytes read of a body.
    """
    damage_rows = _DamageRows(stretch.source, stretch.journal, columns, selection)
    yield from damage_rows.batch([(damage, None) for damage in stretch.damage])
    part = stretch.journal
    if part is None or stretch.begin >= stretch.end:
        return
    journal = part.open(disk)
    rows = _Rows(part, journal, columns, selection, body_limit)
    try:
        for slice_ in slices(journal, stretch.begin, stretch.end, part.closing, fillers=fillers):
            if slice_.places:
                yield from rows.batch(slice_)
            yield from damage_rows.batch(slice_.damage)
    except OSError as error:
        path, reason = str(error.filename or part.path), error.strerror or str(error)
        yield from damage_rows.batch([(Damage(path, None, None, DamageKind.JOURNAL_BREAKS_OFF, reason=reason), None)])
    finally:
        journal.close()


class _DamageRows:
    """Rows for damage."""

    def __init__(
        self, source: Input, part: JournalPart | None, columns: tuple[Column, ...], selection: Selection
    ) -> None:
        self._source, self._part, self._columns, self._selection = source, part, columns, selection

    def batch(self, found: Sequence[tuple[Damage, int | None]]) -> Iterator[Any]:
        """One batch, if any of the damage is selected."""
        wanted = [self._row(damage, size) for damage, size in found if self._is_wanted(damage)]
        if wanted:
            arrays = [array(column.type, [row.get(column.name) for row in wanted]) for column in self._columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(self._columns))

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


class _Rows:
    """Rows for the records of one journal."""

    def __init__(
        self, part: JournalPart, journal: Journal, columns: tuple[Column, ...], selection: Selection, body_limit: int
    ) -> None:
        self._part, self._journal, self._columns, self._selection = part, journal, columns, selection
        self._schema = arrow_schema(columns)
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
        self._paths = [source.shown(file.path) for file in journal.stream.files]
        self._heads = HEADS[journal.format]
        self._states: dict[tuple[int, int, bool], tuple[list[str], str]] = {}

    def batch(self, slice_: Slice) -> Iterator[Any]:
        """One batch, if any of the records is selected."""
        content = _Content(self._journal, slice_)
        places = slice_.places
        heads = content.heads(places)
        if not self._selection.wants_every_record:
            wanted = [
                index for index, head in enumerate(heads) if self._is_wanted(head, slice_.xids.get(places[index]))
            ]
            places, heads = [places[index] for index in wanted], [heads[index] for index in wanted]
        if not places:
            return
        rows = _SliceRows(places, heads, slice_.xids, content)
        messages = self._messages(rows) if self._wants_messages else []
        arrays = [self._column(column, rows, messages) for column in self._columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _is_wanted(self, head: Head, xid: bytes | None) -> bool:
        selection = self._selection
        return (
            selection.wants_kind(LETTERS[head.letter].label)
            and selection.wants_rid(self._rid(head))
            and selection.wants_xid(None if xid is None else xid.hex())
        )

    def _rid(self, head: Head) -> int | None:
        if head.letter == _FILLER and self._journal.format is not JournalFormat.VERSION_2:
            return None
        return signed(head.rid)

    # ---- columns ----

    def _column(self, column: Column, rows: _SliceRows, messages: list[Message | None]) -> Any:
        name, count = column.name, len(rows.places)
        if name in self._constants:
            return constant(column.type, self._constants[name], count)
        if name in _MESSAGE_COLUMNS:
            if not messages:
                return constant(column.type, None, count)
            return array(column.type, message_values(name, messages))
        if name == "file":
            return self._files(rows.places)
        if name == "xid" and not rows.xids:
            return constant(column.type, None, count)
        if name == "consequence" or (name in _OF_DAMAGE and not messages):
            return constant(column.type, None, count)
        if name in _OF_DAMAGE:
            return array("string", [_OF_DAMAGE[name](message) for message in messages])
        return array(column.type, _VALUES[name](self, rows))

    def _files(self, places: list[int]) -> Any:
        size = self._journal.stream.data_size
        first, last = places[0] // size, places[-1] // size
        if first == last:
            return constant("string", self._paths[first], len(places))
        return array("string", [self._paths[place // size] for place in places])

    def offsets(self, rows: _SliceRows) -> list[int]:
        """For each record its offset in its file."""
        stream = self._journal.stream
        size, header = stream.data_size, stream.geometry.header_size
        return [place % size + header for place in rows.places]

    def rids(self, rows: _SliceRows) -> list[Any]:
        """For each record its id."""
        if self._journal.format is JournalFormat.VERSION_2:
            return [head[2] for head in rows.heads]
        return [None if head[0] == _FILLER else head[2] for head in rows.heads]

    def flushes(self, rows: _SliceRows) -> list[Any]:
        """For each record its flush number, if the format has any."""
        if self._journal.format is JournalFormat.VERSION_2:
            return [head[5] for head in rows.heads]
        return [None] * len(rows.heads)

    def sizes(self, rows: _SliceRows) -> list[int]:
        """For each record its size on disk."""
        return self._heads.record_sizes(rows.heads)

    def flags(self, rows: _SliceRows) -> list[list[str]]:
        """For each record the names of its flags."""
        return self._shown(rows, 0)

    def checksums(self, rows: _SliceRows) -> list[str]:
        """For each record what was verified."""
        return self._shown(rows, 1)

    def prepared(self, rows: _SliceRows) -> list[str | None]:
        """For each enqueue in the prepared list whether its transaction is distributed."""
        if not self._part.is_prepared_list:
            return [None] * len(rows.heads)
        return [self._prepared(place, head, rows) for place, head in zip(rows.places, rows.heads, strict=True)]

    def _prepared(self, place: int, head: Head, rows: _SliceRows) -> str | None:
        if head.letter != _ENQUEUE:
            return None
        data = self._data(place, head)
        first = rows.content.read(data, min(self._heads.stored_size(head), 1))
        return "local" if first in (b"", b"\0") else "dtx"

    def _shown(self, rows: _SliceRows, index: int) -> list[Any]:
        """Values derived from letters and flags, of which there are few combinations."""
        heads, states = rows.heads, self._states
        keys = [(head[0], head[1], head[3] > 0) for head in heads]
        for key in set(keys) - states.keys():
            head = heads[keys.index(key)]
            shown = record_object("", as_header(head, self._journal.format), b"", "", 0)
            states[key] = (shown["flags"], shown["checksum"])
        values = {key: state[index] for key, state in states.items()}
        return [values[key] for key in keys]

    # ---- messages ----

    def _data(self, place: int, head: Head) -> int:
        return place + self._heads.sizes[head.letter] + head.xid_size

    def _messages(self, rows: _SliceRows) -> list[Message | None]:
        messages: list[Message | None] = []
        header_size, limit, content = self._heads.sizes[_ENQUEUE], self._body_limit, rows.content
        stored_size, compressed = self._heads.stored_size, self._heads.compressed
        for place, head in zip(rows.places, rows.heads, strict=True):
            if head[0] != _ENQUEUE:
                messages.append(None)
                continue
            data = place + header_size + head[3]
            if head[1] & compressed:
                messages.append(content.compressed(data, stored_size(head), limit))
            else:
                messages.append(content.message(data, stored_size(head), limit))
        return messages


class _Content:
    """The bytes of a slice, loaded at once if the slice is small."""

    __slots__ = ("_base", "_buffer", "_decompressor", "_journal")

    def __init__(self, journal: Journal, slice_: Slice) -> None:
        size = slice_.end - slice_.begin
        self._journal, self._base = journal, slice_.begin
        self._decompressor = Decompressor()
        self._buffer = journal.stream.read(slice_.begin, size) if size <= _MAX_BUFFERED else b""

    def heads(self, places: list[int]) -> list[Head]:
        """The headers of the records at the given places."""
        take = HEADS[self._journal.format].take
        if self._buffer:
            base = self._base
            return take(self._buffer, [place - base for place in places])
        read = self._journal.stream.read_aside
        return [take(read(place, HEAD_SIZE), (0,))[0] for place in places]

    def read(self, place: int, length: int) -> bytes:
        """Read a range of bytes."""
        at = place - self._base
        end = at + length
        return self._buffer[at:end] if end <= len(self._buffer) else self._journal.stream.read(place, length)

    def message(self, place: int, size: int, body_limit: int) -> Message:
        """The message whose data are at a place."""
        at = place - self._base
        if at + size <= len(self._buffer):
            return decode_message_at(self._buffer, at, size, body_limit)
        return decode_message(size, lambda offset, length: self.read(place + offset, length), body_limit)

    def compressed(self, place: int, size: int, body_limit: int) -> Message:
        """The message whose data, with compressed content, are at a place."""
        return decode_compressed(
            size, lambda offset, length: self.read(place + offset, length), body_limit, self._decompressor
        )


class _SliceRows:
    """The records of a slice that become rows."""

    __slots__ = ("content", "heads", "places", "xids")

    def __init__(self, places: list[int], heads: list[Head], xids: dict[int, bytes], content: _Content) -> None:
        self.places, self.heads, self.xids, self.content = places, heads, xids, content


def _problem(message: Message | None) -> str | None:
    if message is None or message.problem is None:
        return None
    return _kind(message).words(problem=message.problem)


def _problem_kind(message: Message | None) -> str | None:
    return None if message is None or message.problem is None else _kind(message).label


def _kind(message: Message) -> DamageKind:
    return DamageKind.MESSAGE_UNDECODABLE if message.header is None else DamageKind.CONTENT_DAMAGED


def _xids(_rows: _Rows, rows: _SliceRows) -> list[str | None]:
    return [xid.hex() if (xid := rows.xids.get(place)) else None for place in rows.places]


#: Column -> its value for a record's message; null if the message was not decoded.
_OF_DAMAGE: Final[dict[str, Callable[[Message | None], str | None]]] = {
    "damage": _problem,
    "damage_kind": _problem_kind,
}

#: Column -> its values for a slice's records.
_VALUES: Final[dict[str, Callable[[_Rows, _SliceRows], Sequence[Any]]]] = {
    "offset": _Rows.offsets,
    "position": lambda _, rows: rows.places,
    "type": lambda _, rows: [_LABELS[head[0]] for head in rows.heads],
    "rid": _Rows.rids,
    "dequeued_rid": lambda _, rows: [head[4] if head[0] == _DEQUEUE else None for head in rows.heads],
    "xid": _xids,
    "prepared": _Rows.prepared,
    "flags": _Rows.flags,
    "flush": _Rows.flushes,
    "size": _Rows.sizes,
    "checksum": _Rows.checksums,
}
