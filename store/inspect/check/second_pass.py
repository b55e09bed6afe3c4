"""A second pass over a journal, record by record, with different checksum code and a check of the padding.

The first pass reads plain records in runs, with a fast CRC-32C or zlib's Adler-32. Here each record is examined
separately, its checksum is computed again by an independent implementation, and a second index is built. Differences
between the two passes are reported, so that no single piece of code has to be trusted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate, zip_longest
from typing import Any, Final

from qstore.formats.checksum import independent_crc32c
from qstore.formats.qls.records import TAIL_SIZE as LINEAR_TAIL_SIZE
from qstore.formats.qls.records import decode_tail as decode_linear_tail
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.records import SALT, TAIL_SIZE, Kind, decode_tail, is_padding
from qstore.store.damage import Damage, DamageKind
from qstore.store.inspect.offline import RecoveredQueue
from qstore.store.journal.files import JournalFile, JournalFormat
from qstore.store.journal.journal import Journal
from qstore.store.journal.records import RecordHeader
from qstore.store.journal.recovery import JournalRecovery, Outcome
from qstore.store.journal.ring.files import RingFile

_CHUNK: Final = 1 << 16
_ADLER_BASE: Final = 65521


class SecondReading(JournalRecovery):
    """A `RecordSink` that verifies each record again and builds a separate index.

    Args:
        journal: the journal that is walked.
    """

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self.found: list[Damage] = []
        self._journal = journal
        self._last_padding: Damage | None = None  # of the previous record: the very last one may be torn

    def record(self, header: RecordHeader, place: int, xid: bytes) -> None:
        """One record."""
        super().record(header, place, xid)
        if self._last_padding is not None:
            self.found.append(self._last_padding)
            self._last_padding = None
        file, offset = self._journal.stream.locate(place)
        if self._journal.format is JournalFormat.VERSION_2:
            self._check_crc(file, offset, header, place)
        elif self._journal.format is JournalFormat.LINEAR and header.has_tail:
            self._check_adler(file, offset, header, place)
        self._check_padding(file, offset, header, place)

    def damaged(self, _damage: Damage) -> None:
        """Ignore damage: the first pass has reported it."""

    def _check_crc(self, file: JournalFile[Any], offset: int, header: RecordHeader, place: int) -> None:
        assert isinstance(file, RingFile)
        assert file.header is not None  # otherwise no record of the file could be read
        stream = self._journal.stream
        head = stream.read(place, header.header_size + header.xid_size)
        head, xid = head[: header.header_size], head[header.header_size :]
        crc = 0
        for chunk in self._chunks(place + header.header_size + header.xid_size, place + header.tail_offset):
            crc = independent_crc32c(chunk, crc)
        crc = independent_crc32c(xid + head + SALT.pack(file.header.salt), crc)
        check, _ = decode_tail(stream.read(place + header.tail_offset, TAIL_SIZE), 0)
        if check != crc:
            self._disagree(file, offset, header, check, crc)

    def _check_adler(self, file: JournalFile[Any], offset: int, header: RecordHeader, place: int) -> None:
        tail = decode_linear_tail(self._journal.stream.read(place + header.tail_offset, LINEAR_TAIL_SIZE))
        low, high = 1, 0
        for chunk in self._chunks(place, place + header.tail_offset):
            high = (high + len(chunk) * low + sum(accumulate(chunk))) % _ADLER_BASE
            low = (low + sum(chunk)) % _ADLER_BASE
        checksum = high << 16 | low
        # If the writer had to wait within a record, its checksum covers only a part; the first pass noted it.
        if tail.checksum != checksum and place not in self._journal.continued:
            self._disagree(file, offset, header, tail.checksum, checksum)

    def _check_padding(self, file: JournalFile[Any], offset: int, header: RecordHeader, place: int) -> None:
        tail_size = LINEAR_TAIL_SIZE if self._journal.format is JournalFormat.LINEAR else TAIL_SIZE
        used = header.tail_offset + (tail_size if header.has_tail else 0)
        if header.kind is Kind.FILLER:
            used = min(used, BLOCK_SIZE)
        last_block = header.size - BLOCK_SIZE
        rest = self._journal.stream.read(place + last_block, BLOCK_SIZE)[max(used - last_block, 0) :]
        if not is_padding(rest):
            kind, record = DamageKind.PADDING, header.kind.label
            self._last_padding = Damage(file.path, offset + used, header.rid, kind, record=record)

    def _disagree(
        self, file: JournalFile[Any], offset: int, header: RecordHeader, recorded: int, computed: int
    ) -> None:
        kind, record = DamageKind.CHECKSUMS_DISAGREE, header.kind.label
        damage = Damage(file.path, offset, header.rid, kind, record=record, recorded=recorded, computed=computed)
        self.found.append(damage)

    def _chunks(self, place: int, end: int) -> Iterator[bytes]:
        for start in range(place, end, _CHUNK):
            yield self._journal.stream.read(start, min(_CHUNK, end - start))


def second_pass(queue: RecoveredQueue, outcomes: Mapping[bytes, Outcome] | None) -> list[Damage]:
    """Read a recovered journal again; returns damage, and differences from the first pass.

    Args:
        queue: the recovered queue.
        outcomes: outcomes of the open transactions; None for the prepared list itself, which keeps its own open.
    """
    journal, first = queue.journal, queue.recovery
    if journal is None or first is None:
        return []
    second = SecondReading(journal)
    journal.walk(second, every_record=True)
    journal.notices.clear()  # they are those of the first pass
    if outcomes is not None:
        second.resolve(outcomes)
    counts = [(reading.enqueues, reading.dequeues, reading.commits, reading.aborts) for reading in (first, second)]
    if counts[0] != counts[1]:
        one, other = map(str, counts)
        second.found.append(Damage(journal.path, None, None, DamageKind.COUNTS_DISAGREE, first=one, second=other))
    if any(a != b for a, b in zip_longest(first.messages.in_rid_order(), second.messages.in_rid_order())):
        second.found.append(Damage(journal.path, None, None, DamageKind.MESSAGES_DISAGREE))
    return second.found
