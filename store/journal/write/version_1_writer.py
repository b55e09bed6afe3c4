"""Writes a version-1 journal, that of qpidd's legacystore: for tests, and to return a store to qpidd.

    enqueue, dequeue, commit, abort    a record is added to the write batch, or refused as a whole
    next_flush() -> step               writes and syncs to do now; one step is under way at a time
    flushed()                          the step is synced; with a flush's last step `synced` advances
    failed(error)                      the outcome is unknown; the journal accepts nothing more

`Version1Ring` lays out the records and cuts the steps; `Version1Writer` tracks enqueued messages and decides which
records are accepted (formats/rhm/README.md, 3.3, 3.5 and 3.6).

Layout. A log offset is a block of the endless stream of all laps round the ring: divided by a file's blocks it gives
the file, counted over all laps; that modulo the number of files is the file's number, and the parity of the lap is the
overwrite indicator. Records are contiguous and continue in the next file when one ends, several times if they are long.
A file's header is made when the first part of a record reaches it, and states the offset of the first record that
begins in this file:

    a new record                                    right after the header
    the rest of a record that does not fill it      after that rest
    the rest of a record that fills it              0

A flush is padded with fillers to the end of its sector. It is cut into writes at the boundaries of the slices of the
data area that qpidd calls pages of its write cache, as far as they were not written before; these slices are
independent of file boundaries here, so that a page which does not divide a file leaves none of it unused.

Like qpidd, the writer enters a file only when everything written before is on the disk. The header precedes the data,
since no reader expects records of a new lap after a header of the old one:

    step 1          the rest of the current file
    step 2, 3       the header of the next file; the data for it
    step 4, 5       the same for each further file

So at any time the disk has a prefix of the stream, and beyond it only the writes of one step in one file. A single
flush may go round the whole ring.

Acceptance. Each file counts the messages whose enqueue records begin in it and that are not dequeued, including those
of open transactions. A file is entered again only when its count is zero. Two rules follow:

    threshold   an enqueue is refused if it, plus a reserve of 20 % of the ring or one file, whichever is larger, would
                reach a file whose count is not zero, or go round to the current file
    full        any record that would enter such a file is refused

There is no compaction: one message that stays can fill a journal until it does not even accept dequeues, as in qpidd.
qpidd writes a record first and then switches to the next file, so an operation that it refuses as "full" may be on the
disk; here nothing of a refused operation is written. A duplicate record id, which qpidd detects after it wrote the
record, is refused likewise.

A transaction's dequeue locks its message until the commit or the abort. Transient messages count and can be dequeued
like others; recovery ignores them. Recovery drops transactions that were never prepared, without a record of that, as
in qpidd.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from qstore.formats.rhm.file_header import FileHeader, encode_file_header
from qstore.formats.rhm.geometry import BLOCK_SIZE, DATA_OFFSET, PAGE_SIZE, SECTOR_SIZE, Geometry
from qstore.formats.rhm.records import (
    COMMIT_DECISION,
    COMMON,
    EXTERNAL,
    LAYOUTS,
    OVERWRITE_INDICATOR,
    PADDING,
    TAIL,
    TAIL_SIZE,
    TRANSIENT,
    Kind,
    RecordHeader,
    encode_header,
    encode_record,
    version_1_check,
)
from qstore.store.errors import JournalError, JournalFailedError, JournalFullError
from qstore.store.journal.journal import Journal
from qstore.store.journal.reader import JournalEnd
from qstore.store.journal.recovery import JournalRecovery
from qstore.store.journal.ring.files import RingFile
from qstore.store.journal.write.flushes import Step, Write
from qstore.store.journal.write.space import over_threshold, reserve_blocks

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
        # The journal's end as read by recovery may only be in the page cache: the first step syncs it too.
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


@dataclass(slots=True)
class OpenTransaction:
    """The operations of an open transaction in one journal.

    Attributes:
        enqueues: record ids of the messages that it would enqueue.
        dequeues: record ids of the messages that it would dequeue; they are locked.
    """

    enqueues: set[int] = field(default_factory=set)
    dequeues: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Version1State:
    """The content of a journal when its writer resumes it; empty if it is new. The writer then owns the dicts.

    Attributes:
        position: block of the endless stream of all laps where it ended. The lap number matters only for its parity,
            the overwrite indicator.
        enqueued: record id -> number of the file in which the enqueue record begins, of every existing message,
            including those that open transactions enqueue.
        transactions: xid -> the open transaction.
    """

    position: int = 0
    enqueued: dict[int, int] = field(default_factory=dict)
    transactions: dict[bytes, OpenTransaction] = field(default_factory=dict)


class Version1Writer:
    """The writer of one journal.

    Args:
        name: the journal's id, for errors: the queue's name, or "TplStore".
        geometry: number and size of the files.
        page: maximum bytes of one write: the page of the write cache.
        clock: returns nanoseconds since the epoch, for the file headers.
        state: the existing content.

    Attributes:
        failure: the error after which the journal accepts no records; None if there is none.
    """

    __slots__ = (
        "_counts",
        "_enqueued",
        "_geometry",
        "_holders",
        "_name",
        "_reserve",
        "_ring",
        "_transactions",
        "failure",
    )

    def __init__(
        self,
        name: str,
        geometry: Geometry,
        *,
        page: int,
        clock: Callable[[], int],
        state: Version1State | None = None,
    ) -> None:
        state = Version1State() if state is None else state
        self._name, self._geometry = name, geometry
        self._ring = Version1Ring(geometry, page=page, clock=clock, position=state.position)
        self._enqueued = state.enqueued
        self._transactions = state.transactions
        self._counts = [0] * geometry.files
        for file in state.enqueued.values():
            self._counts[file] += 1
        self._holders: dict[int, bytes] = {}  # message -> transaction that enqueues or dequeues it
        for xid, transaction in state.transactions.items():
            self._holders.update(dict.fromkeys(transaction.enqueues | transaction.dequeues, xid))
        self._reserve = reserve_blocks(geometry)
        self.failure: JournalFailedError | None = None

    # ---- state ----

    @property
    def position(self) -> int:
        """Block of the endless stream of all laps where the next record goes."""
        return self._ring.position

    @property
    def counts(self) -> tuple[int, ...]:
        """For each file, the number of messages that prevent its reuse."""
        return tuple(self._counts)

    @property
    def batch_number(self) -> int:
        """Number of the flush of the current batch, from 1."""
        return self._ring.batch_number

    @property
    def synced(self) -> int:
        """Number of the last synced flush; 0 for none."""
        return self._ring.synced

    @property
    def is_dirty(self) -> bool:
        """Whether anything is unsynced: a resumed journal may begin with fillers to write."""
        return self._ring.is_dirty

    @property
    def unsynced(self) -> int:
        """Bytes appended and not known to be on the disk."""
        return self._ring.unsynced

    # ---- records ----

    def enqueue(
        self, rid: int, data: Sequence[bytes], *, xid: bytes = b"", transient: bool = False, external_size: int = 0
    ) -> None:
        """Append a message.

        Args:
            rid: its record id.
            data: its data, in parts.
            xid: the transaction that enqueues it; none by default.
            transient: recovery will ignore it.
            external_size: size in bytes of data stored elsewhere; `data` is empty then.

        Raises:
            JournalFullError: there is no room, by the threshold or at all.
            JournalFailedError: the journal failed earlier.
            JournalError: the record id is already enqueued. In all cases nothing was appended.
        """
        self._check_usable()
        if rid in self._enqueued:
            raise self._error(f"record 0x{rid:x} is already enqueued")
        flags = (TRANSIENT if transient else 0) | (EXTERNAL if external_size else 0)
        size = external_size or sum(map(len, data))
        header = RecordHeader(Kind.ENQUEUE, 1, flags, rid, len(xid), size)
        self._check_enterable(1)
        self._check_threshold(header.size // BLOCK_SIZE)
        file = self._append(header, xid, data)
        self._enqueued[rid] = file
        self._counts[file] += 1
        if xid:
            self._open(xid).enqueues.add(rid)
            self._holders[rid] = xid

    def dequeue(self, rid: int, dequeued_rid: int, *, xid: bytes = b"", commit_decision: bool = False) -> None:
        """Append the removal of a message; in a transaction the message is locked until that ends.

        Args:
            rid: the record's own id.
            dequeued_rid: the message.
            xid: the transaction that removes it; none by default.
            commit_decision: in the transaction prepared list: the decision is to commit.

        Raises:
            JournalFullError: the next file still holds messages.
            JournalFailedError: the journal failed earlier.
            JournalError: the message does not exist, or is locked. In all cases nothing was appended.
        """
        self._check_usable()
        self._check_dequeue(dequeued_rid, xid)
        flags = COMMIT_DECISION if commit_decision else 0
        self._append(RecordHeader(Kind.DEQUEUE, 1, flags, rid, len(xid), dequeued_rid=dequeued_rid), xid)
        if xid:
            self._open(xid).dequeues.add(dequeued_rid)
            self._holders[dequeued_rid] = xid
        else:
            self._remove(dequeued_rid)

    def commit(self, rid: int, xid: bytes) -> None:
        """Append the commit of an open transaction: messages it dequeued are removed, those it enqueued exist.

        Raises:
            JournalError: no such transaction is open. Otherwise as `dequeue`.
        """
        for message in self._end(Kind.COMMIT, rid, xid).dequeues:
            self._remove(message)

    def abort(self, rid: int, xid: bytes) -> None:
        """Append the abort of an open transaction: messages it enqueued are removed, those it dequeued are unlocked.

        Raises:
            JournalError: no such transaction is open. Otherwise as `dequeue`.
        """
        for message in self._end(Kind.ABORT, rid, xid).enqueues:
            self._remove(message)

    def _append(self, header: RecordHeader, xid: bytes, data: Sequence[bytes] = ()) -> int:
        self._check_enterable(header.size // BLOCK_SIZE)
        return self._ring.append(header, xid, data)

    def _remove(self, rid: int) -> None:
        self._counts[self._enqueued.pop(rid)] -= 1

    # ---- transactions ----

    def _open(self, xid: bytes) -> OpenTransaction:
        return self._transactions.setdefault(xid, OpenTransaction())

    def _end(self, kind: Kind, rid: int, xid: bytes) -> OpenTransaction:
        self._check_usable()
        if xid not in self._transactions:
            raise self._error(f"no transaction {xid.hex()} is open")
        self._append(RecordHeader(kind, 1, 0, rid, len(xid)), xid)
        transaction = self._transactions.pop(xid)
        for message in transaction.enqueues | transaction.dequeues:
            self._holders.pop(message, None)
        return transaction

    def _check_dequeue(self, rid: int, xid: bytes) -> None:
        """Check that a message is enqueued, perhaps by the same transaction, and that no transaction dequeues it."""
        holder = self._holders.get(rid)
        is_pending = holder is not None and rid in self._transactions[holder].enqueues
        if rid not in self._enqueued or (is_pending and holder != xid):
            raise self._error(f"there is no record 0x{rid:x} to dequeue")
        if holder is not None and rid in self._transactions[holder].dequeues:
            raise self._error(f"record 0x{rid:x} is locked by transaction {holder.hex()}")

    # ---- admission ----

    def _check_usable(self) -> None:
        if self.failure is not None:
            raise JournalFailedError(str(self.failure))

    def _check_enterable(self, blocks: int) -> None:
        """Check that a record of `blocks` blocks enters no file with messages, nor the file in which it begins."""
        files = self._geometry.files
        entered = self._ring.entered_by(blocks)
        overlaps = entered and entered[-1] - self._ring.file >= files
        if overlaps or any(self._counts[index % files] for index in entered):
            raise JournalFullError(f'Journal full on queue "{self._name}".')

    def _check_threshold(self, blocks: int) -> None:
        """Check that an enqueue of `blocks` blocks leaves the reserve free."""
        files, file_blocks = self._geometry.files, self._ring.file_blocks
        present, used = divmod(self._ring.position, file_blocks)
        reached = (used + blocks + self._reserve - 1) // file_blocks
        if reached >= files or any(self._counts[(present + ahead) % files] for ahead in range(1, reached + 1)):
            raise over_threshold(f'queue "{self._name}"', files, self._geometry.data_size // PAGE_SIZE)

    def _error(self, what: str) -> JournalError:
        return JournalError(f'queue "{self._name}": {what}')

    # ---- steps ----

    def next_flush(self) -> Step | None:
        """The next step; None if nothing is to be written, a step is under way, or the journal failed."""
        return self._ring.next_flush()

    def flushed(self) -> None:
        """The step is written and synced."""
        if self.failure is None:
            self._ring.flushed()

    def failed(self, error: OSError) -> None:
        """A write or a sync of the step failed: it is unknown what reached the disk."""
        if self.failure is None:
            where = f" of {error.filename}" if error.filename else ""
            self.failure = JournalFailedError(
                f'queue "{self._name}": a write or sync{where} failed: {error.strerror or error}; '
                "the journal accepts no more records until the store is opened again"
            )
            self._ring.drop()


def state_of(
    journal: Journal, recovery: JournalRecovery, end: JournalEnd | None, prepared: Container[bytes] | None = None
) -> Version1State:
    """The state in which a writer resumes a recovered journal.

    Args:
        journal: the journal.
        recovery: the result of a walk over all of it, its transactions not yet resolved.
        end: where the walk ended; None if nothing was ever written.
        prepared: the transactions in the prepared list; the others are dropped. None, which is for the prepared list
            itself, drops none.

    Raises:
        JournalError: a file's header is lost, or the journal is of another format.
    """
    if end is None:
        return Version1State()
    geometry = journal.files.geometry
    base = _first_file(journal) * geometry.data_size
    enqueued = {rid: _number(base + place, geometry) for rid, place, _ in recovery.messages.in_place_order()}
    transactions: dict[bytes, OpenTransaction] = {}
    holders: dict[int, OpenTransaction] = {}
    for transaction in recovery.transactions:
        if prepared is not None and transaction.xid not in prepared:
            continue
        opened = transactions[transaction.xid] = OpenTransaction()
        for operation in transaction:
            if not operation.is_enqueue:
                if operation.rid in holders:  # a lock was dropped without a record: the later one counts
                    holders[operation.rid].dequeues.discard(operation.rid)
                if operation.rid in enqueued:
                    holders[operation.rid] = opened
                    opened.dequeues.add(operation.rid)
            elif operation.rid not in enqueued:
                enqueued[operation.rid] = _number(base + operation.place, geometry)
                opened.enqueues.add(operation.rid)
    return Version1State((base + end.place) // BLOCK_SIZE, enqueued, transactions)


def _number(place: int, geometry: Geometry) -> int:
    """The number of the file that contains a byte of the endless stream."""
    return place // geometry.data_size % geometry.files


def _first_file(journal: Journal) -> int:
    """The oldest file, counted over all laps."""
    files = [file for file in journal.files.files if isinstance(file, RingFile)]
    for file in files:
        if file.header is None or file.header.version != 1:
            raise JournalError(f"{file.path}: version-1 header is missing; the journal cannot be written to")
    header = files[0].header
    assert header is not None
    return header.overwrite_indicator * journal.files.geometry.files + header.file_number
