"""Decodes the headers of many records at once, in one shape for all formats.

The walk over a journal has checked the records and decoded their headers, but returns only their places, because a
tuple for each record would be too expensive. The fields that columns need are decoded again here, with structs composed
from the tables of the formats.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Final, NamedTuple

import qstore.formats.qls.records as qls
import qstore.formats.rhm.records as rhm
from qstore.formats.rhm.geometry import padded
from qstore.formats.rhm.records import COMPRESSED, EXTERNAL, Kind
from qstore.store.journal.files import JournalFormat
from qstore.store.journal.line.records import LinearRecords
from qstore.store.journal.records import RecordHeader
from qstore.store.journal.ring.records import Version1Records

HEAD_SIZE: Final = 40  # bytes of the longest header
LETTERS: Final = {kind >> 24: kind for kind in rhm.RECORD_KINDS}  # the last letter of a magic, in all formats
_ENQUEUE: Final = Kind.ENQUEUE >> 24
_DEQUEUE: Final = Kind.DEQUEUE >> 24
_FILLER: Final = Kind.FILLER >> 24
_ALL: Final = 0xFFFF


class Head(NamedTuple):
    """The fields of a record's header that columns need.

    Attributes:
        letter: a key of `LETTERS`.
        flags: the defined ones.
        rid: record id.
        xid_size: length of the transaction id.
        datum: of an enqueue its data's size, of a dequeue the dequeued record id, of a filler its blocks.
        flush: version 2: low 32 bits of its flush's number.
    """

    letter: int
    flags: int
    rid: int
    xid_size: int
    datum: int
    flush: int


_NO_HEAD: Final = Head(_FILLER, 0, 0, 0, 1, 0)
_new: Final = tuple.__new__


def _joined(*parts: struct.Struct) -> Callable[..., tuple[int, ...]]:
    return struct.Struct("<" + "".join(part.format.lstrip("<") for part in parts)).unpack_from


_unpack_1: Final = _joined(rhm.COMMON, rhm.LAYOUTS[1, Kind.ENQUEUE].rest)
_unpack_2: Final = _joined(rhm.COMMON, rhm.LAYOUTS[2, Kind.ENQUEUE].rest)
_unpack_linear: Final = _joined(qls.COMMON, struct.Struct("<QQ"))


def _flags_by_letter(known: Mapping[Kind, int]) -> dict[int, int]:
    return {letter: known.get(kind, _ALL) for letter, kind in LETTERS.items()}


_FLAGS_1: Final = _flags_by_letter(Version1Records.known_flags)
_FLAGS_LINEAR: Final = _flags_by_letter(LinearRecords.known_flags)


def _heads_1(buffer: bytes, offsets: Sequence[int]) -> list[Head]:
    heads = []
    for offset in offsets:
        magic, _, _, flags, rid, first, second = _unpack_1(buffer, offset)
        letter = magic >> 24
        if letter == _FILLER:
            heads.append(_NO_HEAD)
            continue
        if letter == _DEQUEUE:
            first, second = second, first
        heads.append(_new(Head, (letter, flags & _FLAGS_1[letter], rid, first, second, 0)))
    return heads


def _heads_2(buffer: bytes, offsets: Sequence[int]) -> list[Head]:
    return [
        _new(Head, (magic >> 24, flags, rid, xid_size, datum, flush))
        for magic, _, _, flags, rid, xid_size, flush, datum in map(_unpack_2, repeat(buffer), offsets)
    ]


def _heads_linear(buffer: bytes, offsets: Sequence[int]) -> list[Head]:
    heads = []
    for offset in offsets:
        magic, _, flags, _, rid, first, second = _unpack_linear(buffer, offset)
        letter = magic >> 24
        if letter == _FILLER:
            heads.append(_NO_HEAD)
            continue
        if letter == _DEQUEUE:
            first, second = second, first
        heads.append(_new(Head, (letter, flags & _FLAGS_LINEAR[letter], rid, first, second, 0)))
    return heads


class HeadFormat(NamedTuple):
    """A format's headers.

    Attributes:
        take: decodes the headers at some offsets of a buffer, which has `HEAD_SIZE` bytes from each on.
        sizes: letter -> bytes of the header.
        tail_size: bytes of a record's tail.
        external: the flag of an enqueue whose data are not in the journal; 0 if the format has none.
        compressed: the flag of one whose content is compressed; 0 if the format has none.
        tail_always: whether every record has a tail.
    """

    take: Callable[[bytes, Sequence[int]], list[Head]]
    sizes: Mapping[int, int]
    tail_size: int
    external: int
    compressed: int
    tail_always: bool

    def stored_size(self, head: Head) -> int:
        """Bytes of data in an enqueue record."""
        return 0 if head.flags & self.external else head.datum

    def size(self, head: Head) -> int:
        """Bytes of a record on disk, with padding."""
        if head.letter == _FILLER:
            return padded(head.datum * padded(1))
        size = self.sizes[head.letter] + head.xid_size
        if head.letter == _ENQUEUE:
            return padded(size + self.stored_size(head) + self.tail_size)
        return padded(size + self.tail_size if head.xid_size or self.tail_always else size)

    def record_sizes(self, heads: Sequence[Head]) -> list[int]:
        """`size` of each; computed once for equal numbers."""
        keys = [(head[0], head[1], head[3], head[4] if head[0] != _DEQUEUE else 0) for head in heads]
        sizes = {key: self.size(Head(key[0], key[1], 0, key[2], key[3], 0)) for key in set(keys)}
        return [sizes[key] for key in keys]


def _sizes(version: int) -> dict[int, int]:
    return {letter: rhm.LAYOUTS[version, kind].size for letter, kind in LETTERS.items()}


HEADS: Final[dict[JournalFormat, HeadFormat]] = {
    JournalFormat.VERSION_1: HeadFormat(_heads_1, _sizes(1), rhm.TAIL_SIZE, EXTERNAL, 0, tail_always=False),
    JournalFormat.VERSION_2: HeadFormat(_heads_2, _sizes(2), rhm.TAIL_SIZE, 0, COMPRESSED, tail_always=True),
    JournalFormat.LINEAR: HeadFormat(
        _heads_linear,
        {letter: qls.HEADER_SIZES[kind] for letter, kind in LETTERS.items()},
        qls.TAIL_SIZE,
        EXTERNAL,
        0,
        tail_always=False,
    ),
}


def as_header(head: Head, journal_format: JournalFormat) -> RecordHeader:
    """The header as the format's own type."""
    kind = LETTERS[head.letter]
    data_size = head.datum if kind is Kind.ENQUEUE else 0
    dequeued = head.datum if kind is Kind.DEQUEUE else 0
    if journal_format is JournalFormat.LINEAR:
        return qls.RecordHeader(kind, head.flags, 0, head.rid, head.xid_size, data_size, dequeued)
    blocks = head.datum if kind is Kind.FILLER else 0
    return rhm.RecordHeader(
        kind, int(journal_format), head.flags, head.rid, head.xid_size, data_size, dequeued, head.flush, blocks
    )
