"""The file `rhm/CLOSED`: the content of each journal of a version-2 store when the store was closed cleanly.

A journal that was never written has no seal, and one that was restored from a copy has an older seal; so a journal
alone cannot prove that it is complete. This file is outside the journals and describes each of them. It is written at a
clean close, after every journal is sealed and before the mark in the STORE file, and remains until the next one. All
numbers are little endian:

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
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from qstore.formats.checksum import extend_crc32c
from qstore.formats.errors import FormatError

MAX_JOURNALS: Final = 1 << 20
_MAGIC: Final = b"RHMCLOSE"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<8sII16s")
_JOURNAL: Final = struct.Struct("<QQQQII")
_CRC: Final = struct.Struct("<I")
MAX_SIZE: Final = _HEADER.size + MAX_JOURNALS * _JOURNAL.size + _CRC.size
assert _HEADER.size == 32
assert _JOURNAL.size == 40


class CloseRecordError(FormatError):
    """A CLOSED file whose content violates this layout."""

    format_name = "CLOSED file"


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


@dataclass(frozen=True, slots=True)
class ClosedStore:
    """The content of a CLOSED file.

    Attributes:
        store_id: id of its store.
        journals: the prepared list's and those of the queues.
    """

    store_id: UUID
    journals: tuple[ClosedJournal, ...]


def encode_close_record(store_id: UUID, journals: Iterable[ClosedJournal]) -> bytes:
    """The file for a store with these journals. Raises ValueError if there are more than `MAX_JOURNALS`."""
    entries = sorted(journals, key=lambda each: each.journal_id)
    if len(entries) > MAX_JOURNALS:
        raise ValueError(f"{len(entries)} journals are more than a CLOSED file can have")
    content = b"".join(
        (
            _HEADER.pack(_MAGIC, _VERSION, len(entries), store_id.bytes),
            *(
                _JOURNAL.pack(each.queue_id, each.journal_id, each.flush, each.messages, each.incarnation, 0)
                for each in entries
            ),
        )
    )
    return content + _CRC.pack(extend_crc32c(0, content))


def decode_close_record(content: bytes) -> ClosedStore:
    """Decode the file. Raises CloseRecordError."""
    if len(content) < _HEADER.size + _CRC.size:
        raise CloseRecordError(f"{len(content):,} bytes are too few")
    magic, version, count, store_id = _HEADER.unpack_from(content)
    if magic != _MAGIC:
        raise CloseRecordError(f"it begins with {magic!r} and not with {_MAGIC!r}", 0)
    if version != _VERSION:
        raise CloseRecordError(f"unknown layout version {version}; this software reads version {_VERSION}", 8)
    end = len(content) - _CRC.size
    if count > MAX_JOURNALS or end != _HEADER.size + count * _JOURNAL.size:
        raise CloseRecordError(f"{len(content):,} bytes are not the size of a file with {count} journals", 12)
    (crc,) = _CRC.unpack_from(content, end)
    if crc != extend_crc32c(0, content[:end]):
        raise CloseRecordError("the checksum does not match: the file was damaged or edited", end, fails_checksum=True)
    entries = _JOURNAL.iter_unpack(content[_HEADER.size : end])
    journals = tuple(
        ClosedJournal(queue_id, journal_id, incarnation, flush, messages)
        for queue_id, journal_id, flush, messages, incarnation, _ in entries
    )
    return ClosedStore(UUID(bytes=store_id), journals)
