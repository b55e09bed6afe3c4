"""Verifies a whole store: the data that recovery reads, and the data that it skips.

Recovery itself (`store.inspect.offline`) finds most damage: headers, tails, checksums, overwrite indicators, flush
numbers, ids used twice, dequeues of missing messages, transactions, queues without journals and the reverse. A check
adds checks that recovery does not need:

    file times    whether the times in the headers of a journal's files, which a writer creates one after another,
                  decrease. That is not damage: a clock may have been set. But if the record ids in the headers of a
                  legacystore, which has no other evidence, decrease with them, a file from an earlier lap, or from
                  another journal, was put there
    messages      whether each outstanding message's frames fit. A version-1 journal has no checksums, so corrupted
                  bytes in a message are detected only if they break its structure. By default the frames before the
                  content are checked against each other; `decode` decodes the whole header
    pools         the files of a linearstore's pools: whether journals can take unused ones, and whether taken ones are
                  in use. At its start qpidd examines the unused files; it resets those that are not reset, and ignores
                  invalid ones (formats/qls/README.md, 3.4)
    second pass   with "paranoid": every record again, one by one, with an independent implementation of its checksum,
                  a check of the padding, and a second index. The first pass reads plain records in runs, with a fast
                  CRC-32C or zlib's Adler-32. Differences between the two are reported, so that no single piece of code
                  has to be trusted
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, zip_longest
from typing import Any, Final

from qstore.formats.broker_records.messages import HEADER_SIZE_BYTES, decode_message_header, frames_problem, header_size
from qstore.formats.checksum import independent_crc32c
from qstore.formats.errors import BrokerRecordError, QlsError, RhmError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.qls.file_header import (
    FILE_HEADER_SIZE,
    NAME_OFFSET,
    FileHeader,
    decode_file_header,
    header_oddities,
)
from qstore.formats.qls.file_header import FileHeader as LinearHeader
from qstore.formats.qls.records import TAIL_SIZE as LINEAR_TAIL_SIZE
from qstore.formats.qls.records import decode_tail as decode_linear_tail
from qstore.formats.rhm.file_header import RID_OFFSET
from qstore.formats.rhm.file_header import FileHeader as RingHeader
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.records import SALT, TAIL_SIZE, Kind, decode_tail, is_padding
from qstore.store.damage import Damage, DamageKind, Effect
from qstore.store.disk import Disk
from qstore.store.inspect.layout import StoreKind
from qstore.store.inspect.measure import Measurement, measure
from qstore.store.inspect.offline import OfflineStore, RecoveredQueue, RecoveredStore, RecoveredTransaction
from qstore.store.journal.files import JournalFile, JournalFormat
from qstore.store.journal.journal import Journal
from qstore.store.journal.line.files import FilePool, LinearFile, PooledFile
from qstore.store.journal.records import RecordHeader
from qstore.store.journal.recovery import JournalRecovery, Outcome
from qstore.store.journal.ring.files import RingFile

# ---- file times ----

_HOW: Final = {
    DamageKind.HEADER_OLDER: "older than that of the previous file",
    DamageKind.HEADER_NEWER: "newer than that of the next file",
}


class _Stamp(NamedTuple):
    """The creation time of a file's header: by the clock, in seconds and nanoseconds, and by the current record id."""

    path: str
    time: tuple[int, int]
    rid: int


def times_out_of_order(journal: Journal) -> tuple[list[Damage], list[str]]:
    """Damage and notices about headers whose times do not fit between those of the other files."""
    damage: list[Damage] = []
    notices: list[str] = []
    stamps = [_stamp(file) for file in journal.files.files if file.header is not None]
    for stamp, other, kind in _misfits(stamps):
        seconds = abs(stamp.time[0] - other.time[0])
        by_rid = stamp.rid < other.rid if stamp.time < other.time else stamp.rid > other.rid
        if by_rid and journal.format is JournalFormat.VERSION_1:
            damage.append(Damage(stamp.path, RID_OFFSET, None, kind, seconds=seconds, recorded=stamp.rid))
        else:
            notices.append(
                f"{stamp.path}: file header is {_HOW[kind]}, by {seconds} s; "
                "the clock was set, or the header was altered; this has no effect"
            )
    return damage, notices


def _stamp(file: JournalFile[Any]) -> _Stamp:
    header: RingHeader | LinearHeader | None = file.header
    assert header is not None
    return _Stamp(file.path, (header.seconds, header.nanoseconds), header.rid)


def _misfits(stamps: Sequence[_Stamp]) -> Iterator[tuple[_Stamp, _Stamp, DamageKind]]:
    """The stamps that do not fit, each with the neighbour that it contradicts, and how."""
    fitting = _rising(stamps)
    earlier: _Stamp | None = None
    for index, stamp in enumerate(stamps):
        if fitting and fitting[0] == index:
            earlier = stamps[fitting.pop(0)]
        elif earlier is not None and stamp.time < earlier.time:
            yield stamp, earlier, DamageKind.HEADER_OLDER
        else:
            yield stamp, stamps[fitting[0]], DamageKind.HEADER_NEWER


def _rising(stamps: Sequence[_Stamp]) -> list[int]:
    """The indexes of the longest non-decreasing sequence of times; among equals, the one with later first times.

    So of two stamps of which either would have to be dropped, it is the second: files are more often too old than new.
    """
    ends: list[tuple[int, int]] = []  # backwards: for each length the latest first time of a sequence
    first: list[int] = []  # its index
    following: dict[int, int] = {}  # for each stamp the next one in the longest sequence that it begins
    for index in reversed(range(len(stamps))):
        seconds, nanoseconds = stamps[index].time
        length = bisect_right(ends, (-seconds, -nanoseconds))
        if length:
            following[index] = first[length - 1]
        ends[length : length + 1] = [(-seconds, -nanoseconds)]
        first[length : length + 1] = [index]
    row = first[-1:]
    while row and row[-1] in following:
        row.append(following[row[-1]])
    return row


# ---- messages ----

_PREFIX: Final = 512  # bytes of a message read first
_MAX_HEADER_BYTES: Final = 1 << 24  # maximum header size decoded: an AMQP 1.0 message is all header
_FLAGS_OFFSET: Final = 6  # in an enqueue's header
_PERSISTENT: Final = 2  # delivery mode


def message_damage(queue: RecoveredQueue, *, decode: bool) -> Iterator[Damage]:
    """The outstanding messages of a queue that are not valid messages.

    Args:
        queue: a queue, not the transaction prepared list.
        decode: decode each message's header, instead of only checking its frames, and restore compressed content.
    """
    journal, recovery = queue.journal, queue.recovery
    if journal is None or recovery is None:
        return
    for rid, place, _ in recovery.messages.in_place_order():
        kind = DamageKind.MESSAGE_UNDECODABLE
        try:
            problem = _problem(journal, place, decode=decode)
        except RhmError as error:
            kind, problem = DamageKind.CONTENT_DAMAGED, error.what
        if problem is not None:
            file, offset = journal.stream.locate(place)
            yield Damage(file.path, offset, rid, kind, problem=problem)


def false_transients(queue: RecoveredQueue, *, is_prepared_list: bool) -> Iterator[Damage]:
    """Version 1: records that are flagged transient, so that recovery ignores them, but cannot be.

    Those are messages that are persistent by their own header, and all records of the transaction prepared list.
    """
    journal, recovery = queue.journal, queue.recovery
    if journal is None or recovery is None or journal.format is not JournalFormat.VERSION_1:
        return
    for place in recovery.transient_places:
        if is_prepared_list or _is_persistent(journal, place):
            file, offset = journal.stream.locate(place)
            kind = DamageKind.TRANSIENT_PREPARED if is_prepared_list else DamageKind.TRANSIENT_MESSAGE
            yield Damage(file.path, offset + _FLAGS_OFFSET, None, kind)


def _is_persistent(journal: Journal, place: int) -> bool:
    data_place, size = journal.data_of_enqueue(place)
    try:
        header = _with_header(journal, data_place, size)
        return decode_message_header(header[HEADER_SIZE_BYTES:]).delivery_mode == _PERSISTENT
    except BrokerRecordError:
        return False


def _problem(journal: Journal, place: int, *, decode: bool) -> str | None:
    """The defects of the message at `place`. Raises RhmError if its compressed content is damaged."""
    data_place, size = journal.data_of_enqueue(place)
    if not size:
        return None  # external, or a message without even a header
    if journal.is_compressed(place):
        compressed = journal.compressed_data(data_place, size)
        if decode:
            compressed.whole()
    try:
        start = _with_header(journal, data_place, size)
        problem = frames_problem(start, size)
        if problem is None and decode and len(start) < _MAX_HEADER_BYTES:
            decode_message_header(start[HEADER_SIZE_BYTES:])
    except BrokerRecordError as error:
        return error.what
    return problem


def _with_header(journal: Journal, data_place: int, size: int) -> bytes:
    """A message up to the end of its header, or of its data, but at most `_MAX_HEADER_BYTES` bytes.

    Raises:
        BrokerRecordError: the data are too short even for the header's size.
    """
    prefix = journal.stream.read_aside(data_place, min(size, _PREFIX))
    end = min(HEADER_SIZE_BYTES + header_size(prefix), size, _MAX_HEADER_BYTES)
    return prefix[:end] if end <= len(prefix) else journal.stream.read_aside(data_place, end)


# ---- pools ----


def check_pools(disk: Disk, pool: FilePool, journals: Iterable[Journal]) -> tuple[list[Damage], list[str]]:
    """Damage and notices about a store's pools.

    Args:
        disk: reads them.
        pool: the pools' files.
        journals: all journals of the store.
    """
    damage: list[Damage] = []
    notices: list[str] = []
    for file in pool.waiting:
        _check_waiting(disk, file, damage, notices)
    notices.extend(f"{file.path}: was being returned to the pool; qpidd leaves it there" for file in pool.returned)
    in_use = {file.path: file for journal in journals for file in journal.files.files if isinstance(file, LinearFile)}
    for name, pooled in sorted(pool.taken.items()):
        used = in_use.get(pooled.path)
        if used is not None:
            _check_used(used, pooled, damage)
        elif name not in pool.linked:
            notices.append(f"{pooled.path}: taken from the pool, but no journal has a link to it; it is not read")
    return damage, notices


def _check_waiting(disk: Disk, pooled: PooledFile, damage: list[Damage], notices: list[str]) -> None:
    try:
        file = disk.open(pooled.path)
        try:
            size, sector = file.size, file.read(0, FILE_HEADER_SIZE)
        finally:
            file.close()
        if size < pooled.file_size:
            notices.append(
                f"{pooled.path}: has only {size:,} of {pooled.file_size:,} bytes, as if qpidd had been stopped while "
                "creating the file; no journal can take the file"
            )
            return
        header = decode_file_header(sector)
    except QlsError as error:
        damage.append(Damage(pooled.path, error.offset, None, DamageKind.POOL_FILE_BROKEN, problem=error.what))
        return
    except OSError as failure:
        reason = failure.strerror or str(failure)
        damage.append(Damage(pooled.path, None, None, DamageKind.POOL_FILE_UNREADABLE, reason=reason))
        return
    if size != pooled.file_size:
        end, expected = min(size, pooled.file_size), pooled.file_size
        damage.append(Damage(pooled.path, end, None, DamageKind.POOL_FILE_SIZE, size=size, expected=expected))
    elif header.file_size != pooled.file_size:
        damage.append(Damage(pooled.path, 32, None, DamageKind.POOL_FILE_DATA_SIZE, recorded=header.data_size))
    _check_partition(header, pooled, damage, Effect.NO_JOURNAL_TAKES_IT)
    for offset, problem in header_oddities(sector):
        if offset < NAME_OFFSET:  # an old name may follow the fields, though its length is 0
            damage.append(Damage(pooled.path, offset, None, DamageKind.FILE_HEADER_ODD, problem=problem))
    _check_reset(header, pooled, damage, notices)


def _check_reset(header: FileHeader, pooled: PooledFile, damage: list[Damage], notices: list[str]) -> None:
    """Report a header that is not reset, or only partly."""
    fields = (
        (8, header.serial),
        (16, header.rid),
        (48, header.seconds),
        (56, header.nanoseconds),
        (64, header.file_number),
        (72, header.queue_name),
    )
    left = [offset for offset, value in fields if value]
    if header.serial and header.file_number and header.queue_name:
        notices.append(f'{pooled.path}: still has the header written for queue "{header.queue_name}"; qpidd resets it')
    elif left:
        damage.append(Damage(pooled.path, left[0], None, DamageKind.POOL_FILE_HALF_RESET))


def _check_used(used: LinearFile, pooled: PooledFile, damage: list[Damage]) -> None:
    if used.header is not None:
        _check_partition(used.header, pooled, damage, Effect.RECORDS_READ)


def _check_partition(header: FileHeader, pooled: PooledFile, damage: list[Damage], effect: Effect) -> None:
    if header.partition != pooled.partition:
        kind, recorded, partition = DamageKind.POOL_FILE_PARTITION, header.partition, pooled.partition
        damage.append(Damage(pooled.path, 26, None, kind, effect, recorded=recorded, partition=partition))


# ---- the second pass ----

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


# ---- the check of a store ----

QUEUE, PREPARED_LIST, ORPHAN = "queue", "prepared-list", "orphan"


class JournalCheck(NamedTuple):
    """One journal, checked.

    Attributes:
        role: a queue's, the transaction prepared list, or an orphan.
        queue: the recovered queue.
        journal: the journal; None for a queue that has lost its own.
        measurement: its content and how full it is; None if it could not be read.
        open_transactions: number of transactions that it leaves open.
        damage: number of damages in its files.
    """

    role: str
    queue: RecoveredQueue
    journal: Journal | None
    measurement: Measurement | None
    open_transactions: int
    damage: int

    @property
    def records(self) -> int:
        """Number of records read: enqueues, dequeues, commits and aborts."""
        recovery = self.queue.recovery
        if recovery is None:
            return 0
        return recovery.enqueues + recovery.dequeues + recovery.commits + recovery.aborts


class StoreCheck(NamedTuple):
    """A store, checked.

    Attributes:
        store: the store.
        journals: its journals: the prepared list, the queues', orphans.
        transactions: the open ones.
        damage: everything that a crash does not explain.
        notices: one line each: normal results of a crash, and information for the user.
    """

    store: OfflineStore
    journals: list[JournalCheck]
    transactions: list[RecoveredTransaction]
    damage: list[Damage]
    notices: list[str]

    @property
    def records(self) -> int:
        """Number of records read in all journals."""
        return sum(journal.records for journal in self.journals)


def check_store(
    disk: Disk,
    store: OfflineStore,
    *,
    paranoid: bool = False,
    stage: Callable[[str, int], None] = lambda _what, _bytes: None,
) -> StoreCheck:
    """Verify everything in a store.

    Args:
        disk: reads it.
        store: an opened store; it is recovered here.
        paranoid: read every journal a second time, with different code, decode each outstanding message's header, and
            restore its content if that is compressed.
        stage: called with the name of each stage, and the number of bytes that it will read.
    """
    stage("checking journals", store.size)
    recovered = store.recover()
    damage, notices = store.damage, store.notices
    with_roles = _with_roles(recovered)
    if paranoid:
        stage("second pass", store.size)
    outcomes = {transaction.xid: transaction.outcome for transaction in recovered.transactions}
    for role, queue in with_roles:
        if queue.journal is not None:
            header_damage, header_notices = times_out_of_order(queue.journal)
            damage.extend(header_damage)
            notices.extend(header_notices)
            damage.extend(_beyond_recovery(role, queue, outcomes, paranoid=paranoid))
    if store.pool is not None and store.layout.kind is StoreKind.LINEAR:
        pool_damage, pool_notices = check_pools(disk, store.pool, store.all_journals())
        damage.extend(pool_damage)
        notices.extend(pool_notices)
    found_in = _count_by_journal(damage, with_roles)
    journals = [_checked(role, queue, found_in) for role, queue in with_roles]
    for _, queue in with_roles:
        if queue.journal is not None:
            queue.journal.close()
    return StoreCheck(store, journals, recovered.transactions, damage, notices)


def _with_roles(recovered: RecoveredStore) -> list[tuple[str, RecoveredQueue]]:
    prepared = [] if recovered.prepared_list is None else [(PREPARED_LIST, recovered.prepared_list)]
    return [
        *prepared,
        *((QUEUE, queue) for queue in recovered.queues),
        *((ORPHAN, queue) for queue in recovered.orphans),
    ]


def _beyond_recovery(
    role: str, queue: RecoveredQueue, outcomes: Mapping[bytes, Outcome], *, paranoid: bool
) -> list[Damage]:
    """The damage in one journal's outstanding messages, and of a second pass."""
    assert queue.journal is not None
    found = list(false_transients(queue, is_prepared_list=role == PREPARED_LIST))
    if role != PREPARED_LIST and (paranoid or queue.journal.format is JournalFormat.VERSION_1):
        found.extend(message_damage(queue, decode=paranoid))
    if paranoid:
        found.extend(second_pass(queue, None if role == PREPARED_LIST else outcomes))
    return found


def _count_by_journal(damage: list[Damage], with_roles: list[tuple[str, RecoveredQueue]]) -> Counter[str]:
    """The number of damages that name a journal's directory, or one of its files."""
    owner: dict[str, str] = {}
    for _, queue in with_roles:
        if queue.journal is not None:
            owner[queue.journal.path] = queue.journal.path
            owner.update((file.path, queue.journal.path) for file in queue.journal.files.files)
    counts: Counter[str] = Counter()
    for entry in damage:
        above = entry.file.rpartition("/")[0]
        counts[owner.get(entry.file) or owner.get(above, "")] += 1
    return counts


def _checked(role: str, queue: RecoveredQueue, found_in: Counter[str]) -> JournalCheck:
    journal, recovery = queue.journal, queue.recovery
    if journal is None or recovery is None:
        return JournalCheck(role, queue, None, None, 0, 0)
    is_list = role == PREPARED_LIST
    still_open = len(recovery.transactions) if is_list else len(recovery.left_open)
    try:
        measurement: Measurement | None = measure(journal, recovery, queue.end, is_prepared_list=is_list)
    except OSError:
        measurement = None  # a file can no longer be opened, which the first pass has reported
    return JournalCheck(role, queue, journal, measurement, still_open, found_in[journal.path])
