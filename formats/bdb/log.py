"""The log of a Berkeley DB environment: do the database files contain everything that was committed?

A change is logged first; the page, with the LSN of the change, is written when the cache is flushed: at a checkpoint,
when its database is closed, or when the cache is full. After a kill, changes may exist only in the log. `analyse_log`
walks the log and records, for each page, the LSN of the last committed change; `why_recovery` compares these with the
LSNs on the pages. A page that is older than the log, or one with a change that was never committed, needs the library's
recovery. So does everything that this walk cannot decide: a log of another version, a damaged or missing part, an
unknown record. `contradictions` reports differences that neither recovery nor a crash explains: files that were
exchanged.

The records that close the databases are no help: qpidd exits without the last of them on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from struct import Struct

from qstore.formats.bdb.pages import BdbError, Lsn, checksum
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.zeros import is_zero

LOG_MAGIC = 0x00040988
LOG_VERSION = 19  # libdb 5.3

RECORD_HEADER = Struct("<III")  # offset of the record before, length, checksum
FILE_HEADER = Struct("<IIII")  # magic, version, size of log files, -
_BODY_HEADER = Struct("<IIII")  # record type, transaction, LSN of the transaction's record before
_U32 = Struct("<I")

REGISTER, COMMIT, CHECKPOINT, CHILD, RECYCLE = 2, 10, 11, 12, 14
FILE_CREATE, FILE_WRITE, FILE_RENAME = 143, 145, 146
#: Type of a file record -> number of names that its arguments begin with (name and directory; old, new and directory).
_FILE_RECORDS = {FILE_CREATE: 2, FILE_WRITE: 2, FILE_RENAME: 3}
_COMMITTED = 1  # `COMMIT`'s first argument; others: prepared, aborted

_REGISTER_OPENED = frozenset({1, 3, 4, 6, 7, 8, 9})  # the low 4 bits of `REGISTER`'s first argument
_REGISTER_CLOSED = frozenset({2, 5})


class PageChange(NamedTuple):
    """Where the arguments of a record that changes pages have the database's number and the pages, as u32s.

    `freed`: the page that is freed. Its content does not matter then, and the file may end before it.
    """

    database: int
    pages: tuple[int, ...]
    freed: int | None = None


#: Record type -> the pages it changes. Page 0 in a position after the first means "none".
PAGE_CHANGES = {
    41: PageChange(1, (2,)),  # addrem: add or remove an item
    43: PageChange(1, (2,)),  # big: add or remove an overflow page
    44: PageChange(0, (1,)),  # ovref: count the references to an overflow chain
    47: PageChange(0, ()),  # debug
    48: PageChange(0, (1,)),  # noop
    49: PageChange(0, (3, 6)),  # pg_alloc: metadata, page
    50: PageChange(0, (4,), freed=1),  # pg_free: metadata
    52: PageChange(0, (4,), freed=1),  # pg_freedata: metadata
    55: PageChange(0, (1,)),  # adj: insert or delete an entry's offset
    56: PageChange(0, (1,)),  # cadjust: count records
    57: PageChange(0, (1,)),  # cdel: mark an item as deleted
    58: PageChange(0, (1,)),  # repl: replace part of an item
    59: PageChange(0, (1,)),  # root: metadata
    60: PageChange(0, (1,)),  # pg_init
    62: PageChange(0, (2, 5, 9, 12)),  # split: left, right, next, parent
    63: PageChange(0, (1,)),  # rsplit: a root with one child takes that child's place
    64: PageChange(0, ()),  # curadj: cursors
    65: PageChange(0, ()),  # rcuradj: cursors
    67: PageChange(0, (1,)),  # irep: replace an internal item
    142: PageChange(0, (1,)),  # metasub
    147: PageChange(0, (3, 6)),  # relink: previous, next
    148: PageChange(0, (1, 4)),  # merge
    149: PageChange(0, (1,)),  # pgno: replace a page number
}
_METADATA_FIRST = frozenset({49, 50, 52, 59, 142})  # those whose first page may be page 0


class Contradiction(NamedTuple):
    """Something in a database file that its log rules out, whatever crash happened.

    Attributes:
        name: the file's.
        page: the page in question; None for the whole file.
        what: one line.
    """

    name: str
    page: int | None
    what: str


class LogRecord(NamedTuple):
    """One record: the offset of its header in its file, its type, its transaction (0: none), its arguments."""

    offset: int
    type: int
    transaction: int
    arguments: bytes


class LoggedPage(NamedTuple):
    """A page of a database file, with the file's name in the log."""

    name: str
    number: int


@dataclass(slots=True)
class LogSummary:
    """The content of a log about its database files.

    Attributes:
        committed: page -> LSN of the last committed change since the last checkpoint.
        uncommitted: page -> LSNs of changes that were never committed.
        flushed: page -> LSN of the last committed change that is in the file, according to a checkpoint.
        file_ids: name of a database file -> the id that it had when it was last opened.
        names: the names of all files in the log.
        doubts: (LSN, one line) for each case that this walk cannot decide.
        damage: (log file, error): a damaged record after which the log continues.
        torn: (log file, error): the log ends within a record.
        end: LSN of the last valid record.
        walked_files: log files that were read to their end, and the one at which the walk stopped.
    """

    committed: dict[LoggedPage, Lsn] = field(default_factory=dict)
    uncommitted: dict[LoggedPage, set[Lsn]] = field(default_factory=dict)
    flushed: dict[LoggedPage, Lsn] = field(default_factory=dict)
    file_ids: dict[str, bytes] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    doubts: list[tuple[Lsn, str]] = field(default_factory=list)
    damage: list[tuple[int, BdbError]] = field(default_factory=list)
    torn: list[tuple[int, BdbError]] = field(default_factory=list)
    end: Lsn = field(default_factory=lambda: Lsn(0, 0))
    walked_files: list[int] = field(default_factory=list)


def log_records(data: bytes, previous: int | None = None) -> Iterator[LogRecord]:
    """The records of one log file, without the file's own first one.

    Args:
        data: the whole file.
        previous: offset of the last record in the log file before; None if unknown.

    Raises:
        BdbError: at the first invalid record. The log ends only where zeros follow.
    """
    offset = 0
    while len(data) - offset >= RECORD_HEADER.size:
        before, length, _ = RECORD_HEADER.unpack_from(data, offset)
        if length == 0:
            break
        body = _record_body(data, offset)
        if body is None:
            raise BdbError("the length or checksum of a log record is wrong", offset)
        if previous is not None and before != previous:
            raise BdbError(f"the previous record of a log record is at {before}, not at {previous}", offset)
        if offset == 0:
            _verify_file_header(body)
        elif len(body) < _BODY_HEADER.size:
            raise BdbError(f"a log record of {len(body):,} bytes is too short", offset)
        else:
            kind, transaction, _, _ = _BODY_HEADER.unpack_from(body)
            yield LogRecord(offset, kind, transaction, body[_BODY_HEADER.size :])
        previous = offset
        offset += length
    if offset == 0:
        raise BdbError("the first record of the log file is missing", 0)
    if not is_zero(data, offset):
        raise BdbError("the log ends, but no zeros follow", offset)


def analyse_log(files: Iterable[tuple[int, bytes]]) -> LogSummary:
    """Walk the log `files`: (number of the file, its bytes), in ascending order."""
    analysis = _Analysis()
    expected: int | None = None
    for number, data in files:
        if expected is None and number != 1:
            analysis.starts_late = True
        if expected is not None and number != expected:
            error = BdbError(f"log file {expected} is missing before file {number}", 0)
            analysis.summary.damage.append((expected, error))
            break
        expected = number + 1
        analysis.summary.walked_files.append(number)
        if not analysis.file(number, data):
            break
    return analysis.finish()


def contradictions(
    summary: LogSummary,
    page_lsn: Callable[[str, int], Lsn | None],
    newest: Mapping[str, tuple[int, Lsn]],
    file_ids: Mapping[str, bytes],
) -> Iterator[Contradiction]:
    """Differences in the database files that no crash explains: files that were exchanged, or are older than the log.

    A change is synced to the log before its page is written, a checkpoint is logged when all pages before it are, and a
    file keeps its id for life.

    Args:
        summary: the content of the log.
        page_lsn: (name, number) -> the LSN on that page of that database file; None if it has no such page.
        newest: database file -> the page with the highest LSN, and that LSN.
        file_ids: database file -> the id in its metadata.
    """
    for name, file_id in file_ids.items():
        logged = summary.file_ids.get(name, file_id)
        if logged != file_id:
            yield Contradiction(
                name, None, f"its id is {file_id.hex()}, but {logged.hex()} in the log: it is the file of another store"
            )
    for name, (number, lsn) in newest.items():
        if lsn > summary.end and not summary.damage:
            what = f"page {number} has a change of {lsn}, but the log ends at {summary.end}: one of them was exchanged"
            yield Contradiction(name, number, what)
    for page, wanted in summary.flushed.items():
        found = page_lsn(page.name, page.number)
        if page.name in file_ids and (found is None or found < wanted):
            what = f"page {page.number} lacks the change of {wanted}, which a checkpoint had written: the file is older"
            yield Contradiction(page.name, page.number, what)


def why_recovery(summary: LogSummary, page_lsn: Callable[[str, int], Lsn | None]) -> str | None:
    """Why the database files cannot be read without recovery: one line; None if they can.

    Args:
        summary: the content of the log.
        page_lsn: (name, number) -> the LSN on that page of that database file; None if it has no such page.
    """
    for number, error in summary.damage + summary.torn:
        return f"log file {number} is damaged: {error}"
    for lsn, reason in summary.doubts:
        return f"{reason} (log file {lsn.file}, offset {lsn.offset})"
    for page in summary.committed.keys() | summary.uncommitted.keys():
        found = page_lsn(page.name, page.number)
        wanted = summary.committed.get(page)
        if wanted is not None and (found is None or found < wanted):
            return f"{page.name}: page {page.number} is older than the log"
        if found in summary.uncommitted.get(page, ()):
            return f"{page.name}: page {page.number} has a change that was not committed"
    return None


class _Change(NamedTuple):
    """One change of a transaction. `page` None: of files rather than of a page."""

    page: LoggedPage | None
    lsn: Lsn
    freed: bool = False


@dataclass(slots=True)
class _Analysis:
    """The state of a walk through the log."""

    summary: LogSummary = field(default_factory=LogSummary)
    databases: dict[int, str] = field(default_factory=dict)  # number -> name, of the databases open at this point
    pending: dict[int, list[_Change]] = field(default_factory=dict)  # transaction -> its changes so far
    last_offset: int | None = None  # of the last record in the log file before
    starts_late: bool = False
    checkpoints: int = 0

    def file(self, number: int, data: bytes) -> bool:
        """Walk one log file; False if the walk stops in it."""
        self.summary.end = Lsn(number, 0)
        try:
            for record in log_records(data, self.last_offset):
                self.last_offset = record.offset
                self.summary.end = Lsn(number, record.offset)
                self._record(record, Lsn(number, record.offset))
        except BdbError as error:
            goes_on = _continues_after(data, error.offset)
            (self.summary.damage if goes_on else self.summary.torn).append((number, error))
            return False
        return True

    def finish(self) -> LogSummary:
        """The summary, with the parts that are only known at the end of the log."""
        if self.starts_late and not self.checkpoints:
            self.summary.doubts.append((Lsn(0, 0), "the log's first files are missing"))
        for changes in self.pending.values():
            for change in changes:
                if change.page is None:
                    what = "a file was created or renamed, but that was not committed"
                    self.summary.doubts.append((change.lsn, what))
                else:
                    self.summary.uncommitted.setdefault(change.page, set()).add(change.lsn)
        return self.summary

    def _record(self, record: LogRecord, lsn: Lsn) -> None:
        try:
            if record.type in PAGE_CHANGES:
                for change in self._page_changes(record, lsn):
                    self._change(record.transaction, change)
            elif record.type in _FILE_RECORDS:
                self.summary.names.update(_names(record.arguments, _FILE_RECORDS[record.type]))
                self._change(record.transaction, _Change(None, lsn))
            elif record.type == REGISTER:
                self._register(record.arguments)
            elif record.type == COMMIT and _u32(record.arguments, 0) == _COMMITTED:
                for change in self.pending.pop(record.transaction, ()):
                    self._change(0, change)
            elif record.type == CHILD:
                changes = self.pending.pop(_u32(record.arguments, 0), [])
                self.pending.setdefault(record.transaction, []).extend(changes)
            elif record.type == CHECKPOINT:
                self._checkpoint(Lsn(_u32(record.arguments, 0), _u32(record.arguments, 1)))
            elif record.type == RECYCLE:
                self.pending.clear()  # written by recovery, which has undone the pending changes
            else:
                self.summary.flushed.clear()  # it may be of a file that is removed, or truncated
                self.summary.doubts.append((lsn, f"unknown log record type {record.type}"))
        except BdbError as error:
            self.summary.doubts.append((lsn, f"{error.what} in a log record of type {record.type}"))

    def _change(self, transaction: int, change: _Change) -> None:
        if transaction:
            self.pending.setdefault(transaction, []).append(change)
        elif change.freed and change.page is not None:
            self.summary.committed.pop(change.page, None)
            self.summary.flushed.pop(change.page, None)
        elif change.page is not None:
            before = self.summary.committed.get(change.page, change.lsn)
            self.summary.committed[change.page] = max(change.lsn, before)

    def _page_changes(self, record: LogRecord, lsn: Lsn) -> Iterator[_Change]:
        layout = PAGE_CHANGES[record.type]
        name = self.databases.get(_u32(record.arguments, layout.database))
        if name is None:
            if layout.pages:
                raise BdbError("a change to a database that is not open in the log")
            return
        for index, place in enumerate(layout.pages):
            number = _u32(record.arguments, place)
            if number or (index == 0 and record.type in _METADATA_FIRST):
                yield _Change(LoggedPage(name, number), lsn)
        if layout.freed is not None:
            yield _Change(LoggedPage(name, _u32(record.arguments, layout.freed)), lsn, freed=True)

    def _register(self, arguments: bytes) -> None:
        """A database was opened or closed: action, name, file id, database number, ..."""
        action = _u32(arguments, 0) & 0xF
        name, after_name = _counted(arguments, 4)
        file_id, after_id = _counted(arguments, after_name)
        (number,) = _checked(_U32, arguments, after_id)
        if action in _REGISTER_CLOSED:
            self.databases.pop(number, None)
        elif action in _REGISTER_OPENED and name:
            self.databases[number] = _file_name(name)
            self.summary.names.add(_file_name(name))
            self.summary.file_ids[_file_name(name)] = file_id
        else:
            raise BdbError("an unknown action or a missing name")

    def _checkpoint(self, flushed: Lsn) -> None:
        """Every change before `flushed` is in the database files."""
        self.checkpoints += 1
        summary = self.summary
        summary.flushed.update({page: lsn for page, lsn in summary.committed.items() if lsn < flushed})
        summary.committed = {page: lsn for page, lsn in summary.committed.items() if lsn >= flushed}
        summary.doubts = [doubt for doubt in summary.doubts if doubt[0] >= flushed]


def _record_body(data: bytes, offset: int) -> bytes | None:
    """The bytes after the header of the record at `offset`; None if length or checksum are wrong."""
    if not 0 <= offset <= len(data) - RECORD_HEADER.size:
        return None
    before, length, stored = RECORD_HEADER.unpack_from(data, offset)
    if not RECORD_HEADER.size < length <= len(data) - offset:
        return None
    body = data[offset + RECORD_HEADER.size : offset + length]
    return body if checksum(body) ^ before ^ length == stored else None


_MAX_CANDIDATES = 16  # positions that are searched for the record after a damaged one


def _continues_after(data: bytes, offset: int) -> bool:
    """Whether the file contains a valid record that names the one at `offset` as its predecessor."""
    if offset < RECORD_HEADER.size + FILE_HEADER.size:
        return not is_zero(data)  # the file's own first record
    candidate = offset
    for _ in range(_MAX_CANDIDATES):
        candidate = data.find(_U32.pack(offset), candidate + 1)
        if candidate < 0:
            return False
        if _record_body(data, candidate) is not None:
            return True
    return False


def _verify_file_header(body: bytes) -> None:
    magic, version, _, _ = _checked(FILE_HEADER, body, 0)
    if magic != LOG_MAGIC:
        raise BdbError(f"the magic number is {magic:#010x}, not that of a log", 12)
    if version != LOG_VERSION:
        raise BdbError(f"log version {version} is not supported", 16)


def _checked(layout: Struct, data: bytes, offset: int) -> tuple[int, ...]:
    if offset + layout.size > len(data):
        raise BdbError("too few arguments", offset)
    return layout.unpack_from(data, offset)


def _u32(arguments: bytes, index: int) -> int:
    """The argument at u32 number `index`."""
    return _checked(_U32, arguments, 4 * index)[0]


def _counted(arguments: bytes, offset: int) -> tuple[bytes, int]:
    """Bytes preceded by their length, and the offset after them."""
    (length,) = _checked(_U32, arguments, offset)
    end = offset + _U32.size + length
    if end > len(arguments):
        raise BdbError("an argument extends beyond its record", offset)
    return arguments[offset + _U32.size : end], end


def _file_name(counted: bytes) -> str:
    """A name as in the log: up to its NUL; bytes that are not UTF-8 as surrogate escapes."""
    return counted.partition(b"\0")[0].decode(errors="surrogateescape")


def _names(arguments: bytes, count: int) -> Iterator[str]:
    offset = 0
    for _ in range(count):
        name, offset = _counted(arguments, offset)
        yield _file_name(name)
