r"""`qpid-qls-analyze`: show the journals of a linearstore; a drop-in replacement for Apache's command.

It reads the journals of a linearstore and shows what remains: the messages that were enqueued and not dequeued, the
transactions that were neither committed nor aborted, and what qpidd's recovery would do about these. The output is the
original's, byte for byte. The journals' bytes come from `store.journal.stream`, and records are validated by
`store.journal.line.records`; but a journal ends, as in the original and in qpidd itself, at the first record that is
torn or belongs to another life of the file. `qstore-dump` and `qstore-check` report more, and read on after damage; use
them to examine a store after a crash.

Exit codes: 0 the store was read, whatever remains in it; 1 something in it could not be read, or contradicts itself;
2 usage. Long options may be abbreviated, as in the original.

Where the output differs from the original's, and why:

    - A record whose tail, or whose rest, is in the next files is completed. The original never completes a tail that is
      split over two files, and skips every file that a record fills from beginning to end; there it assumes the end of
      the journal, or continues with one file too few.
    - A file whose time happens to have 0 nanoseconds is a file like any other.
    - Where the original prints a Python object, the record's header is printed; where it prints 'None', because
      --txtest found no text, what is printed without that option. A text without a terminating NUL extends to the end
      of the data; control characters are written `\xx`, in names `\xNN`.
    - External records are shown, without their data, which is elsewhere. `*EXTERNAL]` is as in the original.
    - A queue whose name has slashes has a directory of directories. The original shows the first of these as an
      empty journal; here the queue is shown. Files among the queues' directories, on which it fails, are skipped.
    - The links of a journal's directory may be broken: the files are found by their names among the store's own, even
      if the links lead to others.
    - Open transactions, in the original in a dictionary's arbitrary order, and pools, in a directory's, are sorted by
      their first records and by size.
    - A record is locked while an open transaction dequeues it. The original may leave one locked forever that two
      transactions dequeued, or one before the commit of its enqueue, or may fail.
    - If two dequeues of one transaction are in the prepared list, one with an abort decides; the original fails.
    - A file header among the records ends the journal; the original takes it for a filler. A first record offset that
      is not at a block is reported, and not followed.
    - A transaction id of more than 1024 bytes, which no client can create, is cut in the middle; a record with one of
      more than 1 MiB is invalid.
    - A partition is read whatever its permissions: the original refuses one that its group may not read, and reports a
      missing permission to write, which is not needed. One without pools is empty, not an error. Of a pool's files in
      use and returned only those named like a journal file count; a waiting file counts whatever first record offset
      its former use left in the header, as in qpidd.

Where the original ends in a traceback, or ignores a file that it cannot use, there is one line on standard error,
everything else is still printed, and the exit code is 1. A torn record, or one with another serial, is not such a case:
that is how a journal ends after a crash. A first record that is not where its file's header says is reported as by the
original, and leaves the exit code 0 as there. A directory that is not a linearstore is a usage error; the original
shows an empty report. The version is printed on standard output.
"""

from __future__ import annotations

import os
import posixpath
import re
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from qstore.formats.errors import QlsError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.qls.file_header import (
    DATA_OFFSET,
    FILE_HEADER_SIZE,
    KIB,
    NAME_OFFSET,
    FileHeader,
    decode_file_header,
    linear_geometry,
)
from qstore.formats.qls.records import (
    COMMON,
    HEADER_SIZES,
    MAGICS,
    MAX_HEADER_SIZE,
    SECTOR_SIZE,
    TAIL_SIZE,
    VERSION,
    RecordHeader,
    Tail,
    decode_header,
    decode_tail,
)
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.records import COMMIT_DECISION, EXTERNAL, TRANSIENT, Kind
from qstore.store.disk import Disk, OsDisk
from qstore.store.inspect.layout import StoreKind, StoreLayout, find_journals
from qstore.store.journal.line.files import PARTITION_NAME, FilePool, LinearFile, PooledFile, read_file_pool
from qstore.store.journal.line.records import LinearRecords
from qstore.store.journal.recovery import EnqueueMap
from qstore.store.journal.stream import JournalStream
from qstore.tools.console.command import EXIT_FAILED
from qstore.tools.console.text import one_line
from qstore.tools.drop_in import (
    ENQUEUE,
    JournalWalk,
    OpenTransaction,
    Read,
    Transactions,
    Xid,
    rendering_of,
    run_drop_in,
    time_text,
    xid_key,
)

NAME: Final = "qpid-qls-analyze"
COMMAND_VERSION: Final = "1.0"  # of the original

_EPILOG: Final = """
Examples:
  qpid-qls-analyze /var/lib/qpidd/qls
  qpid-qls-analyze --show-recovered-recs --txn /var/lib/qpidd/qls
  qpid-qls-analyze --efp --stats /tmp/copied-store/qls

Nothing is ever written to the store. In a copy of a store, whose links are
broken, the files are found by their names. For decoded messages and damage
see qstore-dump and qstore-check.

Exit codes: 0 everything was read, 1 something could not be read, 2 unusable
options or no such store.
"""

_OPTIONS: Final = (
    ("--efp", "pools", "analyze the empty file pools (EFP) and show what is in them"),
    ("--show-recovered-recs", "recovered", "show the records that remain, and those of open transactions"),
    ("--show-recovery-recs", "walked", "show the records as they are read, but no fillers"),
    ("--show-all-recs", "fillers", "show all records as they are read"),
    ("--show-xids", "xids", "show transaction ids (xids), not only their sizes, where records are shown"),
    ("--show-data", "data", "show the data, not only its size, where records are shown"),
    ("--stats", "counts", "show for each journal how many records of which kind were read"),
    ("--txtest", "test_texts", "show the text of qpid-txtest messages as their data, where records are shown"),
    ("--txn", "resolved", "show what remains when the open transactions are resolved"),
)


def parser() -> ArgumentParser:
    """The options of the original command."""
    options = ArgumentParser(
        prog=NAME,
        description="Qpid Linear Store Analyzer",
        epilog=_EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
    )
    options.add_argument("directory", metavar="DIR", help="the qls directory of a Qpid Linear Store (QLS)")
    for option, destination, text in _OPTIONS:
        options.add_argument(option, dest=destination, action="store_true", help=text)
    options.add_argument("--version", action="version", version=f"%(prog)s {COMMAND_VERSION}")
    return options


def parse(arguments: Sequence[str]) -> tuple[Show, str]:
    """What to show, and the directory as an absolute path. Exits with code 2 if they are unusable."""
    options = parser()
    values: Namespace = options.parse_args(list(arguments))
    directory: str = values.directory
    disk = OsDisk()
    try:
        exists = bool(directory) and os.path.lexists(directory)
        usable = exists and is_store(disk, directory)
    except (OSError, ValueError) as error:
        options.error(one_line(f'Journal path "{directory}" cannot be read: {getattr(error, "strerror", error)}'))
    if not exists:
        options.error(one_line(f'Journal path "{directory}" does not exist'))
    if not usable:
        below = os.path.join(directory, "qls")  # noqa: PTH118 (as it was typed)
        hint = f"; try {below}" if is_store(disk, below) else ""
        options.error(one_line(f'"{directory}" is no linearstore: neither jrnl2 nor tpl2 nor pNNN is in it{hint}'))
    shown = {destination: getattr(values, destination) for _, destination, _ in _OPTIONS}
    shown["walked"] |= shown["fillers"]
    return Show(**shown), os.path.abspath(directory)  # noqa: PTH100 (Path.resolve would follow links)


def run(arguments: Sequence[str]) -> int:
    """Run the command on `sys.stdout` and `sys.stderr`; returns the exit code."""
    show, directory = parse(arguments)
    problems = Problems()
    try:
        Analysis(OsDisk(), sys.stdout.write, show, problems).run(directory)
        sys.stdout.flush()
    except OutputError as error:
        problems.add("standard output", str(error))
    except OSError as error:
        problems.add_os_error(error, "standard output")
    for line in problems.lines():
        sys.stderr.write(f"{NAME}: {one_line(line)}\n")
    return EXIT_FAILED if problems.count else 0


# ---- one run ----

#: Takes text for standard output.
Write: TypeAlias = Callable[[str], object]

_PREPARED_LIST: Final = "tpl2"
_JOURNALS: Final = "jrnl2"
_PARTS: Final = (_JOURNALS, _PREPARED_LIST, "dat2")


class OutputError(Exception):
    """Standard output cannot be written to."""


def is_store(disk: Disk, root: str) -> bool:
    """Whether `root` is the `qls` directory of a store. Raises OSError if it cannot be read."""
    if not disk.is_directory(root):
        return False
    names = [name for name in disk.names(root) if name in _PARTS or PARTITION_NAME.fullmatch(name)]
    return any(disk.is_directory(posixpath.join(root, name)) for name in names)


class Analysis:
    """Runs one analysis.

    Args:
        disk: where to read.
        write: takes standard output.
        show: what is shown.
        problems: collects problems.
    """

    def __init__(self, disk: Disk, write: Write, show: Show, problems: Problems) -> None:
        self._disk = disk
        self._write = write
        self._show = show
        self._problems = problems

    def run(self, root: str) -> None:
        """Analyse the store whose `qls` directory is `root`, an absolute path.

        Raises:
            OutputError: standard output cannot be written to.
        """
        partitions, warnings = read_partitions(self._disk, root, self._problems) if self._show.pools else ([], [])
        self._print(warnings, root)
        prepared_list, queues = self._journals(root)
        journals = queues if prepared_list is None else [prepared_list, *queues]
        for journal in journals:
            self._recover(journal)
        self._print(pool_lines(partitions) if self._show.pools else [""], root)
        self._print(reconciliation_lines(prepared_list, queues), root)
        if self._show.resolved:
            resolve(prepared_list, queues)
        for journal in journals:
            self._print(journal.report(), journal.name)
            journal.close()

    # ---- journals ----

    def _journals(self, root: str) -> tuple[Journal | None, list[Journal]]:
        """The prepared list, if there is one, and the queues' journals; their files' headers are read."""
        pool, layout = FilePool(), StoreLayout(StoreKind.LINEAR, root)
        try:
            pool = read_file_pool(self._disk, root)
        except OSError as error:
            self._problems.add_os_error(error, root)
        try:
            if self._disk.is_directory(posixpath.join(root, _JOURNALS)):
                find_journals(self._disk, posixpath.join(root, _JOURNALS), layout)
        except OSError as error:
            self._problems.add_os_error(error, root)
        for damage in (*pool.damage, *layout.damage):
            self._problems.add(damage.file, damage.what)

        def journal(name: str, directory: str, *, is_prepared_list: bool) -> Journal:
            files = read_files(self._disk, directory, pool.taken, self._problems)
            return Journal(
                self._disk, name, files, is_prepared_list=is_prepared_list, show=self._show, problems=self._problems
            )

        directory = posixpath.join(root, _PREPARED_LIST)
        prepared_list = None
        if self._disk.is_directory(directory):
            prepared_list = journal(_PREPARED_LIST, directory, is_prepared_list=True)
        return prepared_list, [
            journal(place.name, place.directory, is_prepared_list=False) for place in layout.journals
        ]

    def _recover(self, journal: Journal) -> None:
        self._text(f"Recovering {journal.name}... ")
        for line in journal.recover():
            self._text(f"{line}\n")
        self._text("done\n\n" if self._show.walked else "done\n")
        journal.close()

    # ---- output ----

    def _print(self, lines: Iterable[str], where: str) -> None:
        """Print lines; if they end because a journal cannot be read any more, that is noted."""
        for line in self._guarded(lines, where):
            self._text(f"{line}\n")

    def _guarded(self, lines: Iterable[str], where: str) -> Iterator[str]:
        try:
            yield from lines
        except WalkError as error:
            self._problems.add(error.where, error.what)
        except OSError as error:
            self._problems.add_os_error(error, where)

    def _text(self, text: str) -> None:
        try:
            self._write(text)
        except OSError as error:
            raise OutputError(error.strerror or str(error)) from error


# ---- one journal: its walk, and the report of what remains ----

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
                fits = not event.is_valid or self.maps.apply(event.header, event.place, self._walk.read_xid(event))
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

    def _record_text(self, record: Record) -> str:
        header, show = record.header, self._show
        parts = [f"{self._where(record.place)}: {header_text(header)}"]
        xid = xid_text(self._walk.read_xid(record), header.xid_size, whole=show.xids)
        if header.kind is Kind.ENQUEUE:
            size = header.data_size
            stored = header.stored_size == size
            data = data_text(
                self._walk.read_data(record), size, content=show.data and stored, test_text=show.test_texts and stored
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
        return xid_text(self._walk.read_xid(record), record.header.xid_size)

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


# ---- the walk (formats/qls/README.md, 4) ----
#
# It begins in the file with the lowest number, at its first record offset, and proceeds from record to record and from
# file to file. At each block on which a record should begin:
#
#     magic unknown or 0             the end
#     serial not the file's          the end: it is from the file's former life
#     tail does not match            the end: the record is torn
#     rest missing                   the end: the crash tore the record, or files are missing
#     version not 2, or a missing    an error, and the end
#     mandatory xid
#
# A record may continue in the next files; the first record after it must then begin where that file's header says.
# A file that is entered between two records is entered where its header says. A file whose first record offset is 0, or
# its end, is filled by a record that began earlier; so it can only be the first one, or follow a missing one.

_RECORD_MAGICS: Final = frozenset(MAGICS[kind] for kind in HEADER_SIZES)
_FILLER: Final = MAGICS[Kind.FILLER].to_bytes(4, "little")


class WalkError(Exception):
    """The walk cannot continue: bytes that no writer produces.

    Attributes:
        where: the file, and the offset in it.
        what: what is wrong.
    """

    def __init__(self, where: str, what: str) -> None:
        super().__init__(where, what)
        self.where = where
        self.what = what


class FileEntered(NamedTuple):
    """The walk continues in a file: its index."""

    file: int


class Fillers(NamedTuple):
    """Consecutive fillers, at `place`: number of blocks."""

    place: int
    blocks: int


class Record(NamedTuple):
    """A record that is not a filler.

    Attributes:
        place: where it begins.
        header: its header.
        tail: its tail; None if it has none, or one that does not match, and then the walk ends.
    """

    place: int
    header: RecordHeader
    tail: Tail | None

    @property
    def is_valid(self) -> bool:
        """Whether the tail, if there should be one, matches the record."""
        return self.tail is not None or not self.header.has_tail


class Truncated(NamedTuple):
    """The walk ends with a record whose rest is missing."""

    place: int
    header: RecordHeader


class WrongOffset(NamedTuple):
    """The walk ends in a file whose first record is not where its header says.

    Attributes:
        file: its index.
        actual: offset after the record that continues in it.
    """

    file: int
    actual: int


#: Events of a walk.
Event: TypeAlias = FileEntered | Fillers | Record | Truncated | WrongOffset


class Walk(JournalWalk):
    """A walk over one journal.

    Attributes:
        end: the place at which the next record would be written; None during the walk, and if that is the end of the
        last
            file, or unknown.
    """

    def __init__(self, stream: JournalStream, files: Sequence[JournalFile]) -> None:
        super().__init__(stream)
        self._files = files
        self._records = LinearRecords(stream, [file.in_line() for file in files])
        self._entered = -1  # index of the file entered last
        self.end: int | None = None

    def events(self) -> Iterator[Event]:
        """The events of the walk, in order.

        Raises:
            WalkError: it cannot continue.
            OSError: a file cannot be read.
        """
        place: int | None = None
        while True:
            if place is None or place == self._stream.begin(self._entered + 1):
                if self._entered + 1 == len(self._files):
                    return
                yield self._enter_next()
                place = self._first_place()
                continue
            blocks = self._fillers(place)
            if blocks:
                yield Fillers(place, blocks)
                place += blocks * BLOCK_SIZE
                continue
            header = self._header(place)
            if header is None:
                self.end = place
                return
            last = self._entered
            yield from self._enter_rest(place, header)
            record = self.record(place, header)
            yield record or Truncated(place, header)
            if record is None or not record.is_valid:
                self.end = place
                return
            place += header.size
            if self._entered != last and (wrong := self._wrong_offset(place)):
                yield wrong
                return

    def record(self, place: int, header: RecordHeader) -> Record | None:
        """The record at `place` with its tail verified; None if its rest is missing."""
        tail_place = place + header.tail_offset
        if not self._stream.is_backed(place, header.tail_offset + (TAIL_SIZE if header.has_tail else 0)):
            return None
        # A record whose writer had to wait is valid for the store's reader, but neither for qpidd's nor for the
        # original.
        is_valid = self._records.verify(place, header).problem is None and place not in self._records.continued
        tail = decode_tail(self._stream.read_aside(tail_place, TAIL_SIZE)) if header.has_tail and is_valid else None
        return Record(place, header, tail)

    def record_at(self, place: int) -> Record:
        """Read a valid record of the walk at `place` again.

        Raises:
            WalkError: it has changed: the journal is being written to.
            OSError: its file cannot be read.
        """
        header = self._header(place)
        record = None if header is None else self.record(place, header)
        if record is None or not record.is_valid:
            raise WalkError(self.where(place), "the record changed while the journal was read")
        return record

    def where(self, place: int) -> str:
        """The file and the offset of a place."""
        return f"{self._files[self._stream.index(place)].path} at offset 0x{self._stream.locate(place)[1]:x}"

    # ---- files ----

    def _enter_next(self) -> FileEntered:
        self._entered += 1
        return FileEntered(self._entered)

    def _enter_rest(self, place: int, header: RecordHeader) -> Iterator[FileEntered]:
        """Enter the files in which a record continues; all remaining ones, if they do not contain its end."""
        last = min(place + header.size, self._stream.size) - 1
        while self._entered < self._stream.index(last):
            yield self._enter_next()

    def _first_place(self) -> int | None:
        """Where the first record of the current file begins; None if none does."""
        file = self._files[self._entered]
        offset = file.header.first_record_offset
        if offset in (0, file.header.file_size):
            if self._entered and self._files[self._entered - 1].number + 1 == file.number:
                raise WalkError(
                    file.path, "its header says that no record begins in it, but none continues in it either"
                )
            return None
        if not DATA_OFFSET <= offset < file.header.file_size or offset % BLOCK_SIZE:
            raise WalkError(file.path, f"no record can begin at the first record offset 0x{offset:x}")
        return self._stream.begin(self._entered) + offset - DATA_OFFSET

    def _wrong_offset(self, place: int) -> WrongOffset | None:
        if place == self._stream.begin(self._entered + 1):
            return None
        actual = self._stream.locate(place)[1]
        expected = self._files[self._entered].header.first_record_offset
        return None if actual == expected else WrongOffset(self._entered, actual)

    # ---- records ----

    def _fillers(self, place: int) -> int:
        """Number of consecutive fillers from `place`, within this file and the part of it that was read."""
        window, at = self._stream.window(place, BLOCK_SIZE)
        stop = min(len(window), at + self._stream.begin(self._entered + 1) - place)
        begin = at
        while at < stop and window.startswith(_FILLER, at):
            at += BLOCK_SIZE
        return (at - begin) // BLOCK_SIZE

    def _header(self, place: int) -> RecordHeader | None:
        """The header of a record that belongs to the file; None at the end."""
        window, at = self._stream.window(place, MAX_HEADER_SIZE)
        magic, _, _, serial, _ = COMMON.unpack_from(window, at)
        if magic not in _RECORD_MAGICS or serial != self._files[self._stream.index(place)].header.serial:
            return None
        try:
            header = decode_header(window, at)
        except QlsError as error:
            raise WalkError(self.where(place), error.what) from None
        return header if self._stream.is_backed(place, header.header_size) else None


def fillers_to_sector(offset: int) -> int:
    """Number of fillers that a writer puts at `offset` before it continues at a sector."""
    return -offset % SECTOR_SIZE // BLOCK_SIZE


# ---- the files of a journal ----
#
# A journal's directory contains absolute links into the `in_use` directories of the store's pools. In a copy of a store
# they are broken, or worse, lead into another store. So a link's file is searched by its name, which is a UUID, among
# the files in use of the store itself, and only then at the link's target.

SUFFIX: Final = ".jrnl"  # of the names that are examined
_WINDOW_SIZE: Final = 1 << 18  # bytes read at a time: records are read in order, and most are small


class JournalFile(NamedTuple):
    """A file that was written.

    Attributes:
        name: in the journal's directory.
        path: where it is read.
        header: its header.
        size: its size in bytes.
    """

    name: str
    path: str
    header: FileHeader
    size: int

    @property
    def number(self) -> int:
        """Its number in the journal."""
        return self.header.file_number

    def in_line(self) -> LinearFile:
        """The file as the store's reader takes it."""
        return LinearFile(self.number, self.path, self.size, self.header, self.header.serial)


def open_stream(disk: Disk, files: Sequence[JournalFile]) -> JournalStream:
    """The data areas of a journal's files; each file is as large as its header says."""
    sizes = [file.header.data_size for file in files]
    geometry = linear_geometry(max(len(files), 1), max(sizes, default=SECTOR_SIZE))
    line = [file.in_line() for file in files]
    return JournalStream(disk, line, geometry, sizes=sizes, is_strict=True, window_size=_WINDOW_SIZE, max_open=1)


def read_files(disk: Disk, directory: str, taken: Mapping[str, PooledFile], problems: Problems) -> list[JournalFile]:
    """The files of the journal in `directory` that were written, by number.

    A file that cannot be read or has no usable header is left out and reported; so is the second one with a number. A
    missing number is normal: after a crash qpidd may skip some.

    Args:
        disk: where to read.
        directory: the journal's directory.
        taken: the store's files in use by name.
        problems: collects problems.
    """
    found: dict[int, JournalFile] = {}
    for file in _written(disk, directory, taken, problems):
        other = found.setdefault(file.number, file)
        if other is not file:
            what = f"file number 0x{file.number:x}, which {other.path} has too; it is not read"
            problems.add(file.path, what)
    return [found[number] for number in sorted(found)]


def _written(disk: Disk, directory: str, taken: Mapping[str, PooledFile], problems: Problems) -> Iterator[JournalFile]:
    try:
        names = disk.names(directory)
    except OSError as error:
        problems.add_os_error(error, directory)
        return
    for name in names:
        if not name.endswith(SUFFIX):
            continue
        path = posixpath.join(directory, name)
        try:
            if name in taken and disk.link_target(path) is not None:
                path = taken[name].path
            elif not disk.is_file(path):
                target = disk.link_target(path)
                problems.add(path, "no regular file" if target is None else f"link to {target}, which is not there")
                continue
            file = _read_file(disk, name, path, problems)
        except OSError as error:
            problems.add_os_error(error, path)
        except QlsError as error:
            problems.add(path, error.what)
        else:
            if file is not None:
                yield file


def _read_file(disk: Disk, name: str, path: str, problems: Problems) -> JournalFile | None:
    """The file, or None if it was taken from the pool and never written."""
    opened = disk.open(path)
    try:
        header = decode_file_header(opened.read(0, FILE_HEADER_SIZE))
        size = opened.size
    finally:
        opened.close()
    if header.is_reset:
        return None
    if not header.file_number:
        raise QlsError("file header without a file number", 64)
    if size < header.file_size:
        problems.add(path, f"file has {size} bytes, its header says {header.file_size}")
    return JournalFile(name, path, header, size)


# ---- enqueued records, open transactions, counts ----
#
#     transient enqueue         is counted, and otherwise ignored, with a transaction id or without
#     enqueue                   goes into the map of enqueued records; if it already is in the map: an error
#     enqueue, transactional    is pending in its transaction
#     dequeue                   removes the record from the map, locked or not; not in the map: a warning
#     dequeue, transactional    is pending in its transaction, and locks the record; not in the map: a warning, except
#                               in the prepared list, where that is normal
#     commit                    applies the pending operations, in order
#     abort                     discards the pending operations
#     commit, abort             of an unknown transaction: a warning
#
# A file's number of enqueued records includes pending ones. Both maps hold places, not records: 18 bytes for each that
# remains.

# Properties of each operation of a transaction, in addition to its place, rid and type.
WARNED: Final = 2  # its record was not in the map
DECIDED_COMMIT: Final = 4  # a dequeue in the prepared list: the decision is commit


@dataclass(slots=True)
class Counts:
    """Number of records of each kind.

    Attributes:
        records: all, including a torn one at the end.
        transient, fillers: of these kinds.
        enqueues, dequeues: transactional or not, without the transient ones.
        transactional_enqueues, transactional_dequeues: of these, with a transaction id.
        commits, aborts: ends of transactions.
    """

    records: int = 0
    transient: int = 0
    fillers: int = 0
    enqueues: int = 0
    dequeues: int = 0
    transactional_enqueues: int = 0
    transactional_dequeues: int = 0
    commits: int = 0
    aborts: int = 0

    @property
    def transactional(self) -> int:
        """Records of transactions: operations and ends."""
        return self.operations + self.commits + self.aborts

    @property
    def operations(self) -> int:
        """Enqueues and dequeues of transactions."""
        return self.transactional_enqueues + self.transactional_dequeues


class Maps:
    """The state of a journal after the applied records.

    Args:
        files: number of the journal's files.
        file_index: returns the index of the file that contains a place.
        is_prepared_list: whether the journal is the transaction prepared list.

    Attributes:
        counts: of the records.
        enqueued: rid → place of the records that were enqueued and not dequeued.
        in_file: number of enqueued and pending records that begin in each file.
        transactions: the open ones, in the order of their first records.
    """

    def __init__(self, files: int, file_index: Callable[[int], int], *, is_prepared_list: bool = False) -> None:
        self.counts = Counts()
        self.enqueued = EnqueueMap()
        self.in_file = array("q", bytes(8 * files))
        self.transactions = Transactions()
        self._file_index = file_index
        self._is_prepared_list = is_prepared_list

    def locked(self) -> set[int]:
        """The rids of the records that open transactions dequeue."""
        return {
            rid
            for transaction in self.transactions.values()
            for _, rid, marks in transaction.operations()
            if not marks & ENQUEUE
        }

    def apply(self, header: RecordHeader, place: int, xid: Read) -> bool:
        """Apply a valid record at `place`, whose transaction id `xid` reads; False if it contradicts earlier ones."""
        counts = self.counts
        match header.kind:
            case Kind.ENQUEUE:
                if header.flags & TRANSIENT:
                    counts.transient += 1
                    return True
                counts.enqueues += 1
                self.in_file[self._file_index(place)] += 1
                if not header.xid_size:
                    self._enqueue(header.rid, place)
                    return True
                counts.transactional_enqueues += 1
                self.transactions.wait(xid_key(xid, header.xid_size), place, header.rid, ENQUEUE)
                return True
            case Kind.DEQUEUE:
                counts.dequeues += 1
                if not header.xid_size:
                    return self.dequeue(header.dequeued_rid)
                counts.transactional_dequeues += 1
                found = self._is_prepared_list or self.enqueued.get(header.dequeued_rid) is not None
                decision = DECIDED_COMMIT if header.flags & COMMIT_DECISION else 0
                marks = decision | (0 if found else WARNED)
                self.transactions.wait(xid_key(xid, header.xid_size), place, header.dequeued_rid, marks)
                return found
            case Kind.COMMIT:
                counts.commits += 1
                return self.commit(xid_key(xid, header.xid_size))
            case _:
                counts.aborts += 1
                return self.abort(xid_key(xid, header.xid_size))

    def commit(self, xid: Xid) -> bool:
        """Commit a transaction; False if it is not open."""
        transaction = self.transactions.pop(xid, None)
        if transaction is None:
            return False
        for place, rid, marks in transaction.operations():
            if marks & ENQUEUE:
                self._enqueue(rid, place)
            else:
                self.dequeue(rid)
        return True

    def abort(self, xid: Xid) -> bool:
        """Abort a transaction; False if it is not open."""
        transaction = self.transactions.pop(xid, None)
        if transaction is None:
            return False
        for place, _, marks in transaction.operations():
            if marks & ENQUEUE:
                self.in_file[self._file_index(place)] -= 1
        return True

    def dequeue(self, rid: int) -> bool:
        """Remove an enqueued record from the map; False if it is not in the map."""
        entry = self.enqueued.get(rid)
        if entry is None:
            return False
        self.enqueued.remove(rid)
        self.in_file[self._file_index(entry.place)] -= 1
        return True

    def _enqueue(self, rid: int, place: int) -> None:
        before = self.enqueued.duplicate_count
        self.enqueued.add(rid, place)
        if self.enqueued.duplicate_count != before:  # the first one wins
            self.in_file[self._file_index(place)] -= 1


def decision_of(marks: Sequence[int]) -> bool | None:
    """The decision in the prepared list about a transaction with these operations; None if there is none."""
    dequeues = [mark for mark in marks if not mark & ENQUEUE]
    return all(mark & DECIDED_COMMIT for mark in dequeues) if dequeues else None


# ---- the outcome in qpidd's recovery (formats/qls/README.md, 5) ----
#
# A transaction that is open in the prepared list was prepared; a dequeue there is the decision. Without one the
# transaction is committed: a restarted linearstore commits every prepared one. One that is not in the list is dropped.

# Decision in the prepared list -> its text there, and in the queues.
_IN_LIST: Final = {
    None: "[Prepared, neither committed nor aborted - assuming commit]",
    True: "[Prepared, but interrupted during commit phase]",
    False: "[Prepared, but interrupted during abort phase]",
}
_IN_QUEUE: Final = {
    None: "Assuming commit after prepare",
    True: "Completing interrupted commit operation",
    False: "Completing interrupted abort operation",
}
_IGNORED: Final = "Ignoring, not in prepared transaction list"


def reconciliation_lines(prepared_list: Journal | None, queues: Iterable[Journal]) -> Iterator[str]:
    """The report; nothing is changed.

    Raises:
        WalkError: a journal is being written to.
        OSError: a file cannot be read.
    """
    prepared = prepared_list.maps.transactions if prepared_list is not None else {}
    texts = [prepared_list.transaction_text(open_one) for open_one in prepared.values()] if prepared_list else []
    yield "Transaction reconciliation report:"
    yield "=================================="
    yield f"Transaction Prepared List (TPL) contains {len(prepared)} open transaction(s):"
    for text, transaction in zip(texts, prepared.values(), strict=True):
        yield f"  {text} {_IN_LIST[decision_of(transaction.marks)]}"
    yield ""
    yield "Open transactions found in queues:"
    yield "----------------------------------"
    for queue in queues:
        transactions = queue.maps.transactions
        if transactions:
            yield f"{queue.name} contains {len(transactions)} open transaction(s):"
        for xid, transaction in transactions.items():
            known = prepared.get(xid)
            outcome = _IGNORED if known is None else _IN_QUEUE[decision_of(known.marks)]
            yield f"  {queue.transaction_text(transaction)} - {outcome}"
    yield ""
    if texts:
        yield "Creating commit records for the following prepared transactions in TPL:"
        yield from (f"  {text}" for text in texts)
        yield ""


def resolve(prepared_list: Journal | None, queues: Iterable[Journal]) -> None:
    """Commit or abort everything that is open, as the report says; afterwards the prepared list is empty."""
    decisions: dict[Xid, bool] = {}
    if prepared_list is not None:
        for xid, transaction in list(prepared_list.maps.transactions.items()):
            decisions[xid] = decision_of(transaction.marks) is not False
            prepared_list.maps.commit(xid)
            prepared_list.maps.dequeue(transaction.rids[0])
    for queue in queues:
        for xid in list(queue.maps.transactions):
            if decisions.get(xid, False):
                queue.maps.commit(xid)
            else:
                queue.maps.abort(xid)
        queue.check_duplicates()


# ---- the empty file pools (formats/qls/README.md, 3.4) ----
#
# A partition `pNNN` has below `efp` a directory for each size of data area, `<size>k`. Waiting files are in it, the
# others in its directories `in_use` and `returned`. A waiting file counts if it has the size of its pool and a header
# without a number, a time and a queue's name; of the others only the names are examined.

_PARTITION_NAME: Final = re.compile(r"p([0-9]+)")
_POOL_NAME: Final = re.compile(r"([0-9]+)k")
_MAGIC: Final = MAGICS[Kind.FILE].to_bytes(4, "little")
_BELOW: Final = ("in_use", "returned")


class Pool(NamedTuple):
    """The files of one size in a partition.

    Attributes:
        directory: where they are.
        kib: data area of each.
        waiting, in_use, returned: number of each.
    """

    directory: str
    kib: int
    waiting: int
    in_use: int
    returned: int


class Partition(NamedTuple):
    """One partition.

    Attributes:
        name: of its directory.
        directory: where it is.
        number: in its name.
        pools: by size.
    """

    name: str
    directory: str
    number: int
    pools: tuple[Pool, ...]


def read_partitions(disk: Disk, root: str, problems: Problems) -> tuple[list[Partition], list[str]]:
    """The partitions of the store in `root`, by number, and a warning for each file that has not its pool's size."""
    partitions: list[Partition] = []
    warnings: list[str] = []
    for name in _names(disk, root, problems):
        found = _PARTITION_NAME.fullmatch(name)
        if found is None:
            continue
        directory = posixpath.join(root, name)
        try:
            if disk.is_directory(directory):
                pools = sorted(_read_pools(disk, directory, problems, warnings), key=_pool_order)
                partitions.append(Partition(name, directory, int(found[1]), tuple(pools)))
        except OSError as error:
            problems.add_os_error(error, directory)
    partitions.sort(key=lambda partition: (partition.number, partition.name))
    return partitions, warnings


def _pool_order(pool: Pool) -> tuple[int, str]:
    return pool.kib, pool.directory


def _read_pools(disk: Disk, directory: str, problems: Problems, warnings: list[str]) -> Iterator[Pool]:
    above = posixpath.join(directory, "efp")
    for name in _names(disk, above, problems):
        found = _POOL_NAME.fullmatch(name)
        pool = posixpath.join(above, name)
        if not disk.is_directory(pool):
            continue
        if found is None:
            problems.add(pool, "the name is not that of a pool, as 2048k is")
            continue
        kib = int(found[1])
        file_size = FILE_HEADER_SIZE + kib * KIB
        waiting = sum(
            _is_waiting(disk, posixpath.join(pool, file), file_size, problems, warnings)
            for file in _names(disk, pool, problems)
            if not disk.is_directory(posixpath.join(pool, file))
        )
        in_use, returned = (
            sum(file.endswith(SUFFIX) for file in _names(disk, posixpath.join(pool, below), problems))
            for below in _BELOW
        )
        yield Pool(pool, kib, waiting, in_use, returned)


def _names(disk: Disk, directory: str, problems: Problems) -> list[str]:
    if not disk.is_directory(directory):
        return []
    try:
        return disk.names(directory)
    except OSError as error:
        problems.add_os_error(error, directory)
        return []


def _is_waiting(disk: Disk, path: str, file_size: int, problems: Problems, warnings: list[str]) -> bool:
    """Whether a file of a pool can be taken by a journal."""
    try:
        file = disk.open(path)
        try:
            size, sector = file.size, file.read(0, FILE_HEADER_SIZE)
        finally:
            file.close()
    except OSError as error:
        problems.add_os_error(error, path)
        return False
    if size != file_size:
        what = f"not of correct size (size={size}, expected={file_size}): Ignoring"
        warnings.append(f"WARNING: File {one_line(path)} {what}")
        return False
    if not sector.startswith(_MAGIC) or len(sector) < NAME_OFFSET:
        return False
    try:
        header = decode_file_header(sector)
    except QlsError as error:
        problems.add(path, error.what)
        return False
    return not (header.seconds or header.nanoseconds or header.file_number or header.queue_name)


# ---- the report ----


def pool_lines(partitions: list[Partition]) -> Iterator[str]:
    """The report. Without partitions nothing follows its first lines, not even a blank line."""
    yield ""
    yield "Empty File Pool (EFP) report"
    yield "============================"
    yield f"Found {len(partitions)} partition(s)"
    if not partitions:
        return
    yield "p_no no_efp tot_files tot_size_kb directory"
    yield "---- ------ --------- ----------- ---------"
    for partition in partitions:
        files = sum(pool.waiting for pool in partition.pools)
        kib = sum(pool.waiting * pool.kib for pool in partition.pools)
        directory = one_line(partition.directory)
        yield f"{partition.number:4d} {len(partition.pools):6d} {files:9d} {kib:11d} {directory}"
    yield ""
    for partition in partitions:
        yield f"Partition {partition.name}:"
        yield from _partition_lines(partition)
        yield ""


def _partition_lines(partition: Partition) -> Iterator[str]:
    if not partition.pools:
        yield "<empty - no EFPs found in this partition>"
        return
    columns, lines = " ".join(["file_count tot_file_size_kb"] * 3), " ".join(["---------- ----------------"] * 3)
    yield "             ---------- efp ------------ --------- in_use ---------- -------- returned ---------"
    yield f"data_size_kb {columns} efp_directory"
    yield f"------------ {lines} -------------"
    for pool in partition.pools:
        counts = (pool.waiting, pool.in_use, pool.returned)
        numbers = " ".join(f"{count:10d} {count * pool.kib:16d}" for count in counts)
        yield f"{pool.kib:12d} {numbers} {one_line(pool.directory)}"


# ---- records as text ----
#
# Bytes that are all printable (ASCII, and no blank) are in double quotes, in full if shorter than 50 bytes, otherwise
# the first and last 25. Otherwise a transaction id is printed as the hexadecimal number that its bytes, the last one
# first, form; data has `\xx`, two hex digits, for each byte that is not printable, in full up to 50 bytes, otherwise
# the first and last 10. Long values are read in parts.

_MAX_XID: Final = 1024  # bytes: qpidd's have 24, those of clients 528 at most; a larger one is cut
_XID_ENDS: Final = 25  # bytes shown at either end of it
_CHUNK: Final = 1 << 16  # bytes examined at once
_MAX_TEXT: Final = 1024  # bytes of a test message's text that are shown

_RENDERING: Final = rendering_of(bytes(range(0x21, 0x7F)))
_TEST_TEXT: Final = b"msg"  # begins the text of a test message; a NUL ends it

_FLAG_TEXTS: Final = {
    0: "",
    TRANSIENT: "[TRANSIENT]",
    EXTERNAL: "*EXTERNAL]",
    TRANSIENT | EXTERNAL: "[TRANSIENT,EXTERNAL]",
}
_LETTERS: Final = {kind: chr(magic >> 24).upper() for kind, magic in MAGICS.items()}

INVALID_TAIL: Final = "[INVALID RECORD TAIL]"
TRUNCATED: Final = "[Truncated, no more files in journal]"
NOT_ENQUEUED: Final = "<NOT IN EMAP>"
NOT_OPEN: Final = "<NOT IN TMAP>"


# ---- transaction ids and data ----


def xid_text(read: Read, size: int, *, whole: bool = True) -> str:
    """A transaction id, or only its size; empty if there is none."""
    if not size:
        return ""
    return f"xid({size})='{_xid(read, size)}'" if whole else f"xid({size})"


def data_text(read: Read, size: int, *, content: bool, test_text: bool) -> str:
    """The data of an enqueue; empty if there is none.

    Args:
        read: reads from the data.
        size: size of the data in bytes.
        content: whether the data itself is shown, and not only its size.
        test_text: whether the text of a test message is shown instead; ignored for data without such a text.
    """
    if not size:
        return ""
    text = _test_text(read, size) if test_text else None
    if text is None and content:
        text = _data(read, size)
    return f"data({size})" if text is None else f"data({size})='{text}'"


def _xid(read: Read, size: int) -> str:
    if size > _MAX_XID:
        first, last = (read(offset, _XID_ENDS) for offset in (0, size - _XID_ENDS))
        if (first + last).strip(_RENDERING.printable):
            return f"0x{last[::-1].hex()} ... {first[::-1].hex()}"
        return f'"{_RENDERING.ends(read, size, _XID_ENDS)}"'
    xid = read(0, size)
    if xid.strip(_RENDERING.printable):
        return f"0x{xid[::-1].hex()}"
    return f'"{_RENDERING.shortened(read, size, is_printable=True)}"'


def _data(read: Read, size: int) -> str:
    is_printable = _RENDERING.is_printable(read, size)
    text = _RENDERING.shortened(read, size, is_printable=is_printable)
    return f'"{text}"' if is_printable else text


def _test_text(read: Read, size: int) -> str | None:
    """From `msg` to the next NUL, or to the end of the data; None without `msg`."""
    overlap = len(_TEST_TEXT) - 1
    for offset in range(0, size, _CHUNK):
        at = read(offset, min(_CHUNK + overlap, size - offset)).find(_TEST_TEXT)
        if at >= 0:
            begin = offset + at
            text = read(begin, min(_MAX_TEXT, size - begin)).partition(b"\0")[0]
            return " ".join(map(_RENDERING.text, text.split(b" ")))
    return None


# ---- headers and tails ----


def file_header_text(header: FileHeader) -> str:
    """The fields of a file's header."""
    return (
        f"[F v={VERSION} f=0x{header.flags:04x} rid=0x{header.rid:x}] fnum=0x{header.file_number:x}"
        f" fro=0x{header.first_record_offset:08x} p={header.partition} s={header.data_size >> 10}k"
        f" t={time_text(header.seconds, header.nanoseconds)} "
    )


def header_text(header: RecordHeader) -> str:
    """A record's header."""
    letter = _LETTERS[header.kind]
    if header.kind is Kind.FILLER:
        return f"[{letter}]"
    return f"[{letter} v={VERSION} f=0x{header.flags:04x} rid=0x{header.rid:x}]"


def tail_text(header: RecordHeader, tail: Tail | None) -> str:
    """A record's tail; empty if there is none, or for an enqueue with neither xid nor data, as in the original."""
    if not header.has_tail or not (header.xid_size or header.data_size):
        return ""
    if tail is None:
        return INVALID_TAIL
    return f"[{_LETTERS[header.kind]} cs=0x{tail.checksum:08x} rid=0x{tail.rid:x}]"


def flags_text(header: RecordHeader, *, is_prepared_list: bool) -> str:
    """The meaning of the flags of an enqueue, or of a transaction's dequeue in the prepared list."""
    if header.kind is Kind.ENQUEUE:
        return _FLAG_TEXTS[header.flags & (TRANSIENT | EXTERNAL)]
    if header.kind is Kind.DEQUEUE and header.xid_size and is_prepared_list:
        return "[COMMIT]" if header.flags & COMMIT_DECISION else "[ABORT]"
    return ""


# ---- problems ----

_MAX_LINES: Final = 100  # lines that are stored: a forged journal may have any number of problems


class Problems:
    """Collects problems; any problem makes the exit code 1.

    Attributes:
        count: number of problems.
    """

    def __init__(self) -> None:
        self.count = 0
        self._lines: list[str] = []

    def add(self, where: str, what: str) -> None:
        """Add a problem at `where`: a file, or a file and an offset."""
        self.count += 1
        if len(self._lines) < _MAX_LINES:
            self._lines.append(f"{where}: {what}")

    def add_os_error(self, error: OSError, where: str) -> None:
        """Add an error of a system call; the error may name the path."""
        self.add(str(error.filename or where), error.strerror or str(error))

    def lines(self) -> list[str]:
        """One line for each, up to a limit."""
        left_out = self.count - len(self._lines)
        return self._lines if not left_out else [*self._lines, f"and {left_out} more"]


# ---- options ----


@dataclass(frozen=True, slots=True)
class Show:
    """What is shown in addition to the minimum.

    Attributes:
        pools: the empty file pools.
        recovered: the records that remain, and those of open transactions.
        walked: the records as they are read, ...
        fillers: ... including fillers.
        xids, data: contents and not only sizes.
        test_texts: the texts of test messages.
        counts: record counts of each journal.
        resolved: what remains after the open transactions are resolved.
    """

    pools: bool = False
    recovered: bool = False
    walked: bool = False
    fillers: bool = False
    xids: bool = False
    data: bool = False
    test_texts: bool = False
    counts: bool = False
    resolved: bool = False


def main() -> None:
    """Console script entry point."""
    run_drop_in(run)


if __name__ == "__main__":
    main()
