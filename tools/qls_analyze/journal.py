"""One journal: the walk over its records, and the report of what remains."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from qstore.formats.qls.records import SECTOR_SIZE, RecordHeader
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.records import Kind
from qstore.store.disk import Disk
from qstore.tools.console.text import one_line
from qstore.tools.qls_analyze.files import JournalFile, open_stream
from qstore.tools.qls_analyze.maps import WARNED, Counts, Maps
from qstore.tools.qls_analyze.problems import Problems
from qstore.tools.qls_analyze.show import Show
from qstore.tools.qls_analyze.text import (
    NOT_ENQUEUED,
    NOT_OPEN,
    TRUNCATED,
    data_text,
    file_header_text,
    flags_text,
    header_text,
    tail_text,
    xid_text,
)
from qstore.tools.qls_analyze.walk import (
    Event,
    FileEntered,
    Fillers,
    Record,
    Truncated,
    Walk,
    WalkError,
    WrongOffset,
    fillers_to_sector,
)
from qstore.tools.store_chk.maps import OpenTransaction
from qstore.tools.store_chk.text import Read

_COUNT_LABELS = (
    ("Total record count", "records"),
    ("Transient record count", "transient"),
    ("Filler_record_count", "fillers"),
    ("Enqueue_count", "enqueues"),
    ("Dequeue_count", "dequeues"),
    ("Transaction_record_count", "transactional"),
    ("Transaction_enqueue_count", "transactional_enqueues"),
    ("Transaction_dequeue_count", "transactional_dequeues"),
    ("Transaction_commit_count", "commits"),
    ("Transaction_abort_count", "aborts"),
    ("Transaction_operation_count", "operations"),
)


class Journal:
    """One journal.

    Args:
        disk: where to read.
        name: the queue's, or the directory's of the prepared list.
        files: those that were written, by number.
        is_prepared_list: whether it is the transaction prepared list.
        show: what is shown.
        problems: collects problems.

    Attributes:
        name: as displayed.
        maps: the state after the records.
    """

    def __init__(
        self,
        disk: Disk,
        name: str,
        files: Sequence[JournalFile],
        *,
        is_prepared_list: bool,
        show: Show,
        problems: Problems,
    ) -> None:
        self.name = one_line(name)
        self._name_size = len(os.fsencode(name))
        self._files = files
        self._is_prepared_list = is_prepared_list
        self._show = show
        self._problems = problems
        self._stream = open_stream(disk, files)
        self._walk = Walk(self._stream, files)
        self.maps = Maps(len(files), self._stream.index, is_prepared_list=is_prepared_list)

    def close(self) -> None:
        """Close the file descriptor."""
        self._stream.close()

    # ---- the walk ----

    def recover(self) -> Iterator[str]:
        """Walk over the records and yield the lines to print. An error ends the walk and is noted."""
        try:
            for event in self._walk.events():
                yield from self._take(event)
        except WalkError as error:
            self._problems.add(error.where, error.what)
        except OSError as error:
            self._problems.add_os_error(error, self.name)
        if self._show.walked:
            yield from self._missing_fillers()
        self.check_duplicates()

    def check_duplicates(self) -> None:
        """Note the records that were enqueued while another record had their id."""
        duplicates = self.maps.enqueued.duplicates
        for rid, place, _ in duplicates:
            self._problems.add(self._walk.where(place), f"a record with id 0x{rid:x} is enqueued already")
        duplicates.clear()

    def _take(self, event: Event) -> Iterator[str]:
        counts = self.maps.counts
        match event:
            case FileEntered():
                if self._show.walked:
                    file = self._files[event.file]
                    yield f"0x{file.number:x}:0x00000000: {file_header_text(file.header)}"
            case Fillers():
                counts.records += event.blocks
                counts.fillers += event.blocks
                if self._show.fillers:
                    text = header_text(RecordHeader(Kind.FILLER))
                    for number in range(event.blocks):
                        yield f"{self._where(event.place + number * BLOCK_SIZE)}: {text}"
            case Record():
                counts.records += 1
                fits = not event.is_valid or self.maps.apply(event.header, event.place, self._xid(event))
                if self._show.walked:
                    yield self._record_text(event) + ("" if fits else _warning(event.header))
            case Truncated():
                counts.records += 1
                if self._show.walked:
                    yield self._truncated_text(event)
            case WrongOffset():
                yield self._wrong_offset_text(event)

    # ---- records as text ----

    def _where(self, place: int) -> str:
        return f"0x{self._files[self._stream.index(place)].number:x}:0x{self._stream.locate(place)[1]:08x}"

    def _xid(self, record: Record | Truncated) -> Read:
        begin = record.place + record.header.header_size
        return lambda offset, length: self._stream.read_aside(begin + offset, length)

    def _data(self, record: Record) -> Read:
        begin = record.place + record.header.header_size + record.header.xid_size
        return lambda offset, length: self._stream.read_aside(begin + offset, length)

    def _record_text(self, record: Record) -> str:
        header, show = record.header, self._show
        parts = [f"{self._where(record.place)}: {header_text(header)}"]
        xid = xid_text(self._xid(record), header.xid_size, whole=show.xids)
        if header.kind is Kind.ENQUEUE:
            size = header.data_size
            stored = header.stored_size == size
            data = data_text(
                self._data(record), size, content=show.data and stored, test_text=show.test_texts and stored
            )
            parts += [xid, data]
        elif header.kind is Kind.DEQUEUE:
            parts += [f"drid=0x{header.dequeued_rid:x}", xid]
        else:
            parts.append(xid)
        parts.append(tail_text(header, record.tail))
        if header.kind in (Kind.ENQUEUE, Kind.DEQUEUE):
            parts.append(flags_text(header, is_prepared_list=self._is_prepared_list))
        return " ".join(parts) + " "

    def _truncated_text(self, record: Truncated) -> str:
        header = record.header
        sizes = f"xid({header.xid_size})"
        if header.kind is Kind.ENQUEUE:
            sizes += f" data({header.data_size})"
        elif header.kind is Kind.DEQUEUE:
            sizes += f" drid=0x{header.dequeued_rid:x}"
        return f"{self._where(record.place)}: {header_text(header)} {sizes} {TRUNCATED}"

    def _wrong_offset_text(self, event: WrongOffset) -> str:
        header = self._files[event.file].header
        expected = header.first_record_offset
        return (
            f'0x{expected:08x}: **** FRO ERROR: queue="{one_line(header.queue_name)}" fid=0x{header.file_number:x}'
            f" fro actual=0x{event.actual:08x} expected=0x{expected:08x}"
        )

    def _missing_fillers(self) -> Iterator[str]:
        """Number of fillers that a writer must append before it continues."""
        end = self._walk.end
        if end is None:
            return
        offset = self._stream.locate(end)[1]
        if count := fillers_to_sector(offset):
            aligned = offset + -offset % SECTOR_SIZE
            yield f"{self._where(end)}: {count} filler records required for DBLK alignment to 0x{aligned:08x}"

    # ---- the report ----

    def transaction_text(self, transaction: OpenTransaction) -> str:
        """A transaction's id. Raises WalkError, OSError if it cannot be read any more."""
        record = self._walk.record_at(transaction.places[0])
        return xid_text(self._xid(record), record.header.xid_size)

    def report(self) -> Iterator[str]:
        """The report of what remains.

        Raises:
            WalkError: the journal is being written to.
            OSError: a file cannot be read.
        """
        yield f'Journal "{self.name}":'
        yield "=" * (self._name_size + 11)
        if self._show.counts:
            yield from _count_lines(self.maps.counts)
        yield from self._enqueued_lines()
        yield from self._transaction_lines()
        yield "file_num enq_cnt p_no   efp journal_file"
        yield "-------- ------- ---- ----- ------------"
        for file, count in zip(self._files, self.maps.in_file, strict=True):
            header = file.header
            number, size = f"0x{file.number:x}", header.data_size >> 10
            yield f"{number:>8} {count:7d} {header.partition:4d} {size:4d}k {one_line(file.name)} "
        yield from self._missing_fillers()
        yield ""

    def _enqueued_lines(self) -> Iterator[str]:
        enqueued = self.maps.enqueued
        if not len(enqueued):
            yield "No enqueued records found."
            return
        yield f"{len(enqueued)} enqueued records found{':' if self._show.recovered else '.'}"
        if self._show.recovered:
            locked = self.maps.locked()
            for rid, place, _ in enqueued.in_rid_order():
                text = self._record_text(self._walk.record_at(place))
                yield f"  {text} [LOCKED]" if rid in locked else f"  {text}"

    def _transaction_lines(self) -> Iterator[str]:
        transactions = self.maps.transactions
        if not transactions:
            yield "No outstanding transactions found."
            return
        yield f"{len(transactions)} outstanding transaction(s){':' if self._show.recovered else '.'}"
        if not self._show.recovered:
            return
        for transaction in transactions.values():
            yield f"  {self.transaction_text(transaction)} containing {len(transaction.places)} operations:"
            for place, _, marks in transaction.operations():
                record = self._walk.record_at(place)
                warning = _warning(record.header) if marks & WARNED else ""
                yield f"    {self._record_text(record)}{warning}"


def _warning(header: RecordHeader) -> str:
    """The warning about a record that contradicts earlier ones."""
    return NOT_ENQUEUED if header.kind is Kind.DEQUEUE else NOT_OPEN


def _count_lines(counts: Counts) -> Iterator[str]:
    for label, field in _COUNT_LABELS:
        yield f"{label}: {getattr(counts, field)}"
    yield ""
