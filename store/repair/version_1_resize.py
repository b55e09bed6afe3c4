"""Gives a journal of qpidd's (version 1) another geometry, where it is: its live records are packed into new files.

What moves is what qpidd's own tool moves (formats/rhm/README.md, 7.3), in the order of record ids:

    every message that is there, with its record id, flags and transaction id
    for each transaction id among those, the record of its last commit
    every record of each transaction that is still open, prepared or not

Overwrite indicators are cleared and the records stand one behind the other from the first file on; the rest of the
files is zeros. Unlike qpidd's tool this reads as recovery does, by `store.journal`: past a first file that a giant
message fills, up to a torn tail; it refuses a damaged journal instead of leaving out what stands behind the damage; it
keeps a message that has neither data nor transaction id; and it leaves out what recovery ignores, transient messages.

The new journal is built in a directory of its own within the old one's, synced, and read again. Only then are files
moved (`version_1_switch`).
"""

from __future__ import annotations

import heapq
import posixpath
from array import array
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from formats.rhm.errors import RhmError
from formats.rhm.geometry import BLOCK_SIZE, MAX_FILES, PAGE_SIZE, SECTOR_SIZE, Geometry
from formats.rhm.jinf import MAX_JINF_SIZE, JournalInfo, decode_jinf
from formats.rhm.records import MAX_HEADER_SIZE, OVERWRITE_INDICATOR, Kind, RecordHeader, decode_header
from store.builders.journal_build import JournalBuild
from store.builders.version_1_packing import SECTOR_BLOCKS, padded_blocks
from store.catalogue.store_directory import remove_tree
from store.damage import Damage
from store.disk import Disk, read_whole
from store.environment import Environment
from store.errors import StoreDamagedError, StoreError
from store.inspect.sizing import MAX_PAGES
from store.journal.directory import INFO_SUFFIX, data_path
from store.journal.journal import Journal
from store.journal.records import RecordHeader as AnyHeader
from store.journal.recovery import JournalRecovery
from store.journal.ring.files import read_ring
from store.journal.write.storage import create_journal
from store.recovery.close_record import Closing
from store.recovery.journal_content import described
from store.recovery.journal_recovery import recover_journal
from store.repair.version_1_switch import Target


class TooSmallError(StoreError):
    """What a journal holds does not fit into the new files. Nothing was changed."""


class _Commits:
    """A `RecordSink` that notes the last commit of some transactions.

    Args:
        xids: their ids.
    """

    def __init__(self, xids: set[bytes]) -> None:
        self._xids = xids
        self.last: dict[bytes, tuple[int, int]] = {}

    def enqueue(self, rid: int, place: int) -> None:
        """Nothing to note."""

    def dequeue(self, rid: int, dequeued_rid: int, place: int) -> None:
        """Nothing to note."""

    def record(self, header: AnyHeader, place: int, xid: bytes) -> None:
        """A record that is not plain."""
        if header.kind is Kind.COMMIT and xid in self._xids:
            self.last[xid] = (header.rid, place)

    def damaged(self, damage: Damage) -> None:
        """The first walk has told it."""


@dataclass(slots=True)
class Version1Content:
    """What a journal of version 1 holds that has to be kept.

    Attributes:
        journal: the journal, open for reading.
        info: what its info file says.
        recovery: what a walk over it found.
        records: how many records there are.
        blocks: their blocks.
    """

    journal: Journal
    info: JournalInfo
    recovery: JournalRecovery
    records: int
    blocks: int
    _others: list[tuple[int, int]]  # record id and place of commits and open transactions' records, sorted

    @property
    def enqueued(self) -> int:
        """Messages that are there."""
        return len(self.recovery.messages)

    @property
    def open_transactions(self) -> int:
        """Transactions that are open."""
        return len(self.recovery.transactions)

    def places(self) -> Iterator[int]:
        """Where the records stand, in the order of their ids."""
        messages = ((rid, place) for rid, place, _ in self.recovery.messages.in_rid_order())
        return (place for _, place in heapq.merge(messages, self._others))

    def read(self, place: int) -> tuple[RecordHeader, bytes, list[bytes]]:
        """Header, transaction id and data of the record at `place`, its overwrite indicator cleared."""
        stream = self.journal.stream
        header = decode_header(stream.read(place, MAX_HEADER_SIZE))
        xid = stream.read(place + header.header_size, header.xid_size)
        at = place + header.header_size + header.xid_size
        data = list(self.journal.data_chunks(at, header.stored_size)) if header.kind is Kind.ENQUEUE else []
        return header._replace(flags=header.flags & ~OVERWRITE_INDICATOR), xid, data


def read_content(disk: Disk, directory: str, base_name: str) -> Version1Content:
    """Read the journal `base_name` in `directory`.

    Raises:
        StoreDamagedError: it is damaged.
        StoreError: there is none of version 1.
        OSError: it cannot be read.
    """
    info_path = posixpath.join(directory, base_name + INFO_SUFFIX)
    try:
        info = decode_jinf(read_whole(disk, info_path, MAX_JINF_SIZE + 1))
    except RhmError as error:
        raise StoreError(f"{info_path}: {error.what}") from None
    if info.version != 1:
        raise StoreError(f"{info_path}: a journal of version {info.version}; use qstore-resize")
    paths = [data_path(directory, base_name, number) for number in range(info.geometry.files)]
    ring = read_ring(disk, paths, info.geometry, info)
    journal = Journal(disk, info.queue_name, directory, base_name, info, ring, list(ring.damage))
    recovery = recover_journal(journal, Closing(is_clean=False)).recovery
    damage = [*journal.damage, *recovery.damage]  # what contradicts itself is no obstacle, as with the original
    if damage:
        where = damage[0].file if damage[0].offset is None else f"{damage[0].file} at offset 0x{damage[0].offset:x}"
        raise StoreDamagedError(f"{where}: {damage[0].what}; nothing was changed: see qstore-check and qstore-recover")
    if recovery.messages.duplicate_count:
        rid = recovery.messages.duplicates[0].rid
        raise StoreDamagedError(
            f"{directory}: record 0x{rid:x} is enqueued twice; nothing was changed: see qstore-check"
        )
    return _counted(journal, info, recovery)


def _counted(journal: Journal, info: JournalInfo, recovery: JournalRecovery) -> Version1Content:
    stream = journal.stream
    others: list[tuple[int, int]] = []
    for transaction in recovery.transactions:
        places = [operation.place for operation in transaction]
        others.extend((decode_header(stream.read(place, MAX_HEADER_SIZE)).rid, place) for place in places)
    xids: set[bytes] = set()
    records = blocks = 0
    for _, place, _ in recovery.messages.in_place_order():
        header = decode_header(stream.read(place, MAX_HEADER_SIZE))
        if header.xid_size:
            xids.add(stream.read(place + header.header_size, header.xid_size))
        records, blocks = records + 1, blocks + header.size // BLOCK_SIZE
    if xids:
        commits = _Commits(xids)
        journal.walk(commits)
        others.extend(commits.last.values())
    for _, place in others:
        header = decode_header(stream.read(place, MAX_HEADER_SIZE))
        records, blocks = records + 1, blocks + header.size // BLOCK_SIZE
    return Version1Content(journal, info, recovery, records, blocks, sorted(others))


# ---- what fits ----


def bytes_needed(content: Version1Content) -> int:
    """Bytes that the records take at most, with the fillers up to the end of a sector behind each flush."""
    return -(-padded_blocks(content.blocks) // SECTOR_BLOCKS) * SECTOR_SIZE


def check_fit(content: Version1Content, geometry: Geometry) -> None:
    """Raise TooSmallError, which says what would do, unless everything fits.

    A journal that is full to the last block cannot be recovered by qpidd (formats/rhm/README.md, 5.4): one block
    less.
    """
    needed = bytes_needed(content)
    if needed < geometry.capacity:
        return
    size = geometry.data_size // PAGE_SIZE
    files, pages = needed // geometry.data_size + 1, needed // (geometry.files * PAGE_SIZE) + 1
    choices = [(files, size)] if files <= MAX_FILES else []
    choices += [(geometry.files, pages)] if pages <= MAX_PAGES else []
    advice = ", or ".join(f"-N {files} -s {pages}" for files, pages in choices) or "no size"
    raise TooSmallError(
        f"Ran out of journal space while writing records: {content.records:,} records take {needed:,} bytes, and "
        f"{described(geometry)} have {geometry.capacity:,}; nothing was changed; what would do: {advice}"
    )


# ---- building ----


class BuiltFile(NamedTuple):
    """How many records end in one of the new files, and how many fillers stand behind them."""

    records: int
    fillers: int


def build(environment: Environment, content: Version1Content, geometry: Geometry, target: Target) -> list[BuiltFile]:
    """Build the new journal, all of it synced, and read it again. Returns what went into each file.

    Raises:
        StoreDamagedError: what is read again is not what was written.
        OSError: it cannot be made.
    """
    disk, limit = environment.disk, content.info.auto_expand_limit
    info = replace(
        content.info,
        geometry=geometry,
        directory=target.directory,
        base_name=target.new_base,
        auto_expand_limit=None if limit is None else max(limit, geometry.files),
    )
    create_journal(disk, target.building, info)
    try:
        built = _filled(environment, content, info, target)
        _verify(disk, content, target)
        disk.sync_directory(target.directory)
    except BaseException:
        with suppress(OSError):  # the next run does it
            remove_tree(disk, target.building)
        raise
    return built


def _filled(environment: Environment, content: Version1Content, info: JournalInfo, target: Target) -> list[BuiltFile]:
    """Write all records into the new journal's files, and sync them. Returns what went into each file."""
    geometry = info.geometry
    blocks = geometry.data_size // BLOCK_SIZE
    files = array("Q", bytes(8 * geometry.files))
    limit = geometry.capacity // BLOCK_SIZE  # as the original has it: whether qpidd takes more is told in a warning
    with closing(JournalBuild(environment, target.building, info, limit=limit)) as journal:
        for place in content.places():
            journal.record(*content.read(place))
            files[(journal.position - 1) // blocks] += 1
        end = journal.position
        journal.finish()
    built = [BuiltFile(count, 0) for count in files]
    if end:
        last = (end - 1) // blocks
        built[last] = BuiltFile(files[last], journal.position - end)
    return built


def _verify(disk: Disk, content: Version1Content, target: Target) -> None:
    """The new journal holds the same messages, and the same transactions are open in it."""
    new = read_content(disk, target.building, target.new_base)
    new.journal.close()
    old, now = content.recovery, new.recovery
    same = len(old.messages) == len(now.messages) and all(
        (one[0], one[2]) == (other[0], other[2])
        for one, other in zip(old.messages.in_rid_order(), now.messages.in_rid_order(), strict=True)
    )
    if not same or _operations(old) != _operations(now):
        raise StoreDamagedError(
            f"{target.building}: the new journal does not hold what the old one does, which should never happen; "
            "nothing was changed"
        )


def _operations(recovery: JournalRecovery) -> dict[bytes, list[tuple[int, bool]]]:
    return {each.xid: sorted((one.rid, one.is_enqueue) for one in each) for each in recovery.transactions}
