"""Changes the messages of a store that is not running, through its own writer: adds, copies, moves, removes them.

Every change is one transaction, so that a crash leaves all or nothing of it, and durable when its method returns. Moves
and removals of more messages than fit into one are done in portions, each of which is a transaction: after a crash
some of them have taken place, no message is lost or doubled, and the same change continues with the rest.

A message is copied as it is stored: its header and body byte for byte, and whether it may have been delivered before.
Only the record id is new, as a queue's order is that of its ids.
"""

from __future__ import annotations

import posixpath
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final

from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.headers import data_crc
from qstore.formats.wording import plural, printable
from qstore.store.catalogue.store_directory import Found, StoreDirectory
from qstore.store.environment import Environment
from qstore.store.errors import JournalError, StoreError, advice
from qstore.store.journal.write.flushes import MessageData
from qstore.store.journal.write.space import SIZE_MASK
from qstore.store.key_value import CatalogueError
from qstore.store.live.message_store import MessageStore
from qstore.store.live.queue_journal import Done, QueueJournal
from qstore.store.live.reading import as_bytes
from qstore.store.live.transactions import Dequeue, Enqueue
from qstore.store.log_lines import LogLine
from qstore.store.parameters import OnDamage, StoreParameters
from qstore.store.unfinished import Unfinished, unfinished_stores

MAX_MESSAGES: Final = 10_000  # of a portion
MAX_BYTES: Final = 64 << 20  # of a portion, decompressed: it ends with the messages that reach this
MAX_COPIED_MESSAGES: Final = 50_000  # of a copy, which is one transaction and in memory
MAX_COPIED_BYTES: Final = 64 << 20  # as they are stored; four times as many decompressed
_READ: Final = 16  # messages at once: their content may be far larger than their records
_READ_BYTES: Final = 4 << 20  # of their records

_ROOT: Final = "rhm"

#: Called with numbers of messages as they are durable.
Advance = Callable[[int], None]


class UnknownOutcomeError(StoreError):
    """The disk failed at a moment after which only the next start can determine whether a change took place."""


class StoppedMessages(AbstractContextManager["StoppedMessages"]):
    """A store of version 2, locked and opened to change its messages. Leaving it closes it cleanly.

    Args:
        environment: disk, clock and so on.
        path: the store: the directory that contains `rhm`, or `rhm` itself.
        software_version: of this program.
        log: receives log lines.

    Attributes:
        path: its directory.

    Raises:
        StoreError: there is no such store, or it is in use or damaged, or cannot be written to.
    """

    def __init__(
        self, environment: Environment, path: str, software_version: str, log: Callable[[LogLine], None]
    ) -> None:
        self.path = store_of_version_2(environment, path, software_version)
        parameters = StoreParameters(on_damage=OnDamage.REFUSE)
        self._store = store = MessageStore.open(environment, self.path, parameters, software_version, log=log)
        # Ascending, as are the new ids that are added later.
        self._delivered = {
            queue.queue_id: array("Q", sorted(store.delivered(queue))) for queue in store.recovered_queues
        }
        store.end_recovery()
        self._journals = {journal.name: journal for journal in store.journals.values()}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._store.close(self._delivered)

    @property
    def in_doubt(self) -> list[bytes]:
        """The branches that are in doubt."""
        return self._store.transactions.in_doubt

    def has_queue(self, name: str) -> bool:
        """Whether there is such a queue."""
        return name in self._journals

    def journal(self, name: str) -> QueueJournal:
        """The journal of a queue. Raises StoreError if there is no such queue."""
        found = self._journals.get(name)
        if found is None:
            raise StoreError(f'{self.path}: there is no queue "{printable(name)}"')
        return found

    # ---- changes ----

    def add(self, target: str, messages: Iterable[bytes], *, is_redelivered: bool = False) -> list[int]:
        """Enqueue messages, all or none.

        Args:
            target: the name of their queue.
            messages: the data of each.
            is_redelivered: whether they may have been delivered before.

        Returns:
            Their record ids.

        Raises:
            UnknownOutcomeError: it may have taken place.
            StoreError: nothing was changed.
        """
        journal = self.journal(target)
        rids = self._commit(_enqueues(journal, messages), [])
        if is_redelivered:
            self._delivered.setdefault(journal.queue_id, array("Q")).extend(rids)
        return rids

    def copy(self, source: str, rids: Sequence[int], target: str) -> list[int]:
        """Enqueue copies of messages at the end of a queue, all or none. Returns their ids. Raises as `add`."""
        journal, to = self.journal(source), self.journal(target)
        sizes = self._sizes(journal, rids)
        if len(rids) > MAX_COPIED_MESSAGES or sum(sizes) > MAX_COPIED_BYTES:
            text = f"{plural(len(rids), 'message')} with {sum(sizes):,} bytes are too many for one copy"
            most = f"{MAX_COPIED_MESSAGES:,} messages and {MAX_COPIED_BYTES >> 20} MiB"
            raise StoreError(f"{text}, which has at most {most}: copy them in parts")
        found: list[bytes] = []
        size = 0
        for data in self._read_all(journal, rids, sizes):
            found += data
            size += sum(map(len, data))
            if len(found) > 1 and size > 4 * MAX_COPIED_BYTES:  # compressed content
                raise StoreError(f"these messages have more than {4 * MAX_COPIED_BYTES:,} bytes: take fewer at once")
        return self._transfer(journal, rids, found, to, removes=False)

    def move(self, source: str, rids: Sequence[int], target: str, advance: Advance = lambda _: None) -> list[int]:
        """Move messages to the end of another queue, in order. Returns their new ids. Raises as `add`."""
        journal, to = self.journal(source), self.journal(target)
        if journal is to:
            raise StoreError(f'queue "{printable(source)}" is both source and destination')
        moved: list[int] = []
        for data in self._portions(journal, rids, self._sizes(journal, rids)):
            portion = rids[len(moved) : len(moved) + len(data)]
            moved += self._transfer(journal, portion, data, to, removes=True)
            advance(len(data))
        return moved

    def remove(self, source: str, rids: Sequence[int], advance: Advance = lambda _: None) -> None:
        """Remove messages. Raises as `add`."""
        journal = self.journal(source)
        self._sizes(journal, rids)
        for begin in range(0, len(rids), MAX_MESSAGES):
            portion = rids[begin : begin + MAX_MESSAGES]
            self._commit([], [(journal, rid) for rid in portion])
            advance(len(portion))

    def resolve(self, xid: bytes, *, commits: bool) -> None:
        """Commit a branch in doubt, or roll it back. Raises as `add`."""
        transactions = self._store.transactions
        if xid not in transactions.in_doubt:
            raise StoreError(f"{self.path}: there is no branch in doubt with the id {xid.hex()}")
        end = transactions.commit_prepared if commits else transactions.abort_prepared
        self._durable(lambda done: end(xid, done))

    # ---- steps ----

    def _sizes(self, journal: QueueJournal, rids: Sequence[int]) -> array[int]:
        """Bytes of the records of messages. Raises StoreError if one is not there."""
        where = journal.writer.records.where
        sizes = array("Q")
        for rid in rids:
            packed = where(rid)
            if packed is None:
                text = f"record 0x{rid:x} is not a message of this queue; nothing was changed"
                raise StoreError(f'queue "{printable(journal.name)}": {text}')
            sizes.append((packed & SIZE_MASK) * BLOCK_SIZE)
        return sizes

    def _portions(self, journal: QueueJournal, rids: Sequence[int], sizes: Sequence[int]) -> Iterator[list[bytes]]:
        """The data of the messages of each transaction."""
        portion: list[bytes] = []
        size = 0
        for data in self._read_all(journal, rids, sizes):
            portion += data
            size += sum(map(len, data))
            if len(portion) >= MAX_MESSAGES or size >= MAX_BYTES:
                yield portion
                portion, size = [], 0
        if portion:
            yield portion

    def _read_all(self, journal: QueueJournal, rids: Sequence[int], sizes: Sequence[int]) -> Iterator[list[bytes]]:
        """The data of messages, a few at once."""
        begin = 0
        while begin < len(rids):
            end, size = begin + 1, sizes[begin]
            while end < len(rids) and end - begin < min(_READ, MAX_MESSAGES) and size + sizes[end] <= _READ_BYTES:
                size += sizes[end]
                end += 1
            yield self._read(journal, rids[begin:end])
            begin = end

    def _transfer(
        self, source: QueueJournal, rids: Sequence[int], data: Sequence[bytes], to: QueueJournal, *, removes: bool
    ) -> list[int]:
        """Copy or move messages, with their data, in one transaction."""
        enqueues = _enqueues(to, data)
        dequeues = [(source, rid) for rid in rids] if removes else []
        new = self._commit(enqueues, dequeues)
        known = self._delivered.get(source.queue_id, array("Q"))
        marked = array("Q", (copy for rid, copy in zip(rids, new, strict=True) if _holds(known, rid)))
        self._delivered.setdefault(to.queue_id, array("Q")).extend(marked)
        return new

    def _read(self, journal: QueueJournal, rids: Sequence[int]) -> list[bytes]:
        found: list[list[bytes | Exception]] = []
        self._store.read(journal, rids, as_bytes, found.append)
        while not found:
            self._store.collect(None)
        data: list[bytes] = []
        for rid, each in zip(rids, found[0], strict=True):
            if isinstance(each, Exception):
                title = f'queue "{printable(journal.name)}", record 0x{rid:x}'
                raise StoreError(f"{title}: {each}; this message was not changed, and none after it")
            data.append(each)
        return data

    def _commit(self, enqueues: Sequence[Enqueue], dequeues: Sequence[Dequeue]) -> list[int]:
        rids: list[int] = []
        if enqueues or dequeues:
            self._durable(lambda done: rids.extend(self._store.transactions.commit(enqueues, dequeues, done)))
        return rids

    def _durable(self, begin: Callable[[Done], None]) -> None:
        """Do something, and wait until it is on the disk. Raises StoreError."""
        done: list[Exception | None] = []
        try:
            begin(done.append)
        except (JournalError, CatalogueError) as refusal:
            raise StoreError(f"{refusal}; nothing was changed") from refusal
        while not done:
            self._store.start(is_idle=True)
            self._store.collect(None)
        if done[0] is not None:
            text = f"it is unknown whether the change took place: {done[0]}"
            raise UnknownOutcomeError(f"{text}; check before you repeat it") from done[0]


def _holds(rids: array[int], rid: int) -> bool:
    """Whether a record id is among ascending ones."""
    at = bisect_left(rids, rid)
    return at < len(rids) and rids[at] == rid


def _enqueues(journal: QueueJournal, messages: Iterable[bytes]) -> list[Enqueue]:
    data: list[MessageData] = [((each,), len(each), data_crc((each,))) for each in messages]
    return [(journal, data)] if data else []


def store_of_version_2(environment: Environment, path: str, software_version: str) -> str:
    """The directory of the store at `path`. Raises StoreError unless it is one of version 2."""
    disk = environment.disk
    if posixpath.basename(path.rstrip("/")) == _ROOT and disk.is_file(posixpath.join(path, "STORE")):
        path = posixpath.dirname(path.rstrip("/")) or "."
    directory = StoreDirectory(environment, path, software_version)
    is_there = False
    try:
        if disk.is_directory(path):
            # Or a complete one that gets its final name when it is opened.
            is_there = directory.look() is Found.VERSION_2
            is_there = is_there or Unfinished.NEW_STORE in unfinished_stores(disk, path).values()
    except OSError as error:
        raise StoreError(f"{error.filename or path}: {error.strerror}{advice(error)}") from error
    if not is_there:
        raise StoreError(f"{path}: there is no qstore store here; qstore-recover builds one from other formats")
    return path
