"""Version 2: restores the salt of a file whose header is lost from the checksums of its records.

A record's checksum is continued over the salt of the file in which it begins. CRC-32C is linear, so for any record the
salt adds the same 32 bits to a checksum that is continued over zeros instead. Two records of a file that agree on these
32 bits prove them: by chance they do so once in four thousand million times. Any salt that adds them will do, and one
is calculated.

A message may contain forged records that agree on other bits. They lie within another record and do not count; nor do
bits that are not unique, as when records from the file's previous use follow the current ones. Then the file stays
unreadable; so it does if no order of the files fits the flush numbers and record ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from qstore.formats.checksum import extend_crc32c
from qstore.formats.errors import RhmError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.file_header import FileHeader
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.records import (
    MAGIC_PREFIX,
    MAX_HEADER_SIZE,
    SALT,
    TAIL_SIZE,
    RecordHeader,
    decode_header,
    decode_tail,
)
from qstore.store.damage import Effect
from qstore.store.journal.files import JournalFormat
from qstore.store.journal.journal import Journal
from qstore.store.journal.records import MAX_XID_SIZE
from qstore.store.journal.ring.files import Ring, RingFile
from qstore.store.journal.stream import JournalStream

_ZEROS: Final = SALT.pack(0)
_CHUNK: Final = 1 << 20
_MIN_AGREEING: Final = 2  # records that must agree
_SAMPLE: Final = 4096  # maximum records examined in a file
_WORK: Final = 4  # maximum multiple of a file's bytes to checksum
#: The effects of a lost or ignored file header that are resolved when the salt is restored.
_FOUND: Final = {Effect.SALT_LOST: Effect.SALT_FOUND, Effect.SALT_NOT_TRUSTED: Effect.NAME_TRUSTED_ONLY}


class _Candidate(NamedTuple):
    """Something that looks like a record: its log offset, and the bits that a salt must add if it is one."""

    place: int
    end: int
    added: int
    flush: int


def restore_salts(journal: Journal) -> None:
    """Create new headers for files of a journal whose headers are lost, with the salts derived from their records."""
    ring = journal.files
    if journal.format is not JournalFormat.VERSION_2 or not isinstance(ring, Ring):
        return
    files = ring.files
    known = [file.header.first_flush for file in files if file.header is not None]
    if not known:
        return
    restored = {
        index: header
        for index, file in enumerate(files)
        if file.header is None and file.size > 0 and file.used and (header := _restored(journal, index, file, known[0]))
    }
    rotation = _rotation([_first(journal, index, restored.get(index, file.header)) for index, file in enumerate(files)])
    if not restored or rotation is None or (rotation and journal.stream.has_unreadable):
        return
    for index, header in restored.items():
        files[index].header = header
        for place, damage in enumerate(journal.damage):
            if damage.file == files[index].path and damage.effect in _FOUND:
                journal.damage[place] = damage.with_effect(_FOUND[damage.effect])
    if rotation:
        files[:] = [*files[rotation:], *files[:rotation]]
        journal.stream.close()  # its buffered data are at other offsets now


def _first(journal: Journal, index: int, header: FileHeader | None) -> tuple[int, int] | None:
    """First flush number and first record id of a file; None if unknown."""
    if header is None:
        return None
    stream = journal.stream
    place = index * stream.data_size + header.first_record_offset - stream.geometry.header_size
    try:
        return header.first_flush, decode_header(stream.read_aside(max(place, 0), MAX_HEADER_SIZE)).rid
    except RhmError:
        return header.first_flush, 0


def _rotation(firsts: list[tuple[int, int] | None]) -> int | None:
    """The index of the oldest file: from it on flush numbers do not decrease, and record ids do so least often.

    None: there is no such file.
    """
    best, fewest = None, len(firsts)
    for rotation in range(len(firsts)):
        known = [first for first in (*firsts[rotation:], *firsts[:rotation]) if first is not None]
        if any(before[0] > after[0] for before, after in pairwise(known)):
            continue
        back = sum(before[1] > after[1] for before, after in pairwise(known))
        if back < fewest:
            best, fewest = rotation, back
    return best


def _restored(journal: Journal, index: int, file: RingFile, near: int) -> FileHeader | None:
    """The header of a file, as far as its records show it; `near` is a flush number of the same journal."""
    records = _agreeing(_candidates(journal.stream, index, file))
    if not records:
        return None
    first = records[0]
    step = (first.flush - near) & 0xFFFFFFFF
    flush = near + step if step < 0x80000000 else near + step - 0x100000000
    offset = journal.stream.locate(first.place)[1]
    return FileHeader(2, 0, file.number, offset, first_flush=flush, salt=_salt_that_adds(first.added))


def _candidates(stream: JournalStream, index: int, file: RingFile) -> list[_Candidate]:
    """Everything that looks like a record in a file, in order."""
    begin = index * stream.data_size
    end = begin + min(stream.data_size, file.size - stream.geometry.header_size)
    budget = _WORK * (end - begin)
    found: list[_Candidate] = []
    for place in _blocks_with_magic(stream, begin, end):
        header = _plausible(stream, place)
        if header is not None:
            budget -= header.size
            found.append(_Candidate(place, place + header.size, _added(stream, place, header), header.flush))
        if len(found) >= _SAMPLE or budget < 0:
            break
    return found


def _blocks_with_magic(stream: JournalStream, begin: int, end: int) -> Iterator[int]:
    for part in range(begin, end, _CHUNK):
        content = stream.read(part, min(_CHUNK, end - part))
        at = content.find(MAGIC_PREFIX)
        while at >= 0:
            if not (part + at) % BLOCK_SIZE:
                yield part + at
            at = content.find(MAGIC_PREFIX, at + 1)


def _plausible(stream: JournalStream, place: int) -> RecordHeader | None:
    """The header of something that looks like a record of version 2 with its tail."""
    try:
        header = decode_header(stream.read(place, MAX_HEADER_SIZE))
    except RhmError:
        return None
    if header.version != 2 or header.xid_size > MAX_XID_SIZE or header.size > stream.size - place:
        return None
    _, rid = decode_tail(stream.read_aside(place + header.tail_offset, TAIL_SIZE), 0)
    return header if rid == header.rid else None


def _added(stream: JournalStream, place: int, header: RecordHeader) -> int:
    """The bits that the salt must add to the checksum of the record at `place`."""
    xid_at = place + header.header_size
    data_at = xid_at + header.xid_size
    crc = 0
    for at in range(data_at, data_at + header.stored_size, _CHUNK):
        crc = extend_crc32c(crc, stream.read_aside(at, min(_CHUNK, data_at + header.stored_size - at)))
    xid = stream.read_aside(xid_at, header.xid_size) if header.xid_size else b""
    crc = extend_crc32c(crc, xid + stream.read_aside(place, header.header_size) + _ZEROS)
    check, _ = decode_tail(stream.read_aside(place + header.tail_offset, TAIL_SIZE), 0)
    return check ^ crc


def _agreeing(candidates: list[_Candidate]) -> list[_Candidate]:
    """The records, if they prove exactly one salt."""
    votes = Counter(each.added for each in candidates)
    outermost = []
    outer: _Candidate | None = None
    for each in candidates:
        if votes[each.added] < _MIN_AGREEING:
            continue
        if outer is not None and each.place < outer.end:
            continue  # within a message
        outermost.append(each)
        outer = each
    left = Counter(each.added for each in outermost)
    proved = [added for added, count in left.items() if count >= _MIN_AGREEING]
    return [each for each in outermost if each.added == proved[0]] if len(proved) == 1 and len(left) == 1 else []


def _salt_that_adds(added: int) -> int:
    """A 32-bit salt that adds exactly these bits: Gaussian elimination over the bits that each of its bits adds."""
    at_zero = extend_crc32c(0, _ZEROS)
    rows: dict[int, tuple[int, int]] = {}  # highest bit -> the bits added, and the bits of the salt that add them
    for bit in range(32):
        value, bits = extend_crc32c(0, SALT.pack(1 << bit)) ^ at_zero, 1 << bit
        value, bits = _reduced(rows, value, bits)
        rows[value.bit_length()] = (value, bits)
    rest, salt = _reduced(rows, added, 0)
    assert rest == 0
    return salt


def _reduced(rows: dict[int, tuple[int, int]], value: int, bits: int) -> tuple[int, int]:
    while value and value.bit_length() in rows:
        row, row_bits = rows[value.bit_length()]
        value, bits = value ^ row, bits ^ row_bits
    return value, bits
