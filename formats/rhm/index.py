"""The files in `rhm/index`: which messages a journal of version 2 held at a log offset, to spare a start reading it.

`index/<journal id>` is what a scan of that journal up to one of its log offsets has found. The journal alone decides
what is true: a reader goes on from there, and uses the file only if the journal's files have the salts that it names,
and its records lead to that log offset. If the file is missing, old, torn or damaged, all of the journal is read. So it
is replaced without being synced, and software that does not know it may write to the journal.

There is none for a journal with open transactions. Log offsets count blocks, through all laps of the writer that wrote
the file. All numbers are little endian.

    off  size  field
      0    8   "RHMINDEX"
      8   u32  1, the version of this layout
     12   u32  incarnation of the journal
     16   16   the store's id, as in the STORE file
     32   u64  queue id
     40   u64  journal id
     48   u64  data_size: bytes of the data area of each of the journal's files
     56   u64  place: the log offset
     64   u64  begin: an earlier log offset, where a flush begins
     72   u64  flush: its number
     80   u64  last_rid: of the last record before `place` that is not a filler, which is in that flush: its record id.
               After a crash another flush with the same number may be there, but no record has the id of another
     88   u64  highest_rid: no record before `place` has a higher record id
     96   u64  first: the file, counted through all laps, that has the first of the salts
    104   u64  number of salts: of the files up to the one that contains the last block before `place`
    112   u64  number of messages
    120    8   for each file: its salt
         then chunks and runs, until there are as many messages. Record ids ascend through the whole file. The place of
         a record is its log offset and blocks: offset << 24 | blocks. A chunk:
               u64 number of its messages, 1 to 4,096
               u64 the lowest of their places, and u64 the highest
               u64 for each message: its record id
               u64 for each message: its place
         a run, of consecutive record ids, with records of the same size, one after the other:
               u64 number of its messages, with the highest bit set
               u64 the first record id
               u64 the place of the first record
    end   u32  CRC-32C of everything before
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator
from typing import Final, Protocol
from uuid import UUID

from qstore.formats.checksum import extend_crc32c
from qstore.formats.errors import FormatError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.geometry import MAX_RING_FILES

MAX_CHUNK: Final = 4096
MAX_MESSAGES: Final = 1 << 26
_MAGIC: Final = b"RHMINDEX"
_WINDOW: Final = 256 << 10  # bytes read at once: a start reads thousands of runs, of 24 bytes each
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<8sII16sQQQQQQQQQQQ")
_CHUNK: Final = struct.Struct("<QQQ")
_CRC: Final = struct.Struct("<I")
_IS_RUN: Final = 1 << 63
_BLOCK_BITS: Final = 24  # of a place
_BLOCKS: Final = (1 << _BLOCK_BITS) - 1
_END: Final = 1 << 64  # of record ids and places
MESSAGE_SIZE: Final = 16
"""Bytes of a message in a chunk."""
HEADER_SIZE: Final = _HEADER.size
assert HEADER_SIZE == 120


class Chunk(NamedTuple):
    """Some messages.

    Attributes:
        rids: their record ids, ascending.
        packed: log offset and blocks of each.
        lowest, highest: the least of these, and the greatest.
    """

    rids: array[int]
    packed: array[int]
    lowest: int
    highest: int


class IndexFileError(FormatError):
    """An index file whose content violates its layout."""

    format_name = "index file"


class IndexHeader(NamedTuple):
    """What precedes the messages; the fields are described above.

    Attributes:
        salts: of the files from `first` on.
        messages: number of messages.
    """

    store_id: UUID
    queue_id: int
    journal_id: int
    incarnation: int
    data_size: int
    place: int
    begin: int
    flush: int
    last_rid: int
    highest_rid: int
    first: int
    salts: tuple[int, ...]
    messages: int


class Run(NamedTuple):
    """Messages with consecutive record ids, whose records have the same size and follow each other.

    Attributes:
        first: the first record id.
        messages: number of messages.
        packed: log offset and blocks of the first.
    """

    first: int
    messages: int
    packed: int


class Readable(Protocol):
    """A file that is read by position."""

    @property
    def size(self) -> int:
        """Bytes in the file."""

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`; fewer only at the end of the file."""


def size_of(salts: int, parts: Iterable[Chunk | Run]) -> int:
    """Size of a file with a number of salts, and these chunks and runs."""
    sizes = (_CHUNK.size + (0 if isinstance(each, Run) else MESSAGE_SIZE * len(each.rids)) for each in parts)
    return HEADER_SIZE + 8 * salts + sum(sizes) + _CRC.size


def encode_index(header: IndexHeader, parts: Iterable[Chunk | Run]) -> Iterator[bytes]:
    """An index file, piece by piece."""
    piece = _encoded(header)
    crc = extend_crc32c(0, piece)
    yield piece
    for part in parts:
        if isinstance(part, Run):
            piece = _CHUNK.pack(part.messages | _IS_RUN, part.first, part.packed)
        else:
            piece = (
                _CHUNK.pack(len(part.rids), part.lowest, part.highest) + _bytes_of(part.rids) + _bytes_of(part.packed)
            )
        crc = extend_crc32c(crc, piece)
        yield piece
    yield _CRC.pack(crc)


def _encoded(header: IndexHeader) -> bytes:
    fixed = _HEADER.pack(
        _MAGIC, _VERSION, header.incarnation, header.store_id.bytes, header.queue_id, header.journal_id,
        header.data_size, header.place, header.begin, header.flush, header.last_rid, header.highest_rid, header.first,
        len(header.salts), header.messages,
    )  # fmt: skip
    return fixed + struct.pack(f"<{len(header.salts)}Q", *header.salts)


def decode_index_header(file: Readable) -> tuple[IndexHeader, int, int]:
    """The header of an index file; the offset after it; the CRC-32C of everything up to there.

    The checksum at the file's end is not compared: nothing of the header is known to be true before `decode_parts` has
    read everything.

    Raises:
        IndexFileError: it is no index file.
        OSError: it cannot be read.
    """
    content = file.read(0, HEADER_SIZE)
    if len(content) < HEADER_SIZE:
        raise IndexFileError(f"{len(content):,} bytes are too few")
    (
        magic, version, incarnation, store_id, queue_id, journal_id, data_size, place, begin, flush, last_rid,
        highest_rid, first, salts, messages,
    ) = _HEADER.unpack(content)  # fmt: skip
    if magic != _MAGIC:
        raise IndexFileError(f"it begins with {magic!r} and not with {_MAGIC!r}", 0)
    if version != _VERSION:
        raise IndexFileError(f"unknown layout version {version}; this software reads version {_VERSION}", 8)
    if not 0 < salts <= MAX_RING_FILES or messages > MAX_MESSAGES:
        raise IndexFileError(f"it cannot have {salts:,} files with {messages:,} messages", 104)
    if not begin < place or not data_size:
        raise IndexFileError(f"no flush can begin at {begin:,} before {place:,}", 56)
    after = HEADER_SIZE + 8 * salts
    rest = file.read(HEADER_SIZE, 8 * salts)
    if len(rest) < 8 * salts:
        raise IndexFileError(f"{file.size:,} bytes are too few for {salts:,} files")
    found = IndexHeader(
        UUID(bytes=store_id), queue_id, journal_id, incarnation, data_size, place, begin, flush, last_rid,
        highest_rid, first, struct.unpack(f"<{salts}Q", rest), messages,
    )  # fmt: skip
    return found, after, extend_crc32c(extend_crc32c(0, content), rest)


def decode_parts(file: Readable, header: IndexHeader, offset: int, crc: int) -> Iterator[Chunk | Run]:
    """The messages of an index file. The last one is true only if the iterator ends: then the checksum matches.

    Args:
        file: the file.
        header: its header.
        offset: where the messages begin.
        crc: CRC-32C of everything before: all three as `decode_index_header` returns them.

    Raises:
        IndexFileError: the file is torn or damaged.
        OSError: it cannot be read.
    """
    left, at, wanted = header.messages, 0, 0
    window = b""  # what was read from `offset` on; of it `at` bytes are done
    while left:
        most = _CHUNK.size + MESSAGE_SIZE * min(left, MAX_CHUNK)
        if len(window) - at < most and len(window) == wanted:  # it does not reach the end of the file
            crc, offset = extend_crc32c(crc, window[:at]), offset + at
            at, wanted = 0, max(most, _WINDOW)
            window = file.read(offset, wanted)
        count, lowest, highest = _CHUNK.unpack_from(window, at) if len(window) - at >= _CHUNK.size else (0, 0, 0)
        is_run = count & _IS_RUN != 0
        count &= ~_IS_RUN
        begin = at + _CHUNK.size
        middle = begin if is_run else begin + 8 * count
        end = middle if is_run else middle + 8 * count
        is_whole = 0 < count <= left and end <= min(len(window), at + most)
        if not is_whole or (is_run and not _can_be(lowest, count, highest)):
            raise IndexFileError("it is torn, or damaged", offset + at)
        if is_run:
            yield Run(lowest, count, highest)
        else:
            yield Chunk(_numbers(window[begin:middle]), _numbers(window[middle:end]), lowest, highest)
        at = end
        left -= count
    crc, offset = extend_crc32c(crc, window[:at]), offset + at
    tail = file.read(offset, _CRC.size + 1)
    if len(tail) != _CRC.size or _CRC.unpack(tail)[0] != crc:
        raise IndexFileError("the checksum does not match: the file is torn, or damaged", offset, fails_checksum=True)


def _can_be(first: int, count: int, packed: int) -> bool:
    """Whether there can be a run with this first record id, number of messages and first place."""
    blocks = packed & _BLOCKS
    return blocks > 0 and first + count <= _END and packed + count * (blocks << _BLOCK_BITS) <= _END


def _bytes_of(numbers: array[int]) -> bytes:
    return _swapped(array("Q", numbers)).tobytes() if sys.byteorder == "big" else numbers.tobytes()


def _numbers(content: bytes) -> array[int]:
    numbers = array("Q")
    numbers.frombytes(content)
    return _swapped(numbers) if sys.byteorder == "big" else numbers


def _swapped(numbers: array[int]) -> array[int]:
    numbers.byteswap()
    return numbers
