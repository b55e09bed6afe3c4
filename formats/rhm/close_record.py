"""The files `rhm/CLOSED` and `rhm/SYNCED`: a version-2 store's content, recorded outside of its journals and catalogue.

A journal that was never written has no seal, one that was restored from a copy has an older seal, and after a crash a
journal has none: so a journal alone cannot prove that it is complete. Neither can the catalogue and its second copy if
both are replaced by older ones. All numbers are little endian.

CLOSED has the content of each journal at a clean close. It is written after every journal is sealed and before the mark
in the STORE file, and remains until the next one, or until a start had to create a journal in place of a lost one:

    off  size  field
      0    8   "RHMCLOSE"
      8   u32  1, the version of this layout
     12   u32  number of journals
     16   16   the store's id, as in the STORE file
     32   40   for each journal, those of the queues by journal id and before them that of the prepared list:
                 u64 queue id; 0 for the prepared list
                 u64 journal id; 0 for the prepared list
                 u64 number of the last flush; 0 if nothing was ever written
                 u64 number of its messages, including those that open transactions enqueue
                 u32 incarnation
                 u32 0
    end   u32  CRC-32C of everything before

SYNCED has lower bounds: how far the catalogue and each journal are known to be synced. It is replaced as a whole at
every start, about every five seconds while anything is written, a second after a change of the topology, and at a
clean close. Nothing is recorded before it is synced, so no crash leaves less than a bound. Older software, which does
not know the file, only makes the bounds lower than they could be:

    off  size  field
      0    8   "RHMSYNCD"
      8   u32  1, the version of this layout
     12   u32  number of journals
     16   16   the store's id, as in the STORE file
     32   u64  number of the last batch that both the catalogue and its second copy have (`formats.topology_copy`)
     40   32   for each journal that was ever written, those of the queues by journal id; before them the prepared list,
               written or not:
                 u64 queue id; 0 for the prepared list
                 u64 journal id; 0 for the prepared list
                 u64 number of the last synced flush; 0 if nothing was ever written
                 u32 incarnation
                 u32 0
    end   u32  CRC-32C of everything before
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final
from uuid import UUID

from qstore.formats.checksum import extend_crc32c
from qstore.formats.errors import FormatError
from qstore.formats.named_tuple import NamedTuple

MAX_JOURNALS: Final = 1 << 20
_MAGIC: Final = b"RHMCLOSE"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<8sII16s")
_JOURNAL: Final = struct.Struct("<QQQQII")
_SYNCED_MAGIC: Final = b"RHMSYNCD"
_SYNCED_VERSION: Final = 1
_BATCH: Final = struct.Struct("<Q")
_SYNCED_JOURNAL: Final = struct.Struct("<QQQII")
_CRC: Final = struct.Struct("<I")
MAX_SIZE: Final = _HEADER.size + MAX_JOURNALS * _JOURNAL.size + _CRC.size
assert _HEADER.size == 32
MAX_SYNCED_SIZE: Final = _HEADER.size + _BATCH.size + MAX_JOURNALS * _SYNCED_JOURNAL.size + _CRC.size
assert _JOURNAL.size == 40
assert _SYNCED_JOURNAL.size == 32


class CloseRecordError(FormatError):
    """A CLOSED or SYNCED file whose content violates its layout."""

    format_name = "close record"


class ClosedJournal(NamedTuple):
    """One journal at the close.

    Attributes:
        queue_id, journal_id: the numbers of its queue and of its directory; 0 for the prepared list.
        incarnation: how often the journal was rebuilt.
        flush: number of its last flush; 0 if nothing was ever written.
        messages: number of its messages, including those that open transactions enqueue.
    """

    queue_id: int
    journal_id: int
    incarnation: int
    flush: int
    messages: int


class ClosedStore(NamedTuple):
    """The content of a CLOSED file.

    Attributes:
        store_id: id of its store.
        journals: the prepared list's and those of the queues.
    """

    store_id: UUID
    journals: tuple[ClosedJournal, ...]


class SyncedJournal(NamedTuple):
    """The position up to which one journal is known to be synced.

    Attributes:
        queue_id, journal_id: the numbers of its queue and of its directory; 0 for the prepared list.
        incarnation: how often the journal was rebuilt.
        flush: number of a flush that it has; 0 if nothing was ever written.
    """

    queue_id: int
    journal_id: int
    incarnation: int
    flush: int


class SyncedStore(NamedTuple):
    """The content of a SYNCED file.

    Attributes:
        store_id: id of its store.
        batch: number of a batch that the catalogue and its second copy have.
        journals: the prepared list's and those of the queues.
    """

    store_id: UUID
    batch: int
    journals: tuple[SyncedJournal, ...]


def encode_close_record(store_id: UUID, journals: Iterable[ClosedJournal]) -> bytes:
    """The CLOSED file of a store with these journals. Raises ValueError if there are more than `MAX_JOURNALS`."""
    entries = [
        _JOURNAL.pack(each.queue_id, each.journal_id, each.flush, each.messages, each.incarnation, 0)
        for each in sorted(journals, key=lambda each: each.journal_id)
    ]
    if len(entries) > MAX_JOURNALS:
        raise ValueError(f"{len(entries)} journals are more than a CLOSED file can have")
    return _encode(_MAGIC, _VERSION, store_id, b"", entries)


def decode_close_record(content: bytes) -> ClosedStore:
    """Decode a CLOSED file. Raises CloseRecordError."""
    store_id, _, body = _decode(content, _MAGIC, _VERSION, 0, _JOURNAL.size)
    journals = tuple(
        ClosedJournal(queue_id, journal_id, incarnation, flush, messages)
        for queue_id, journal_id, flush, messages, incarnation, _ in _JOURNAL.iter_unpack(body)
    )
    return ClosedStore(store_id, journals)


def encode_synced(store_id: UUID, batch: int, journals: Iterable[SyncedJournal]) -> bytes:
    """The SYNCED file of a store with these journals. Raises ValueError if there are more than `MAX_JOURNALS`."""
    entries = [
        _SYNCED_JOURNAL.pack(each.queue_id, each.journal_id, each.flush, each.incarnation, 0)
        for each in sorted(journals, key=lambda each: each.journal_id)
    ]
    if len(entries) > MAX_JOURNALS:
        raise ValueError(f"{len(entries)} journals are more than a SYNCED file can have")
    return _encode(_SYNCED_MAGIC, _SYNCED_VERSION, store_id, _BATCH.pack(batch), entries)


def decode_synced(content: bytes) -> SyncedStore:
    """Decode a SYNCED file. Raises CloseRecordError."""
    store_id, head, body = _decode(content, _SYNCED_MAGIC, _SYNCED_VERSION, _BATCH.size, _SYNCED_JOURNAL.size)
    (batch,) = _BATCH.unpack(head)
    journals = tuple(
        SyncedJournal(queue_id, journal_id, incarnation, flush)
        for queue_id, journal_id, flush, incarnation, _ in _SYNCED_JOURNAL.iter_unpack(body)
    )
    return SyncedStore(store_id, batch, journals)


def _encode(magic: bytes, version: int, store_id: UUID, head: bytes, entries: Sequence[bytes]) -> bytes:
    """A file: the header, the fields after it, and an entry for each journal."""
    content = b"".join((_HEADER.pack(magic, version, len(entries), store_id.bytes), head, *entries))
    return content + _CRC.pack(extend_crc32c(0, content))


def _decode(content: bytes, magic: bytes, version: int, head: int, entry: int) -> tuple[UUID, bytes, bytes]:
    """The store id of a file, the `head` bytes after its header, and its entries of `entry` bytes."""
    if len(content) < _HEADER.size + head + _CRC.size:
        raise CloseRecordError(f"{len(content):,} bytes are too few")
    found, recorded, count, store_id = _HEADER.unpack_from(content)
    if found != magic:
        raise CloseRecordError(f"it begins with {found!r} and not with {magic!r}", 0)
    if recorded != version:
        raise CloseRecordError(f"unknown layout version {recorded}; this software reads version {version}", 8)
    begin, end = _HEADER.size + head, len(content) - _CRC.size
    if count > MAX_JOURNALS or end != begin + count * entry:
        raise CloseRecordError(f"{len(content):,} bytes are not the size of a file with {count} journals", 12)
    (crc,) = _CRC.unpack_from(content, end)
    if crc != extend_crc32c(0, content[:end]):
        raise CloseRecordError("the checksum does not match: the file was damaged or edited", end, fails_checksum=True)
    return UUID(bytes=store_id), content[_HEADER.size : begin], content[begin:end]
