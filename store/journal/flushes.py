"""From what a journal writer gathered to the steps that bring it onto disk.

A flush is the bytes of its records, one after another, from the place where it starts. Cut into files, it is one step;
but a file's header must be synced before any data goes into that file, so each file that the flush enters makes one
step more:

    step 1    the rest of the present file, and the header of the next
    step 2    what goes into that file, and the header of the one after it, and so on

A flush that begins with a new file has only that file's header in its first step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from formats.rhm.geometry import BLOCK_SIZE, DATA_OFFSET
from store.journal.step import Step, Write


@dataclass(slots=True)
class Flush:
    """A flush that is complete and not yet synced.

    Attributes:
        number: its number, 64 bits.
        start: the place, in blocks of the endless stream, where it begins.
        end: the place behind it.
        content: its bytes.
        headers: file, counted over all laps -> the header of each file that it enters, after the place where it goes.
        removed: the live records, packed, that are no longer live when it is synced.
    """

    number: int
    start: int
    end: int
    content: bytes
    headers: dict[int, tuple[int, bytes]]
    removed: list[int]


def steps(flush: Flush, files: int, file_blocks: int, page: int) -> Iterator[Step]:
    """The steps of a flush.

    Args:
        flush: what is to be written.
        files: number of files in the ring.
        file_blocks: blocks of data area in each.
        page: bytes that one write has at most.
    """
    writes: list[Write] = []
    touched: dict[int, None] = {}
    content, at, place = memoryview(flush.content), 0, flush.start
    while place < flush.end:
        index, block = divmod(place, file_blocks)
        number = index % files
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
