"""Runs of plain records: the hot part of recovery.

Most records of a journal are enqueues and dequeues outside of any transaction. These two loops take those straight
from the stream's window, one `unpack_from` for the header and one for the tail, and stop at the first record that is
anything else, or not whole in the window, or not good; `Examiner` then says what it is.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from formats.checksum import extend_crc32c
from formats.rhm.geometry import BLOCK_SIZE
from formats.rhm.records import LAST_OF_FLUSH, MAX_HEADER_SIZE, SALT, TAIL, TAIL_SIZE, Kind, version_1_check
from store.journal.examine import FlushState
from store.journal.stream import JournalStream

_LEAST_WINDOW: Final = 8192  # bytes ahead that make looking into the window worthwhile

# The common part of a header as one number, then what follows it in an enqueue or dequeue.
_VERSION_1: Final = struct.Struct("<QQQQ")
_VERSION_2: Final = struct.Struct("<QQIIQ")
_MAGIC_MASK: Final = 0xFFFFFFFF
_LAST: Final = LAST_OF_FLUSH << 48

_ENQUEUE_2: Final = Kind.ENQUEUE | 2 << 32
_DEQUEUE_2: Final = Kind.DEQUEUE | 2 << 32


def run_version_1(
    stream: JournalStream,
    place: int,
    file_end: int,
    indicator: int,
    enqueue: Callable[[int, int], None],
    dequeue: Callable[[int, int], None],
) -> int:
    """Take plain version-1 records from `place` on.

    Args:
        stream: the journal's bytes.
        place: where the first record header stands.
        file_end: where the present file ends; headers beyond are not looked at.
        indicator: the overwrite indicator of the file's records.
        enqueue: called with rid and place.
        dequeue: called with the record's own rid and the rid that it removes.

    Returns:
        The place of the first record that was not taken.
    """
    window, at = stream.window(place, _LEAST_WINDOW)
    base = place - at
    length = len(window)
    stop = min(file_end - base, length - MAX_HEADER_SIZE + 1)
    enqueue_head = Kind.ENQUEUE | 1 << 32 | indicator << 48
    dequeue_head = Kind.DEQUEUE | 1 << 32 | indicator << 48
    filler, enqueue_check = int(Kind.FILLER), version_1_check(Kind.ENQUEUE)
    unpack_header, unpack_tail = _VERSION_1.unpack_from, TAIL.unpack_from
    while at < stop:
        head, rid, first, second = unpack_header(window, at)
        if head == enqueue_head and not first:
            tail = at + 32 + second
            after = (tail + TAIL_SIZE + BLOCK_SIZE - 1) & -BLOCK_SIZE
            if after > length or unpack_tail(window, tail) != (enqueue_check, rid):
                break
            enqueue(rid, base + at)
            at = after
        elif head == dequeue_head and not second:
            dequeue(rid, first)
            at += BLOCK_SIZE
        elif head & _MAGIC_MASK == filler:
            at += BLOCK_SIZE
        else:
            break
    return base + at


def run_version_2(
    stream: JournalStream,
    place: int,
    file_end: int,
    flush: FlushState,
    enqueue: Callable[[int, int], None],
    dequeue: Callable[[int, int], None],
) -> int:
    """Take plain version-2 records from `place` on, and move `flush` along; arguments and result as `run_version_1`."""
    header = stream.files[place // stream.data_size].header
    if header is None:
        return place
    window, at = stream.window(place, _LEAST_WINDOW)
    base = place - at
    length = len(window)
    stop = min(file_end - base, length - MAX_HEADER_SIZE + 1)
    salt = SALT.pack(header.salt)
    unpack_header, unpack_tail, extend = _VERSION_2.unpack_from, TAIL.unpack_from, extend_crc32c
    number, last_head = flush.number, 0
    low = number & 0xFFFFFFFF
    while at < stop:
        head, rid, xid_size, record_flush, datum = unpack_header(window, at)
        kind = head & ~_LAST
        data = tail = at + 32
        if kind == _ENQUEUE_2:
            tail += datum
        elif kind != _DEQUEUE_2:
            break
        after = (tail + TAIL_SIZE + BLOCK_SIZE - 1) & -BLOCK_SIZE
        if xid_size or after > length:
            break
        crc = extend(extend(0, window[data:tail]), window[at:data] + salt)
        if unpack_tail(window, tail) != (crc, rid):
            break
        if record_flush != low:
            step = (record_flush - low) & 0xFFFFFFFF
            if step >= 0x80000000:
                break
            number, low = number + step, record_flush
        if kind == _ENQUEUE_2:
            enqueue(rid, base + at)
        else:
            dequeue(rid, datum)
        last_head = head
        at = after
    if last_head:
        flush.number, flush.complete, flush.sealed = number, bool(last_head & _LAST), False
    return base + at
