"""Damaged data that could not be saved: the stretches of journals without a good record, and single messages.

They are kept raw in the quarantine (`store.repair.quarantine`). Of an orphan that is moved aside all files are copied,
into

    quarantine/orphans/<number>-<name>/

where <name> is that of the journal's directory, with every special character replaced.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from qstore.formats.rhm.geometry import BLOCK_SIZE, padded
from qstore.formats.rhm.records import TAIL_SIZE
from qstore.store.disk import Disk, WritableDisk
from qstore.store.inspect.offline import RecoveredQueue, RecoveredStore
from qstore.store.journal.directory import INFO_SUFFIX
from qstore.store.journal.journal import Journal
from qstore.store.journal.ring.files import RingFile
from qstore.store.repair.quarantine import QuarantineWriter
from qstore.store.repair.recover.plan import Orphan, RecoveryPlan

_CHUNK: Final = 1 << 20
_MAX_NAME: Final = 80
_MAX_TOLD: Final = 1000  # maximum stretches of one journal in the report; the quarantine's index has all


class Stretch(NamedTuple):
    """A stretch of a journal that is kept raw.

    Attributes:
        file, offset: where it begins.
        size: bytes that exist: a missing file has none.
        rid: record id of the record at its beginning, if known.
        what: what is wrong with it.
        number: its number in the quarantine; None if it is not there.
    """

    file: str
    offset: int
    size: int
    rid: int | None
    what: str
    number: int | None = None


class Salvage:
    """Keeps data that could not be saved.

    Args:
        writer: the quarantine; None if only the plan is shown.

    Attributes:
        stretches: path of a journal -> its first stretches that were kept.
        entries: total number of stretches.
    """

    def __init__(self, writer: QuarantineWriter | None) -> None:
        self._writer = writer
        self.stretches: dict[str, list[Stretch]] = {}
        self.entries = 0

    def keep(self, queue: str, journal: Journal, place: int, end: int, rid: int | None, what: str) -> None:
        """Keep the bytes from `place` to `end` of a journal's stream, if any exist. Raises OSError."""
        stretches = self.stretches.setdefault(journal.path, [])
        size = sum(length for _, length in _pieces(journal, place, end))
        if not size:
            return
        file, offset = journal.stream.locate(place)
        number = None
        if self._writer is not None:
            salt = file.header.salt if isinstance(file, RingFile) and file.header is not None else None
            chunks = (journal.stream.read(at, length) for at, length in _pieces(journal, place, end))
            number = self._writer.add(queue, file.path, offset, chunks, what, rid, salt=salt)
        self.entries += 1
        if len(stretches) < _MAX_TOLD:
            stretches.append(Stretch(file.path, offset, size, rid, what, number))

    def keep_record(self, queue: str, journal: Journal, place: int, rid: int, what: str) -> None:
        """Keep the enqueue record at `place`. Raises OSError."""
        at, size = journal.data_of_enqueue(place)
        self.keep(queue, journal, place, place + padded(at + size + TAIL_SIZE - place), rid, what)

    def gaps(self, recovered: RecoveredStore) -> None:
        """Keep the stretches that the walks over all journals skipped. Raises OSError."""
        for queue in _all(recovered):
            if queue.journal is not None:
                for gap in queue.journal.gaps:
                    self.keep(queue.name, queue.journal, gap.place, gap.end, gap.rid, gap.what)

    def unprepared(self, plan: RecoveryPlan) -> None:
        """Keep the messages of transactions that were never prepared. Raises OSError."""
        for orphan in plan.orphans:
            journal = orphan.found.journal
            if orphan.transaction is None or journal is None:
                continue
            for operation in orphan.transaction:
                if operation.is_enqueue:
                    what = f"enqueued by the transaction {orphan.transaction.xid.hex()}, which was never prepared"
                    self.keep_record(orphan.found.name, journal, operation.place, operation.rid, what)


def _all(recovered: RecoveredStore) -> Iterator[RecoveredQueue]:
    if recovered.prepared_list is not None:
        yield recovered.prepared_list
    yield from recovered.queues
    yield from recovered.orphans


def _pieces(journal: Journal, place: int, end: int) -> Iterator[tuple[int, int]]:
    """The existing parts of a stretch: log offset and length of each."""
    stream = journal.stream
    end = min(end, stream.size)
    while place < end:
        file, offset = stream.locate(place)
        in_file = min(end - place, stream.data_size - place % stream.data_size)
        there = max(min(in_file, file.size - offset), 0)
        if there:
            length = min(there, _CHUNK)
            yield place, length
            place += length if length < there else in_file
            continue
        place += in_file
    assert place % BLOCK_SIZE == 0 or place >= end


def keep_aside(disk: WritableDisk, source: Disk, orphans: list[Orphan], quarantine: str) -> None:
    """Copy the journals that no queue has. Raises OSError."""
    journals = [each.found.journal for each in orphans if each.transaction is None and each.found.journal is not None]
    if not journals:
        return
    parent = posixpath.join(quarantine, "orphans")
    for path in (quarantine, parent):
        if not disk.is_directory(path):
            disk.make_directory(path)
    for number, journal in enumerate(journals, 1):
        directory = posixpath.join(parent, f"{number:06d}-{_harmless(posixpath.basename(journal.path))}")
        disk.make_directory(directory)
        paths = [file.path for file in journal.files.files if file.size >= 0]
        paths.append(posixpath.join(journal.path, journal.base_name + INFO_SUFFIX))
        for path in paths:
            if source.is_file(path) and source.link_target(path) is None:
                _copy(disk, source, path, posixpath.join(directory, _harmless(posixpath.basename(path))))
        disk.sync_directory(directory)
    for path in (parent, quarantine):
        disk.sync_directory(path)


def _copy(disk: WritableDisk, source: Disk, path: str, target: str) -> None:
    """Copy a file; unreadable parts become zeros."""
    old = source.open(path)
    try:
        new = disk.create(target, 0)
        try:
            for offset in range(0, old.size, _CHUNK):
                length = min(_CHUNK, old.size - offset)
                try:
                    content = old.read(offset, length)
                except OSError:
                    content = bytes(length)
                new.write(offset, content)
            new.sync()
        finally:
            new.close()
    finally:
        old.close()


def _harmless(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[-_MAX_NAME:].lstrip(".") or "_"
