"""The catalogue of a version-2 store: the content of its key-value database, byte for byte.

The catalogue contains queues, exchanges, bindings and the broker's general objects (links, bridges); messages are
in the journals. It is an ordered map with short keys. A key is one kind byte and then the numbers that identify the
entry, big-endian, so that iteration in key order is numeric. There is one key for each entry and one entry for each
key.

All integers are big-endian, in keys and in values.

    kind               key after the kind byte             value after the envelope
    -----------------  ----------------------------------  ------------------------------------------------
    `m` meta           -                                   u32 format version (2), 16 bytes store id (a UUID)
    `c` census         -                                   u64 batch number, then how many entries there are:
                                                           u64 queues, u64 exchanges, u64 bindings, u64 general
    `r` rids           -                                   u64 first record id that is not reserved
    `i` next id        u8 kind byte the ids are for        u64 the next id to give out
    `q` queue          u64 queue id                        u64 journal id, u32 incarnation, queue record
    `x` exchange       u64 exchange id                     exchange record
    `b` binding        u64 exchange id, u64 queue id,      binding record
                       u64 sequence
    `g` general        u64 id                              general record

    envelope:  u32 CRC-32C of the key and of everything after this field, u8 value version (1)

The CRC covers the key, so a value under a wrong key is detected. A record is encoded by the broker
(`formats.broker_records`); here it is opaque, and extends to the end of the value. Ids start at 1 and are never
reused. There is a separate sequence of ids for queues, exchanges, bindings and general objects.

* A queue's journal is the directory `jrnl/<journal id>`. It has the queue's own number until a resize or conversion
  builds a new one, whose number comes from the queues' sequence and whose incarnation is one higher; the batch
  that rewrites the queue entry switches over.
* Record ids are reserved in blocks of 2^20, in a synced batch before the first of a block is used; after a crash
  counting continues from the high-water mark.
* A binding is identified by a sequence number and not by its content: bindings keep the order of their creation, and
  the same key with other arguments is another binding.
* Every batch rewrites the census. A database that has lost a part (a missing table file, a truncated manifest)
  looks intact to itself; then the census and the entries disagree, and the loss is detected.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from typing import Any, TypeAlias, cast
from uuid import UUID

from qstore.formats.checksum import extend_crc32c
from qstore.formats.errors import FormatError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.wording import with_article

FORMAT_VERSION = 2
"""The store format version of this layout."""

VALUE_VERSION = 1
"""The version byte in the envelope of every value."""

RID_BLOCK = 1 << 20
"""Record ids are reserved in blocks of this many."""

MAX_RECORD = 16 << 20
"""The longest broker record, in bytes. Its longest field, a field table, rarely exceeds a few kilobytes."""


class CatalogueFormatError(FormatError):
    """A key or value that violates the catalogue's layout. Offsets count from the start of the value."""

    format_name = "catalogue"


class Kind(enum.IntEnum):
    """The first byte of a key."""

    META = ord("m")
    CENSUS = ord("c")
    RIDS = ord("r")
    NEXT_ID = ord("i")
    QUEUE = ord("q")
    EXCHANGE = ord("x")
    BINDING = ord("b")
    GENERAL = ord("g")

    @property
    def prefix(self) -> bytes:
        """The common prefix of all keys of this kind."""
        return bytes((self,))


# ---------------------------------------------------------------------------------------------------------------
# The entries: first the fields of the key, then those of the value, as in the table above.


class Meta(NamedTuple):
    """The format version and the store that owns this catalogue."""

    format_version: int
    store_id: UUID


class Census(NamedTuple):
    """The number of batches written, the first is 1, and the number of entries after the latest."""

    batch: int
    queues: int
    exchanges: int
    bindings: int
    general: int


class RidReservation(NamedTuple):
    """Record ids below `high_water`, a multiple of `RID_BLOCK`, may have been used."""

    high_water: int


class NextId(NamedTuple):
    """The next id to give out, and the kind of entry it is for."""

    kind: Kind
    next_id: int


class QueueEntry(NamedTuple):
    """A durable queue, and the location of its journal."""

    queue_id: int
    journal_id: int
    incarnation: int
    record: bytes


class ExchangeEntry(NamedTuple):
    """A durable exchange."""

    exchange_id: int
    record: bytes


class BindingEntry(NamedTuple):
    """A binding of a durable queue to a durable exchange."""

    exchange_id: int
    queue_id: int
    sequence: int
    record: bytes


class GeneralEntry(NamedTuple):
    """Another object of the broker's configuration, such as a link or a bridge."""

    general_id: int
    record: bytes


Entry: TypeAlias = Meta | Census | RidReservation | NextId | QueueEntry | ExchangeEntry | BindingEntry | GeneralEntry


# ---------------------------------------------------------------------------------------------------------------
# The table. A field is its struct code, the conversion from the wire's value (ValueError: refused), and back.


class _Field(NamedTuple):
    code: str
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]


class _Layout(NamedTuple):
    """One row of the table: the structs of the key, with its kind byte, and of the value's own fields."""

    entry: Callable[..., Any]
    key: struct.Struct
    value: struct.Struct
    key_fields: tuple[_Field, ...]
    value_fields: tuple[_Field, ...]
    has_record: bool


def _plain(number: int) -> int:
    return number


def _format_version(number: int) -> int:
    if number != FORMAT_VERSION:
        raise ValueError(f"unknown format version {number}; this software reads version {FORMAT_VERSION}")
    return number


def _id(number: int) -> int:
    if number == 0:
        raise ValueError("an id is 0; ids start at 1")
    return number


def _rid_block(number: int) -> int:
    if number % RID_BLOCK:
        raise ValueError(f"the record id reservation {number} is not a multiple of {RID_BLOCK}")
    return number


def _numbered_kind(byte: int) -> Kind:
    if byte not in NUMBERED_KINDS:
        raise ValueError(f"kind byte {byte:#04x} has no sequence of ids")
    return Kind(byte)


def _uuid(octets: bytes) -> UUID:
    return UUID(bytes=octets)


def _uuid_octets(store_id: UUID) -> bytes:
    return store_id.bytes


NUMBERED_KINDS = (Kind.QUEUE, Kind.EXCHANGE, Kind.BINDING, Kind.GENERAL)
"""The kinds of entry that have a sequence of ids, in the order of the census."""

_COUNT = _Field("Q", _plain, _plain)
_ID = _Field("Q", _id, _id)


def _row(entry: Callable[..., Any], key: list[_Field], value: list[_Field], record: bool = False) -> _Layout:
    key_struct = struct.Struct(">B" + "".join(field.code for field in key))
    value_struct = struct.Struct(">" + "".join(field.code for field in value))
    return _Layout(entry, key_struct, value_struct, tuple(key), tuple(value), record)


_LAYOUTS: dict[Kind, _Layout] = {
    Kind.META: _row(Meta, [], [_Field("I", _format_version, _format_version), _Field("16s", _uuid, _uuid_octets)]),
    Kind.CENSUS: _row(Census, [], [_COUNT] * 5),
    Kind.RIDS: _row(RidReservation, [], [_Field("Q", _rid_block, _rid_block)]),
    Kind.NEXT_ID: _row(NextId, [_Field("B", _numbered_kind, _numbered_kind)], [_ID]),
    Kind.QUEUE: _row(QueueEntry, [_ID], [_ID, _Field("I", _plain, _plain)], record=True),
    Kind.EXCHANGE: _row(ExchangeEntry, [_ID], [], record=True),
    Kind.BINDING: _row(BindingEntry, [_ID, _ID, _ID], [], record=True),
    Kind.GENERAL: _row(GeneralEntry, [_ID], [], record=True),
}
_KINDS: dict[Callable[..., Any], Kind] = {layout.entry: kind for kind, layout in _LAYOUTS.items()}
_ENVELOPE = struct.Struct(">IB")


# ---------------------------------------------------------------------------------------------------------------


def encode(entry: Entry) -> tuple[bytes, bytes]:
    """The key and value of `entry`. Raises ValueError for a field that the layout cannot represent."""
    kind = _KINDS[type(entry)]
    layout = _LAYOUTS[kind]
    columns = iter(entry)
    in_key = [field.write(next(columns)) for field in layout.key_fields]
    in_value = [field.write(next(columns)) for field in layout.value_fields]
    record = cast(bytes, next(columns)) if layout.has_record else b""
    if len(record) > MAX_RECORD:
        raise ValueError(f"{with_article(_name(kind))} record is over {MAX_RECORD:,} bytes: {len(record):,}")
    try:
        key = layout.key.pack(kind, *in_key)
        body = bytes((VALUE_VERSION,)) + layout.value.pack(*in_value) + record
    except struct.error as error:
        raise ValueError(f"{with_article(_name(kind))} entry has a field out of range: {error}") from None
    return key, _checksum(key, body).to_bytes(4, "big") + body


def decode(key: bytes, value: bytes) -> Entry:
    """The entry at `key`. Raises CatalogueFormatError."""
    kind = kind_of(key)
    layout = _LAYOUTS[kind]
    if len(key) != layout.key.size:
        raise CatalogueFormatError(f"{with_article(_name(kind))} key has {len(key)} bytes instead of {layout.key.size}")
    head = _ENVELOPE.size + layout.value.size
    if len(value) < head or (len(value) > head and not layout.has_record) or len(value) > head + MAX_RECORD:
        raise CatalogueFormatError(f"{with_article(_name(kind))} value cannot have {len(value):,} bytes", len(value))
    crc, version = _ENVELOPE.unpack_from(value)
    if crc != _checksum(key, value[4:]):
        raise CatalogueFormatError(f"the checksum of {with_article(_name(kind))} value does not match")
    if version != VALUE_VERSION:
        raise CatalogueFormatError(
            f"unknown {_name(kind)} value version {version}; this software reads version {VALUE_VERSION}", 4
        )
    in_key = layout.key.unpack(key)[1:]
    in_value = layout.value.unpack_from(value, _ENVELOPE.size)
    try:
        fields = [field.read(column) for field, column in zip(layout.key_fields, in_key, strict=True)]
        fields += [field.read(column) for field, column in zip(layout.value_fields, in_value, strict=True)]
    except ValueError as error:
        raise CatalogueFormatError(f"{_name(kind)} entry: {error}", _ENVELOPE.size) from None
    entry: Entry = layout.entry(*fields, value[head:]) if layout.has_record else layout.entry(*fields)
    return entry


def kind_of(key: bytes) -> Kind:
    """The kind of entry that `key` identifies. Raises CatalogueFormatError."""
    if not key:
        raise CatalogueFormatError("an empty key")
    try:
        return Kind(key[0])
    except ValueError:
        raise CatalogueFormatError(f"unknown key kind {key[0]:#04x}") from None


def bindings_prefix(exchange_id: int) -> bytes:
    """The common prefix of the keys of all bindings of one exchange."""
    return Kind.BINDING.prefix + exchange_id.to_bytes(8, "big")


def _checksum(key: bytes, body: bytes) -> int:
    return extend_crc32c(extend_crc32c(0, key), body)


def _name(kind: Kind) -> str:
    return kind.name.lower().replace("_", " ")
