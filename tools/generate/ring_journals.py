"""Journals of a fleet that are rings: each is written by the writer of a running broker.

So their content is what a broker would have written: rings wrap around, version 2 compacts, and version 1 refuses
records for which there is no space. Nothing is synced before everything is written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from qstore.formats.checksum import extend_crc32c
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.geometry import BLOCK_SIZE, DATA_OFFSET, Geometry
from qstore.formats.rhm.jinf import JournalInfo
from qstore.formats.rhm.records import Kind, RecordHeader
from qstore.store.environment import Environment
from qstore.store.errors import JournalBusyError, JournalFullError
from qstore.store.journal.directory import data_path
from qstore.store.journal.write.space import SIZE_BITS
from qstore.store.journal.write.storage import JournalStorage, create_journal
from qstore.store.journal.write.version_1_writer import Version1Writer
from qstore.store.journal.write.version_2_writer import new_state
from qstore.store.live.queue_journal import resume_journal

_WRITE_BYTES: Final = 1 << 20  # largest single write
_MAX_WAITS: Final = 1000  # of space, for one record


class Spot(NamedTuple):
    """Where something is: a file's path, and an offset in it."""

    path: str
    offset: int


class GeneratedJournal(Protocol):
    """A journal that is being written, in any format. Places are positions in the endless stream of its data areas."""

    @property
    def end(self) -> int:
        """The place of the next record."""

    def enqueue(self, rid: int, data: bytes, xid: bytes) -> int:
        """Append an enqueue, transactional if there is an xid. Returns its place. Raises JournalFullError."""

    def dequeue(self, rid: int, target: int, xid: bytes, *, commit_decision: bool = False) -> None:
        """Append the dequeue of the message `target`; in the prepared list, with the commit decision.

        Raises JournalFullError.
        """

    def finish_transaction(self, rid: int, xid: bytes, *, commit: bool) -> None:
        """Append the end of an open transaction. Raises JournalFullError."""

    def flush(self) -> None:
        """Write the batch. Raises OSError."""

    def finish(self) -> None:
        """Write and sync everything, and close the files. Raises OSError."""

    def spot(self, place: int) -> Spot:
        """File and offset of a place."""

    def files(self) -> list[str]:
        """The paths of the files that were written to, by number."""


class Version2Journal:
    """A journal of version 2.

    Args:
        environment: disk, clock and random numbers.
        directory: the journal's directory, which is created.
        info: description of the journal.

    Raises:
        OSError: it cannot be created.
    """

    def __init__(self, environment: Environment, directory: str, info: JournalInfo) -> None:
        create_journal(environment.disk, directory, info)
        self._directory, self._info = directory, info
        self._journal = resume_journal(environment, directory, info, info.geometry, new_state(), bound=_WRITE_BYTES)
        self._writer = self._journal.writer

    @property
    def end(self) -> int:
        """The place of the next record."""
        return self._writer.unsynced_place * BLOCK_SIZE + self._writer.unsynced

    def enqueue(self, rid: int, data: bytes, xid: bytes) -> int:
        """Append an enqueue. Returns its place. Raises JournalFullError."""
        writer, crc = self._writer, extend_crc32c(0, data)
        for _ in range(_MAX_WAITS):
            try:
                if xid:
                    writer.enqueue_in(xid, rid, (data,), len(data), crc)
                else:
                    writer.enqueue(rid, (data,), len(data), crc)
            except JournalBusyError:
                self.flush()
            else:
                return (writer.live[rid] >> SIZE_BITS) * BLOCK_SIZE
        raise JournalFullError("no space is left even after compaction")

    def dequeue(self, rid: int, target: int, xid: bytes, *, commit_decision: bool = False) -> None:
        """Append a dequeue. Raises JournalFullError."""
        if xid:
            self._retry(lambda: self._writer.dequeue_in(xid, rid, target, commit_decision=commit_decision))
        else:
            self._retry(lambda: self._writer.dequeue(rid, target))

    def finish_transaction(self, rid: int, xid: bytes, *, commit: bool) -> None:
        """Append the end of a transaction. Raises JournalFullError."""
        end = self._writer.commit if commit else self._writer.abort
        self._retry(lambda: end(xid, rid))

    def _retry(self, append: Callable[[], None]) -> None:
        for _ in range(_MAX_WAITS):
            try:
                return append()
            except JournalBusyError:
                self.flush()
        raise JournalFullError("no space is left even after compaction")

    def flush(self) -> None:
        """Write the batch. Raises OSError."""
        while self._journal.begin():
            self._journal.finish(None)
        failure = self._writer.failure
        if failure is not None:
            raise failure.__cause__ or OSError(0, str(failure), self._directory)

    def finish(self) -> None:
        """Write and sync everything. Raises OSError."""
        self.flush()
        _sync(self._journal.storage, self._info.geometry)

    def spot(self, place: int) -> Spot:
        """File and offset of a place."""
        return _spot(self._directory, self._info, place)

    def files(self) -> list[str]:
        """The files that were written to."""
        return _files(self._directory, self._info, self.end)


class Version1Journal:
    """A journal of version 1; the arguments are those of `Version2Journal`."""

    def __init__(self, environment: Environment, directory: str, info: JournalInfo) -> None:
        create_journal(environment.disk, directory, info)
        self._directory, self._info = directory, info
        self._storage = JournalStorage(environment.disk, directory, info.base_name, info.geometry)
        clock = environment.clock
        self._writer = Version1Writer(info.queue_name, info.geometry, page=_WRITE_BYTES, clock=clock)

    @property
    def end(self) -> int:
        """The place of the next record."""
        return self._writer.position * BLOCK_SIZE

    def enqueue(self, rid: int, data: bytes, xid: bytes) -> int:
        """Append an enqueue. Returns its place. Raises JournalFullError."""
        self._writer.enqueue(rid, (data,), xid=xid)
        return self.end - RecordHeader(Kind.ENQUEUE, 1, 0, rid, len(xid), len(data)).size

    def dequeue(self, rid: int, target: int, xid: bytes, *, commit_decision: bool = False) -> None:
        """Append a dequeue. Raises JournalFullError."""
        self._writer.dequeue(rid, target, xid=xid, commit_decision=commit_decision)

    def finish_transaction(self, rid: int, xid: bytes, *, commit: bool) -> None:
        """Append the end of a transaction. Raises JournalFullError."""
        (self._writer.commit if commit else self._writer.abort)(rid, xid)

    def flush(self) -> None:
        """Write the batch. Raises OSError."""
        while (step := self._writer.next_flush()) is not None:
            self._storage.write(step)
            self._storage.trim()
            self._writer.flushed()

    def finish(self) -> None:
        """Write and sync everything. Raises OSError."""
        self.flush()
        _sync(self._storage, self._info.geometry)

    def spot(self, place: int) -> Spot:
        """File and offset of a place."""
        return _spot(self._directory, self._info, place)

    def files(self) -> list[str]:
        """The files that were written to."""
        return _files(self._directory, self._info, self.end)


def _sync(storage: JournalStorage, geometry: Geometry) -> None:
    for number in range(geometry.files):
        storage.file(number).sync()
        storage.trim()
    storage.close()


def _spot(directory: str, info: JournalInfo, place: int) -> Spot:
    index, offset = divmod(place, info.geometry.data_size)
    return Spot(data_path(directory, info.base_name, index % info.geometry.files), DATA_OFFSET + offset)


def _files(directory: str, info: JournalInfo, end: int) -> list[str]:
    written = min(info.geometry.files, -(-end // info.geometry.data_size))
    return [data_path(directory, info.base_name, number) for number in range(written)]
