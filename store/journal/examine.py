"""What stands at one place of a journal: a good record, or what is wrong there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from formats.checksum import extend_crc32c
from formats.rhm.errors import RhmError
from formats.rhm.records import (
    LAST_OF_FLUSH,
    MAX_HEADER_SIZE,
    OVERWRITE_INDICATOR,
    SEAL,
    TAIL_SIZE,
    Kind,
    RecordHeader,
    decode_header,
    decode_tail,
    version_1_check,
    version_2_check,
)
from store.journal.stream import JournalStream

MAX_XID_SIZE: Final = 1 << 20  # bytes: a DTX xid has at most 518, a local one 24; more is no record
_CHUNK: Final = 1 << 20


@dataclass(slots=True)
class FlushState:
    """Version 2: which flush the walk is in.

    Attributes:
        number: that of the last good record, 64 bits.
        complete: whether that record was flagged as the last of its flush.
        sealed: whether it was the seal of a clean close.
    """

    number: int = 0
    complete: bool = False
    sealed: bool = False

    def expand(self, low: int) -> int:
        """The 64-bit flush number whose low 32 bits are `low`: the one nearest to the present number."""
        step = (low - self.number) & 0xFFFFFFFF
        return self.number + step if step < 0x80000000 else self.number + step - 0x100000000

    def advance(self, header: RecordHeader) -> None:
        """A good record was read."""
        self.number = self.expand(header.flush)
        self.complete = bool(header.flags & LAST_OF_FLUSH)
        self.sealed = header.kind is Kind.FILLER and bool(header.flags & SEAL)

    @property
    def next_to_break(self) -> int:
        """The flush in which a bad record after the last good one belongs."""
        return self.number + 1 if self.complete else self.number


class Verdict(NamedTuple):
    """What stands at a place.

    Attributes:
        header: the record's header, where one can be read.
        problem: what is wrong; None for a good record of the present lap.
        stale: the record is whole, but of an older lap (version 1) or an older flush (version 2).
        xid: of a good record, its transaction id.
    """

    header: RecordHeader | None
    problem: str | None
    stale: bool = False
    xid: bytes = b""


class Examiner:
    """Verifies single records of one journal.

    Attributes:
        flush: version 2: where the walk is; `examine` compares with it and does not change it.
        bytes_checked: how many bytes of data were checksummed so far.
    """

    def __init__(self, stream: JournalStream, version: int) -> None:
        self.flush = FlushState()
        self.bytes_checked = 0
        self._stream = stream
        self._version = version

    def examine(self, place: int) -> Verdict:
        """What stands at `place`."""
        try:
            header = decode_header(self._stream.read(place, MAX_HEADER_SIZE))
        except RhmError as error:
            return Verdict(None, error.what)
        if header.version != self._version:
            return Verdict(None, f"record of version {header.version} in a journal of version {self._version}")
        if header.xid_size > MAX_XID_SIZE:
            return Verdict(header, f"{header.kind.label} record with an xid of {header.xid_size} bytes")
        if header.size > self._stream.size - place:
            return Verdict(header, f"{header.kind.label} record of {header.size} bytes runs past the journal's end")
        check = self._check_version_1 if self._version == 1 else self._check_version_2
        return check(header, place)

    def _check_version_1(self, header: RecordHeader, place: int) -> Verdict:
        if header.kind is Kind.FILLER:
            return Verdict(header, None)
        if header.has_tail:
            check, rid = decode_tail(self._stream.read_aside(place + header.tail_offset, TAIL_SIZE), 0)
            if check != version_1_check(header.kind) or rid != header.rid:
                return Verdict(header, f"{header.kind.label} record without its tail")
        indicator = self._stream.files[place // self._stream.data_size].overwrite_indicator
        if indicator is not None and header.flags & OVERWRITE_INDICATOR != indicator:
            return Verdict(header, f"{header.kind.label} record of another lap", stale=True)
        return Verdict(header, None, xid=self._stream.read(place + header.header_size, header.xid_size))

    def _check_version_2(self, header: RecordHeader, place: int) -> Verdict:
        file = self._stream.files[place // self._stream.data_size]
        if file.header is None:
            return Verdict(header, "not to be verified: the file's header, which holds the salt, is lost")
        check, rid = decode_tail(self._stream.read_aside(place + header.tail_offset, TAIL_SIZE), 0)
        if rid != header.rid:
            return Verdict(header, f"{header.kind.label} record without its tail")
        head = self._stream.read(place, header.header_size)
        xid = self._stream.read(place + header.header_size, header.xid_size)
        crc = self._data_crc(place + header.header_size + header.xid_size, header.stored_size)
        if check != version_2_check(head, xid, crc, file.header.salt):
            return Verdict(header, f"{header.kind.label} record fails its checksum")
        if self.flush.expand(header.flush) < self.flush.number:
            return Verdict(header, f"{header.kind.label} record of an older flush", stale=True)
        return Verdict(header, None, xid=xid)

    def _data_crc(self, place: int, size: int) -> int:
        self.bytes_checked += size
        crc = 0
        for chunk_place in range(place, place + size, _CHUNK):
            crc = extend_crc32c(crc, self._stream.read(chunk_place, min(_CHUNK, place + size - chunk_place)))
        return crc
