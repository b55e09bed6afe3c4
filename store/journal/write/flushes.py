"""The closed flushes of a version-2 journal, and the steps that write them to disk, one after another.

A flush is the bytes of its records, contiguous, from the log offset where it starts. It is one step; but a file's
header must be synced before any data goes into that file, so each file that the flush enters adds a step:

    step 1    the rest of the current file, and the header of the next
    step 2    the data for that file, and the header of the file after it, and so on

A flush that begins with a new file has only that file's header in its first step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from qstore.formats.rhm.geometry import BLOCK_SIZE, DATA_OFFSET, Geometry
from qstore.store.journal.write.file_ring import FileRing
from qstore.store.journal.write.step import Pieces, Step, Write


@dataclass(slots=True)
class Flush:
    """A flush that is closed and not yet synced.

    Attributes:
        number: its number, 64 bits.
        start: log offset, in blocks of the endless stream, where it begins.
        end: log offset after it.
        pieces: its bytes.
        headers: file, counted over all laps -> log offset and header of each file that it enters.
        placed: file, counted over all laps -> messages in it that `RingSpace` does not count yet.
        removed: the live records, packed, that are released when it is synced.
    """

    number: int
    start: int
    end: int
    pieces: list[bytes]
    headers: dict[int, tuple[int, bytes]]
    placed: dict[int, int]
    removed: list[int]

    @property
    def content(self) -> bytes:
        """Its bytes, joined."""
        content = b"".join(self.pieces)
        assert len(content) == (self.end - self.start) * BLOCK_SIZE
        return content


class FlushQueue:
    """The closed flushes that are not yet synced. One step is under way at a time.

    Args:
        geometry: the size of the files.
        ring: their order.
        page: maximum bytes of one write.
        synced: number of the last synced flush; 0 for none.
        place: log offset where it ends.

    Attributes:
        synced: number of the last synced flush.
        synced_place: log offset where it ends, and unsynced data begins.
        in_flight: the flush whose steps are being issued; None between flushes.
        is_under_way: whether a step was issued that is not yet synced.
    """

    __slots__ = (
        "_file",
        "_page",
        "_ring",
        "_steps",
        "_waiting",
        "in_flight",
        "is_under_way",
        "synced",
        "synced_place",
    )

    def __init__(self, geometry: Geometry, ring: FileRing, *, page: int, synced: int, place: int) -> None:
        self._ring, self._file, self._page = ring, geometry.data_size // BLOCK_SIZE, page
        self.synced, self.synced_place = synced, place
        self.in_flight: Flush | None = None
        self.is_under_way = False
        self._waiting: deque[Flush] = deque()
        self._steps: deque[Step] = deque()

    @property
    def is_empty(self) -> bool:
        """Whether every closed flush is synced."""
        return self.in_flight is None and not self._waiting

    @property
    def last(self) -> int:
        """Number of the last closed flush."""
        if self._waiting:
            return self._waiting[-1].number
        return self.synced if self.in_flight is None else self.in_flight.number

    def add(self, flush: Flush) -> None:
        """Add a closed flush."""
        self._waiting.append(flush)

    def holding(self, place: int) -> Flush:
        """The flush that contains a log offset, which is not synced."""
        closed = self._waiting if self.in_flight is None else (self.in_flight, *self._waiting)
        return next(flush for flush in closed if place < flush.end)

    def next_step(self) -> Step | None:
        """Issue the next step; None if there is none, or one is under way."""
        if self.is_under_way:
            return None
        if self.in_flight is None:
            if not self._waiting:
                return None
            self.in_flight = self._waiting.popleft()
            self._steps = deque(steps(self.in_flight, self._ring, self._file, self._page))
        self.is_under_way = True
        return self._steps.popleft()

    def step_synced(self) -> Flush | None:
        """The step under way is synced. Returns its flush, if it was the last step of it."""
        flush = self.in_flight
        assert self.is_under_way
        assert flush is not None
        self.is_under_way = False
        if self._steps:
            return None
        self.in_flight = None
        self.synced, self.synced_place = flush.number, flush.end
        return flush

    def step_lost(self) -> None:
        """The fate of the step under way, if any, is unknown."""
        self.is_under_way = False


def steps(flush: Flush, ring: FileRing, file_blocks: int, page: int) -> Iterator[Step]:
    """The steps of a flush.

    Args:
        flush: the flush to write.
        ring: the order of the files.
        file_blocks: blocks of data area in each.
        page: maximum bytes of one write.
    """
    size = (flush.end - flush.start) * BLOCK_SIZE
    if len(flush.pieces) > 1 and size <= page:
        index, block = divmod(flush.start, file_blocks)
        if block and (flush.end - 1) // file_blocks == index:
            number = ring.number(index)
            yield Step((Write(number, DATA_OFFSET + block * BLOCK_SIZE, Pieces(flush.pieces, size)),), (number,))
            return
    writes: list[Write] = []
    touched: dict[int, None] = {}
    content, at, place = memoryview(flush.content), 0, flush.start
    while place < flush.end:
        index, block = divmod(place, file_blocks)
        number = ring.number(index)
        header = flush.headers.get(index) if block == 0 else None
        if header is not None:
            writes.append(Write(number, *header))
            touched[number] = None
            yield Step(tuple(writes), tuple(touched))
            writes, touched = [], {}
        end = min(flush.end, (index + 1) * file_blocks)
        stop = at + (end - place) * BLOCK_SIZE
        offset = DATA_OFFSET + block * BLOCK_SIZE
        while at < stop:
            count = min(page, stop - at)
            writes.append(Write(number, offset, content[at : at + count]))
            at += count
            offset += count
        touched[number] = None
        place = end
    yield Step(tuple(writes), tuple(touched))
