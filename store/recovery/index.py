"""The index of a journal: what a scan up to a log offset would find, so that a start reads only what follows it.

    written   at a clean close, and now and then while the store runs: where a journal has been quiet for a second, or
              has grown very much (`IndexRecorder`)
    used      by a start, if the journal is still the one that it describes: its files have the salts that the index
              names, and the last record that it knows of is where it was, in its flush. Then the records after it are
              walked as always. Nothing before it is missing: a flush is written when the one before it is synced
    dropped   if anything is unusual: any damage, any contradiction, a record that refers to something unknown. Then
              the whole journal is read, as if there were no index. So an index can only save time: it is written
              without syncing, may be of any age, and may be lost

Tools do not use it, nor does a start with the option on-damage=refuse: they read everything.

What the index describes is not read by a start, nor verified. A record is, when its message is: one that is damaged is
then an error of its message. From that moment the journal's index counts as doubtful, and is removed, so that the next
start reads the journal, and deals with the damage as with any other.

There is none while a journal has open transactions, of the prepared list, and of journals that are read quickly
anyway. A backup does not have it.
"""

from __future__ import annotations

import contextlib
import posixpath
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from operator import lt
from typing import Final, TypeAlias
from uuid import UUID

from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.index import (
    MAX_CHUNK,
    MAX_MESSAGES,
    MESSAGE_SIZE,
    Chunk,
    IndexFileError,
    IndexHeader,
    Run,
    decode_index_header,
    decode_parts,
    encode_index,
    size_of,
)
from qstore.store.catalogue.store_directory import StoreDirectory
from qstore.store.disk import Disk, WritableDisk
from qstore.store.environment import Background
from qstore.store.journal.journal import Journal
from qstore.store.journal.recovery import MessagesSinceIndex
from qstore.store.journal.ring.files import Ring, RingFile, owner_of
from qstore.store.journal.write.live_records import RestingRecords, parts_of
from qstore.store.journal.write.space import SIZE_BITS, SIZE_MASK
from qstore.store.live.queue_journal import QueueJournal
from qstore.store.log_lines import Level, LogLine

NAME: Final = "index"
_NEW: Final = ".new"

# ---- reading ----


class JournalIndex(NamedTuple):
    """An index that was read, and is sound in itself.

    Attributes:
        header: whose it is, and the log offset.
        resting: the messages.
    """

    header: IndexHeader
    resting: RestingRecords

    def messages(self, journal: Journal) -> MessagesSinceIndex | None:
        """Its messages, if it describes an open journal; None if it does not. They are taken over."""
        header, info, ring = self.header, journal.info, journal.files
        if info is None or journal.damage or not isinstance(ring, Ring) or not ring.files:
            return None
        salts = [None if file.header is None else file.header.salt for file in ring.files]
        owners = {
            owner_of(file.header) for file in ring.files if isinstance(file, RingFile) and file.header is not None
        }
        identity = (header.queue_id, header.incarnation)
        if owners != {identity} or (info.queue_id, info.incarnation) != identity:
            return None
        if ring.geometry.data_size != header.data_size:
            return None
        file_blocks = header.data_size // BLOCK_SIZE
        begun = header.begin // file_blocks  # the file in which the flush begins
        if not 0 <= begun - header.first < len(header.salts):
            return None
        salt = header.salts[begun - header.first]
        if salts.count(salt) != 1:
            return None
        first = begun - salts.index(salt)  # the oldest file that is there, counted as in the index
        for at, each in enumerate(header.salts, header.first - first):
            if at >= len(salts) or (at >= 0 and salts[at] != each):
                return None
        return MessagesSinceIndex(self.resting, first * file_blocks, header.highest_rid, header.place)


def read_index(disk: Disk, path: str) -> JournalIndex:
    """Read an index file.

    Raises:
        IndexFileError: it is not one, or is torn or damaged.
        OSError: it cannot be read.
    """
    file = disk.open(path)
    try:
        header, offset, crc = decode_index_header(file)
        resting = RestingRecords()
        for part in decode_parts(file, header, offset, crc):
            if isinstance(part, Run):
                resting.add_run(part.first, part.messages, part.packed >> SIZE_BITS, part.packed & SIZE_MASK)
            else:
                resting.extend(*part)
    finally:
        file.close()
    return JournalIndex(header, resting)


class Indexes:
    """The index files of a store, for its start.

    Args:
        disk: reads them.
        directory: the store's.
        store_id: its unique id.
        is_used: if not, there is no index for any journal.
    """

    def __init__(self, disk: Disk, directory: StoreDirectory, store_id: UUID, *, is_used: bool = True) -> None:
        self._disk, self._path, self._store_id = disk, directory.part(NAME), store_id
        self._names: set[str] = set()
        if is_used:
            with contextlib.suppress(OSError):
                self._names.update(disk.names(self._path))

    def of(self, queue_id: int, journal_id: int) -> JournalIndex | None:
        """The index of a queue's journal, if there is a sound one."""
        name = str(journal_id)
        if name not in self._names:
            return None
        try:
            found = read_index(self._disk, posixpath.join(self._path, name))
        except (OSError, IndexFileError):
            return None
        header = found.header
        is_own = (header.store_id, header.queue_id, header.journal_id) == (self._store_id, queue_id, journal_id)
        return found if is_own else None


# ---- writing ----

MIN_BYTES: Final = 4 << 20
"""Of a journal for which there is an index at a clean close: 30 ms to scan (tests.bench.bench_start)."""
QUIET_BYTES: Final = 8 << 20
"""By which a journal has grown since its last index when it gets another, if nothing was appended for a second."""
BUSY_BYTES: Final = 256 << 20
"""The same, if something is appended all the time; and by 16 times the size of the index."""
MAX_AWAKE: Final = 300_000
"""Messages that do not rest of a journal that gets an index while the store runs: copying more takes over 5 ms."""
_BUSY_FACTOR: Final = 16
_FEW: Final = 32  # messages of a chunk that may be a run: `parts_of` has found longer ones
_PORTION: Final = 1000
"""Journals that are looked at in one turn of the event loop."""


class _Taken(NamedTuple):
    """The state of a journal, copied.

    Attributes:
        header: of the index.
        awake: record ids, and log offsets and blocks, of the messages that do not rest, as they were appended.
        resting: those that do, by record id.
    """

    header: IndexHeader
    awake: _Columns
    resting: list[_Columns | Run]

    def parts(self) -> Iterator[Chunk | Run]:
        """All messages, by record id. Those that do not rest are before, after and between those that do."""
        rids, packed = self.awake
        if not all(map(lt, rids, islice(rids, 1, None))):  # compaction has moved some
            rids, packed = _columns(sorted(zip(rids, packed, strict=True)))
        done = 0
        for part in self.resting:
            begin = bisect_left(rids, part.first if isinstance(part, Run) else part[0][0], done)
            yield from _cut(rids[done:begin], packed[done:begin])
            if isinstance(part, Run):
                done = begin
                yield part
                continue
            done = bisect_left(rids, part[0][-1], begin)
            if begin < done:
                among = zip(rids[begin:done], packed[begin:done], strict=True)
                part = _columns(sorted(chain(among, zip(*part, strict=True))))
            yield from _cut(*part)
        yield from _cut(rids[done:], packed[done:])


#: Record ids, and log offset and blocks of each.
_Columns: TypeAlias = "tuple[array[int], array[int]]"


def _columns(entries: Sequence[tuple[int, int]]) -> _Columns:
    return array("Q", [rid for rid, _ in entries]), array("Q", [packed for _, packed in entries])


def _cut(rids: array[int], packed: array[int]) -> Iterator[Chunk | Run]:
    for first, end, is_run in parts_of(rids, packed):
        if is_run:
            yield Run(rids[first], end - first, packed[first])
            continue
        for begin in range(first, end, MAX_CHUNK):
            part = packed[begin : min(begin + MAX_CHUNK, end)]
            yield Chunk(rids[begin : min(begin + MAX_CHUNK, end)], part, min(part), max(part))


def take_index(journal: QueueJournal, store_id: UUID, highest_rid: int) -> _Taken | None:
    """Copy what the index of a running journal consists of; None if it can have none now.

    Args:
        journal: the journal.
        store_id: its store's id.
        highest_rid: the highest record id in use.
    """
    writer = journal.writer
    batch, records, file = writer.batch, writer.records, writer.space.file
    if writer.failure is not None or journal.is_deleted or journal.is_leaving or journal.is_doubtful:
        return None
    if records.transactions or records.left or records.messages > MAX_MESSAGES:
        return None
    place = batch.position
    if batch.records.is_empty:
        begin, flush, last_rid = batch.last_start, batch.last_number, batch.last_rid
    else:
        begin, flush, last_rid = batch.start, batch.number, batch.records.last_rid
    if not last_rid:
        return None  # nothing was appended since the journal was opened
    first, last = min(batch.salts), (place - 1) // file
    salts = tuple(batch.salts[index] for index in range(first, last + 1))
    header = IndexHeader(
        store_id,
        journal.queue_id,
        int(posixpath.basename(journal.directory)),
        writer.owner.incarnation,
        file * BLOCK_SIZE,
        place,
        begin,
        flush,
        last_rid,
        highest_rid,
        first,
        salts,
        records.messages,
    )
    resting = [_copied(rids, packed) for rids, packed in records.resting.portions()]
    return _Taken(header, (array("Q", records.live), array("Q", records.live.values())), resting)


def contiguous(parts: Iterable[Chunk | Run]) -> Iterator[Chunk | Run]:
    """Join parts whose messages have consecutive record ids and follow one another in the log, all of one size.

    While a queue is filled, single messages, which rest later, lie between its runs: a run ends where a read from the
    publisher's socket did. Joined, a start has a quarter of the parts to look at, or fewer.
    """
    run: Run | None = None
    for part in parts:
        following = part if isinstance(part, Run) else _as_run(part)
        if run is not None and following is not None and _follows(following, run):
            run = run._replace(messages=run.messages + following.messages)
            continue
        if run is not None:
            yield run
        run = following
        if following is None:
            yield part
    if run is not None:
        yield run


def _as_run(chunk: Chunk) -> Run | None:
    """A short chunk as a run, if it can be one."""
    count, first, place = len(chunk.rids), chunk.rids[0], chunk.packed[0]
    if count > _FEW or chunk.rids[-1] - first != count - 1:
        return None
    step = (place & SIZE_MASK) << SIZE_BITS
    is_run = all(packed == place + number * step for number, packed in enumerate(chunk.packed))
    return Run(first, count, place) if is_run else None


def _follows(run: Run, before: Run) -> bool:
    blocks = before.packed & SIZE_MASK
    return run.first == before.first + before.messages and run.packed == before.packed + (
        before.messages * blocks << SIZE_BITS
    )


def _copied(rids: Sequence[int], packed: Sequence[int]) -> _Columns | Run:
    if isinstance(rids, range):
        return Run(rids[0], len(rids), packed[0])
    return array("Q", rids), array("Q", packed)


def write_index(disk: WritableDisk, parent: str, taken: _Taken) -> None:
    """Write an index file in the directory `parent`, not synced. Raises OSError; the old file remains then."""
    path = posixpath.join(parent, str(taken.header.journal_id))
    parts = list(contiguous(taken.parts()))
    size = size_of(len(taken.header.salts), parts)
    if disk.is_file(path + _NEW):
        disk.remove(path + _NEW)
    try:
        with contextlib.closing(disk.create(path + _NEW, size)) as file:
            offset = 0
            for piece in encode_index(taken.header, parts):
                file.write(offset, piece)
                offset += len(piece)
        disk.rename(path + _NEW, path)
    except OSError:
        with contextlib.suppress(OSError):
            disk.remove(path + _NEW)
        raise


class IndexRecorder:
    """Writes the indexes of a running store. Nothing waits for that, and no message costs anything.

    Args:
        disk: writes the files.
        directory: the store's.
        store_id: its unique id.
        journals: queue id -> journal; updated by others.
        highest_rid: returns the highest record id in use.
        background: writes the files while the store runs.
        log: receives log lines.
    """

    def __init__(
        self,
        disk: WritableDisk,
        directory: StoreDirectory,
        store_id: UUID,
        journals: Mapping[int, QueueJournal],
        highest_rid: Callable[[], int],
        background: Background,
        log: Callable[[LogLine], None],
    ) -> None:
        self._disk, self._path, self._store_id = disk, directory.part(NAME), store_id
        self._journals, self._highest_rid, self._background = journals, highest_rid, background
        self._log, self._has_failed = log, False
        self._waiting: deque[QueueJournal] = deque()
        self._seen: dict[QueueJournal, int] = {}  # where each ended when it was looked at last
        self._places: dict[QueueJournal, int] = {}  # the log offset of each one's index
        self._is_writing = False

    def begin(self, places: Mapping[int, int | None]) -> None:
        """Remove what is left of journals that are gone.

        Args:
            places: queue id -> log offset of the index with which it was recovered; None if it was not.
        """
        self._places = {self._journals[each]: place for each, place in places.items() if place is not None}
        in_use = {posixpath.basename(journal.directory) for journal in self._journals.values()}
        with contextlib.suppress(OSError):
            if self._disk.is_directory(self._path):
                for name in self._disk.names(self._path):
                    if name not in in_use:
                        self._disk.remove(posixpath.join(self._path, name))

    def look(self) -> None:
        """Write one index, if one is due, or remove one. Call it about every second."""
        if self._is_writing:
            return
        for journal in self._places:
            if journal.is_deleted or journal.is_doubtful:
                self._remove(journal)
                return
        if not self._waiting:
            self._waiting.extend(self._journals.values())
            self._seen = {each: self._seen[each] for each in self._waiting if each in self._seen}
        for _ in range(min(_PORTION, len(self._waiting))):
            journal = self._waiting.popleft()
            if self._is_due(journal) and len(journal.writer.live) <= MAX_AWAKE:
                taken = take_index(journal, self._store_id, self._highest_rid())
                if taken is not None:
                    self._write(journal, taken)
                    return

    def record(self) -> None:
        """Write the indexes of all journals that have changed and take long to read: the store is being closed."""
        for journal in self._journals.values():
            grown, scanned = self._grown(journal)
            if journal.is_doubtful and journal in self._places:
                with contextlib.suppress(OSError):
                    self._disk.remove(self._path_of(journal))
            elif grown and scanned * BLOCK_SIZE >= MIN_BYTES:
                taken = take_index(journal, self._store_id, self._highest_rid())
                if taken is not None:
                    try:
                        self._work(taken)
                    except OSError as error:
                        self._failed(error)
                        return

    def _is_due(self, journal: QueueJournal) -> bool:
        position = journal.writer.batch.position
        is_quiet = self._seen.get(journal) == position
        if not is_quiet:
            self._seen[journal] = position
        grown, _ = self._grown(journal)
        if is_quiet:
            return grown * BLOCK_SIZE >= QUIET_BYTES
        return grown * BLOCK_SIZE >= max(BUSY_BYTES, _BUSY_FACTOR * MESSAGE_SIZE * journal.writer.records.messages)

    def _grown(self, journal: QueueJournal) -> tuple[int, int]:
        """The blocks that a start would have to walk with the journal's last index, and without."""
        writer = journal.writer
        position, oldest = writer.batch.position, writer.space.oldest * writer.space.file
        return position - max(oldest, self._places.get(journal, oldest)), position - oldest

    def _write(self, journal: QueueJournal, taken: _Taken) -> None:
        def done(_: None) -> None:
            self._is_writing = False
            self._places[journal] = taken.header.place

        self._is_writing = True
        self._background.run(partial(self._work, taken), done, self._failed)

    def _work(self, taken: _Taken) -> None:
        if not self._disk.is_directory(self._path):
            self._disk.make_directory(self._path)
        write_index(self._disk, self._path, taken)

    def _remove(self, journal: QueueJournal) -> None:
        def done(_: None) -> None:
            self._is_writing = False

        del self._places[journal]
        self._seen.pop(journal, None)
        self._is_writing = True
        self._background.run(partial(self._disk.remove, self._path_of(journal)), done, lambda _: done(None))

    def _path_of(self, journal: QueueJournal) -> str:
        return posixpath.join(self._path, posixpath.basename(journal.directory))

    def _failed(self, error: Exception) -> None:
        self._is_writing = False
        if not self._has_failed:
            self._has_failed = True
            text = f"{self._path}: an index cannot be written, so the next start may take longer: {error}"
            self._log(LogLine(Level.WARNING, text))
