"""The layout of a version-1 journal's records, and the steps that write them (formats/rhm/README.md, 3).

A log offset is a block of the endless stream of all laps round the ring: divided by a file's blocks it gives the file,
counted over all laps; that modulo the number of files is the file's number, and the parity of the lap is the overwrite
indicator. Records are contiguous and continue in the next file when one ends, several times if they are long. A file's
header is made when the first part of a record reaches it, and states the offset of the first record that begins in this
file:

    a new record                                    right after the header
    the rest of one, and more fits after it         after that rest
    the rest of one that fills the file             0

A flush is padded with fillers to the end of its sector. It is cut into writes at the boundaries of the slices of the
data area that qpidd calls pages of its write cache, as far as they were not written before; these slices are
independent of file boundaries here, so that a page which does not divide a file leaves none of it unused.

qpidd enters a file only when everything written before is on the disk. So does this, and the header precedes the data,
since no reader expects records of a new lap after a header of the old one:

    step 1          the rest of the current file
    step 2, 3       the header of the next file; the data for it
    step 4, 5       the same for each further file

At any time the disk therefore holds a prefix of the stream, and of the rest only what one step wrote in one file. A
single flush may go round the whole ring.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from qstore.formats.rhm.file_header import FileHeader, encode_file_header
from qstore.formats.rhm.geometry import BLOCK_SIZE, DATA_OFFSET, SECTOR_SIZE, Geometry
from qstore.formats.rhm.records import (
    COMMON,
    LAYOUTS,
    OVERWRITE_INDICATOR,
    PADDING,
    TAIL,
    TAIL_SIZE,
    Kind,
    RecordHeader,
    encode_header,
    encode_record,
    version_1_check,
)
from qstore.store.journal.write.step import Step, Write

_FILLER: Final = encode_record(RecordHeader(Kind.FILLER, 1, 0, blocks=1))
_PACK_SIZES: Final = LAYOUTS[1, Kind.ENQUEUE].rest.pack
_ENQUEUE_OVERHEAD: Final = LAYOUTS[1, Kind.ENQUEUE].size + TAIL_SIZE
_ENQUEUE_CHECK: Final = version_1_check(Kind.ENQUEUE)
_ENQUEUE_HEADS: Final = [COMMON.pack(Kind.ENQUEUE, 1, 0, indicator) for indicator in (0, OVERWRITE_INDICATOR)]
_PADDINGS: Final = [PADDING * count for count in range(BLOCK_SIZE)]
_SECTOR_BLOCKS: Final = SECTOR_SIZE // BLOCK_SIZE
_NANOSECONDS: Final = 1_000_000_000


class Version1Ring:
    """The write position of a version-1 journal, its write batch, and the flush under way.

    Args:
        geometry: number and size of the files.
        page: maximum bytes of one write; a multiple of the sector size.
        clock: returns nanoseconds since the epoch, for the file headers.
        position: block where the journal ended. If that is within a sector, fillers are to be written at once.

    Attributes:
        position: block where the next record goes.
        file_blocks: blocks in the data area of each file.
        batch_number: number of the flush of the current batch, from 1.
        synced: number of the last synced flush.
    """

    __slots__ = (
        "_clock",
        "_entered",
        "_files",
        "_headers",
        "_page",
        "_pieces",
        "_start",
        "_steps",
        "_sync_too",
        "_synced_place",
        "_under_way",
        "batch_number",
        "file_blocks",
        "position",
        "synced",
    )

    def __init__(self, geometry: Geometry, *, page: int, clock: Callable[[], int], position: int = 0) -> None:
        if page < SECTOR_SIZE or page % SECTOR_SIZE:
            raise ValueError(f"a page must be a multiple of {SECTOR_SIZE} bytes, not {page}")
        self._files, self.file_blocks = geometry.files, geometry.data_size // BLOCK_SIZE
        self._page, self._clock = page, clock
        self.position = self._start = self._synced_place = position
        self._entered = (position - 1) // self.file_blocks  # the newest file, over all laps; -1 for none
        # The journal's end as recovery read it may be in the page cache only: the first step syncs it too.
        self._sync_too = {self._entered % geometry.files} if position else set()
        self._pieces: list[bytes] = []
        self._headers: dict[int, bytes] = {}
        self._steps: deque[Step] = deque()
        self._under_way = False
        self.batch_number, self.synced = 1, 0
        self._pad()

    # ---- records ----

    @property
    def file(self) -> int:
        """The file, counted over all laps, in which the next record begins."""
        return self.position // self.file_blocks

    def entered_by(self, blocks: int) -> range:
        """The files, counted over all laps, that a record of `blocks` blocks would enter, and thereby overwrite."""
        return range(self._entered + 1, (self.position + blocks - 1) // self.file_blocks + 1)

    def append(self, header: RecordHeader, xid: bytes = b"", data: Sequence[bytes] = ()) -> int:
        """Append a record.

        Args:
            header: its header, without the overwrite indicator.
            xid: its transaction id.
            data: its data, in parts.

        Returns:
            The number of the file in which it begins.
        """
        assert header.stored_size == sum(map(len, data))
        assert header.xid_size == len(xid)
        begins_in, size = self.file, header.size
        indicator = begins_in // self._files & OVERWRITE_INDICATOR
        self._enter_files(size // BLOCK_SIZE, header.rid)
        rest = TAIL.pack(version_1_check(header.kind), header.rid) if header.has_tail else b""
        assert len(rest) in (0, TAIL_SIZE)
        padding = PADDING * (size - header.tail_offset - len(rest))
        self._pieces += (encode_header(header._replace(flags=header.flags | indicator)), xid, *data, rest + padding)
        self.position += size // BLOCK_SIZE
        return begins_in % self._files

    def enqueue(self, rid: int, data: bytes) -> None:
        """Append a message outside of any transaction: as `append`, but faster."""
        position, file_blocks = self.position, self.file_blocks
        size = _ENQUEUE_OVERHEAD + len(data)
        blocks = -(-size // BLOCK_SIZE)
        used = position % file_blocks
        if not used or used + blocks > file_blocks:
            self.append(RecordHeader(Kind.ENQUEUE, 1, 0, rid, 0, len(data)), b"", (data,))
            return
        head = _ENQUEUE_HEADS[position // file_blocks // self._files & OVERWRITE_INDICATOR]
        tail = TAIL.pack(_ENQUEUE_CHECK, rid)
        self._pieces += (head, _PACK_SIZES(rid, 0, len(data)), data, tail, _PADDINGS[-size % BLOCK_SIZE])
        self.position = position + blocks

    def _enter_files(self, blocks: int, rid: int) -> None:
        """Make the headers of the files that the record being appended enters."""
        for index in self.entered_by(blocks):
            rest = self.position + blocks - index * self.file_blocks
            if index * self.file_blocks == self.position:
                first_record_offset = DATA_OFFSET
            else:
                first_record_offset = DATA_OFFSET + rest * BLOCK_SIZE if rest < self.file_blocks else 0
            lap, number = divmod(index, self._files)
            header = FileHeader(
                1,
                lap & OVERWRITE_INDICATOR,
                number,
                first_record_offset,
                *divmod(self._clock(), _NANOSECONDS),
                rid=rid,
                logical_number=number,
            )
            self._headers[index] = encode_file_header(header)
            self._entered = index

    def _pad(self) -> None:
        """Append fillers up to the end of the sector. A file's data area ends with one, so they enter no other file."""
        blocks = -self.position % _SECTOR_BLOCKS
        self._pieces += [_FILLER] * blocks
        self.position += blocks

    # ---- flushes ----

    @property
    def is_dirty(self) -> bool:
        """Whether anything is unsynced."""
        return bool(self._pieces or self._steps or self._under_way)

    @property
    def unsynced(self) -> int:
        """Bytes appended and not known to be on the disk."""
        return (self.position - self._synced_place) * BLOCK_SIZE

    def next_flush(self) -> Step | None:
        """The next step of the flush under way, or the first of the current batch; None if there is none."""
        if self._under_way:
            return None
        if not self._steps:
            if not self._pieces:
                return None
            self._pad()
            content = b"".join(self._pieces)
            self._steps.extend(self._cut(content, self._headers))
            self._pieces, self._headers = [], {}
            self._start = self.position
            self.batch_number += 1
        self._under_way = True
        return self._steps.popleft()

    def flushed(self) -> None:
        """The step is written and synced."""
        assert self._under_way
        self._under_way = False
        if not self._steps:
            self.synced = self.batch_number - 1
            self._synced_place = self._start

    def drop(self) -> None:
        """Discard everything collected or under way."""
        self._steps.clear()
        self._pieces, self._headers = [], {}
        self._under_way = False

    def _cut(self, content: bytes, headers: Mapping[int, bytes]) -> Iterator[Step]:
        """The steps of a flush."""
        assert len(content) == (self.position - self._start) * BLOCK_SIZE
        view, place, at = memoryview(content), self._start, 0
        while place < self.position:
            index, block = divmod(place, self.file_blocks)
            number = index % self._files
            assert (block == 0) == (index in headers)
            if block == 0:
                yield self._step(number, [Write(number, 0, headers[index])])
            end = min(self.position, (index + 1) * self.file_blocks)
            length = (end - place) * BLOCK_SIZE
            yield self._step(number, list(self._slices(number, block * BLOCK_SIZE, view[at : at + length])))
            place, at = end, at + length

    def _step(self, number: int, writes: Sequence[Write]) -> Step:
        files = {number} | self._sync_too
        self._sync_too = set()
        return Step(tuple(writes), tuple(sorted(files)))

    def _slices(self, number: int, begin: int, content: memoryview) -> Iterator[Write]:
        """The writes of `content` at `begin` of a file's data area."""
        at = 0
        while at < len(content):
            count = self._page - (begin + at) % self._page
            yield Write(number, DATA_OFFSET + begin + at, content[at : at + count])
            at += count
