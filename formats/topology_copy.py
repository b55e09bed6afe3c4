"""The file `rhm/topology`: a second copy of the catalogue of a version-2 store, in one file next to its database.

A key-value database that lost its newest log, or was replaced by an older one, looks intact to itself. This file has
the same entries (`formats.catalogue`) in another form: a log of the catalogue's batches, numbered as in the catalogue's
census. Comparing the two shows the losses of each.

All integers are little-endian. The file is a header, then records, each in a whole number of sectors of 512 bytes.

    header   8 bytes magic "QSTOPOLO", u32 format version (1), 16 bytes store id (a UUID), u32 CRC-32C of the bytes
             before it; zeros up to the end of the sector
    record   u32 magic "QSTR", u32 CRC-32C of the store id, of all that follows in the record's header, and of the body;
             u64 batch number, u32 bytes in the body, u8 kind, 3 zero bytes; the body; zeros up to the end of the sector
    body     for each change: u16 length of the key, u32 length of the value, key, value;
             a deleted entry has 0xffffffff in place of the length, and no value

    kind     body
    -------  --------------------------------------------------------------------------------------------------
    1        a snapshot: every entry that the catalogue has after the batch of that number
    2        a batch: the changes that it makes

The first record is a snapshot, and the only one; the others are batches with consecutive numbers. After the last record
the file is zeros: space for further ones, which are appended and synced one at a time. When the space is used up, a new
file with a snapshot replaces the old one by a rename.

So a crash can tear only the last record, after which there are none. An unreadable record that is followed by a
readable one of a higher number is damage.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from typing import Final
from uuid import UUID

from qstore.formats.checksum import extend_crc32c
from qstore.formats.errors import FormatError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.zeros import is_zero

FORMAT_VERSION: Final = 1
SECTOR: Final = 512
"""Records begin at multiples of this many bytes, so that a torn write damages only its own record."""

_MAGIC: Final = b"QSTOPOLO"
_RECORD_MAGIC: Final = b"QSTR"
_HEADER: Final = struct.Struct("<8sI16sI")
_RECORD: Final = struct.Struct("<4sIQIB3x")
_CHANGE: Final = struct.Struct("<HI")
_DELETED: Final = 0xFFFFFFFF
_SNAPSHOT, _BATCH = 1, 2
_MAX_TRIED: Final = 4096  # positions after the last record that are searched for another one


class TopologyFormatError(FormatError):
    """A file that is not a topology copy, or whose header is damaged. Offsets count from the start of the file."""

    format_name = "topology copy"


class Tail(Enum):
    """The bytes after the last readable record."""

    CLEAN = auto()  # zeros, or nothing
    TORN = auto()  # other bytes: the record that was being written when its writer died
    DAMAGED = auto()  # records of higher numbers: one between them and the last is damaged or missing


class TopologyCopy(NamedTuple):
    """The content of a topology copy.

    Attributes:
        store_id: id of its store.
        batch: the number of the last batch that can be read in sequence; 0 if the snapshot cannot be read.
        entries: key -> value, as in the catalogue after that batch.
        end: the offset after the record of that batch.
        tail: the bytes after it.
        last_batch: the highest batch number of any readable record.
    """

    store_id: UUID
    batch: int
    entries: dict[bytes, bytes]
    end: int
    tail: Tail
    last_batch: int


class _Record(NamedTuple):
    batch: int
    kind: int
    changes: dict[bytes, bytes | None]
    end: int


def encode_snapshot(store_id: UUID, batch: int, entries: Mapping[bytes, bytes]) -> bytes:
    """The header and the first record of a file whose catalogue has `entries` after the batch of that number.

    Raises ValueError if they do not fit: over 4 GiB, or numbers out of range.
    """
    head = _HEADER.pack(_MAGIC, FORMAT_VERSION, store_id.bytes, 0)[:-4]
    header = head + extend_crc32c(0, head).to_bytes(4, "little")
    return _padded(header) + _encode(store_id, batch, _SNAPSHOT, entries)


def encode_batch(store_id: UUID, batch: int, changes: Mapping[bytes, bytes | None]) -> bytes:
    """The record of one batch; a value of None deletes its key. Raises ValueError as `encode_snapshot`."""
    return _encode(store_id, batch, _BATCH, changes)


def _encode(store_id: UUID, batch: int, kind: int, changes: Mapping[bytes, bytes | None]) -> bytes:
    parts = []
    try:
        for key, value in changes.items():
            parts += [_CHANGE.pack(len(key), _DELETED if value is None else len(value)), key, value or b""]
        body = b"".join(parts)
        head = _RECORD.pack(_RECORD_MAGIC, 0, batch, len(body), kind)
    except struct.error as error:
        raise ValueError(f"batch {batch} does not fit into a record: {error}") from None
    crc = _checksum(store_id, head, body)
    return _padded(head[:4] + crc.to_bytes(4, "little") + head[8:] + body)


def _padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % SECTOR)


def _checksum(store_id: UUID, head: bytes, body: bytes) -> int:
    return extend_crc32c(extend_crc32c(extend_crc32c(0, store_id.bytes), head[8:]), body)


def decode_topology(content: bytes) -> TopologyCopy:
    """Decode the file. Raises TopologyFormatError if its header cannot be read."""
    if len(content) < _HEADER.size:
        raise TopologyFormatError(f"{len(content):,} bytes are too few", len(content))
    magic, version, store, crc = _HEADER.unpack_from(content)
    if magic != _MAGIC:
        raise TopologyFormatError(f"magic {magic!r} instead of {_MAGIC!r}")
    if crc != extend_crc32c(0, content[: _HEADER.size - 4]):
        raise TopologyFormatError("the header fails its checksum")
    if version != FORMAT_VERSION:
        raise TopologyFormatError(f"unknown format version {version}; this software reads version {FORMAT_VERSION}", 8)
    store_id = UUID(bytes=store)
    batch, end, entries = 0, SECTOR, dict[bytes, bytes]()
    while (record := _record_at(content, end, store_id)) is not None:
        if record.kind != (_BATCH if batch else _SNAPSHOT) or (batch and record.batch != batch + 1):
            break
        for key, value in record.changes.items():
            if value is None:
                entries.pop(key, None)
            else:
                entries[key] = value
        batch, end = record.batch, record.end
    further = max((each.batch for each in _records_from(content, end, store_id)), default=0)
    tail = Tail.CLEAN if is_zero(content, end) else Tail.TORN
    if further > batch or not batch:
        tail = Tail.DAMAGED
    return TopologyCopy(store_id, batch, entries, end, tail, max(batch, further))


def _records_from(content: bytes, begin: int, store_id: UUID) -> Iterator[_Record]:
    """The readable records that begin at any sector from `begin` on."""
    at, tried = content.find(_RECORD_MAGIC, begin), 0
    while at >= 0 and tried < _MAX_TRIED:
        if at % SECTOR == 0:
            tried += 1
            record = _record_at(content, at, store_id)
            if record is not None:
                yield record
        at = content.find(_RECORD_MAGIC, at + 1)


def _record_at(content: bytes, at: int, store_id: UUID) -> _Record | None:
    """The record at that offset; None if there is no readable one."""
    head = content[at : at + _RECORD.size]
    if len(head) < _RECORD.size:
        return None
    magic, crc, batch, size, kind = _RECORD.unpack(head)
    body = content[at + _RECORD.size : at + _RECORD.size + size]
    if magic != _RECORD_MAGIC or len(body) < size or not batch or crc != _checksum(store_id, head, body):
        return None
    changes: dict[bytes, bytes | None] = {}
    position = 0
    while position < size:
        if position + _CHANGE.size > size:
            return None
        key_size, value_size = _CHANGE.unpack_from(body, position)
        position += _CHANGE.size
        key, position = body[position : position + key_size], position + key_size
        length = 0 if value_size == _DELETED else value_size
        if position + length > size:
            return None
        changes[key] = None if value_size == _DELETED else body[position : position + length]
        position += length
    end = at + _RECORD.size + size
    return _Record(batch, kind, changes, end + -end % SECTOR)
