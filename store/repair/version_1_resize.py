"""Changes the geometry of a journal of qpidd's (version 1) in place: its live records are packed into new files.

The same records move as in qpidd's own tool (formats/rhm/README.md, 7.3), in the order of record ids:

    every existing message, with its record id, flags and transaction id
    for each transaction id among those, the record of its last commit
    every record of each transaction that is still open, prepared or not

Overwrite indicators are cleared, and the records are contiguous from the first file on; the rest of the files is zeros.
Unlike qpidd's tool this reads like recovery, by `store.journal`: past a first file that a giant message fills, up to a
torn tail; it refuses a damaged journal instead of omitting everything after the damage; it keeps a message that has
neither data nor transaction id; and it omits transient messages, which recovery ignores.

The new journal is built in a subdirectory of the old one's, synced, and read back. Only then are
files moved, before others take their names:

    1. the old files are moved to their kept place; the old info file, with its new path in it, is written there, and
       removed here last
    2. the new files are moved in, the info file last

After a crash in between no journal is complete under its own name, but both exist completely: the new one in
`_resize.new`, or with some files already here, and the old one partly here and partly in its kept place. Readers of
stores then use the new one (`journal.directory`). The next run, with the same options, moves the old files back if the
old info file is here, and otherwise the new ones on (`finish_interrupted`); so does a run that the disk stops, as far
as it can.
"""

from __future__ import annotations

import heapq
import posixpath
from array import array
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass

from qstore.formats.errors import RhmError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.geometry import BLOCK_SIZE, MAX_FILES, MAX_PAGES, PAGE_SIZE, SECTOR_SIZE, Geometry
from qstore.formats.rhm.jinf import MAX_JINF_SIZE, JournalInfo, decode_jinf, encode_jinf
from qstore.formats.rhm.records import MAX_HEADER_SIZE, OVERWRITE_INDICATOR, Kind, RecordHeader, decode_header
from qstore.store.builders.journal_build import SECTOR_BLOCKS, JournalBuild, padded_blocks
from qstore.store.catalogue.store_directory import remove_tree
from qstore.store.damage import Damage
from qstore.store.disk import Disk, WritableDisk, read_whole, write_new
from qstore.store.environment import Environment
from qstore.store.errors import StoreDamagedError, StoreError
from qstore.store.journal.directory import DATA_SUFFIX, INFO_SUFFIX, RESIZING, data_path
from qstore.store.journal.journal import Journal
from qstore.store.journal.records import RecordHeader as AnyHeader
from qstore.store.journal.recovery import JournalRecovery
from qstore.store.journal.ring.files import read_ring
from qstore.store.journal.write.storage import create_journal
from qstore.store.recovery.close_record import Closing
from qstore.store.recovery.journal_content import described
from qstore.store.recovery.journal_recovery import recover_journal

# ---- the switch ----


class Target(NamedTuple):
    """The paths of everything.

    Attributes:
        directory: the journal's, as given by the user.
        kept: the directory for the old files: a subdirectory, or itself.
        old_base, new_base, kept_base: base names: of the present journal, of the new one, of the kept old one.
    """

    directory: str
    kept: str
    old_base: str
    new_base: str
    kept_base: str

    @property
    def building(self) -> str:
        """The directory in which the new journal is built."""
        return posixpath.join(self.directory, RESIZING)

    @property
    def stays(self) -> bool:
        """Whether the old files are not moved."""
        return self.kept == self.directory and self.kept_base == self.old_base


def finish_interrupted(disk: WritableDisk, target: Target) -> Geometry | None:
    """Undo, or finish, an interrupted run with the same target.

    Returns:
        The geometry of the new journal, if it is in place now and was not before.

    Raises:
        OSError: the disk fails.
    """
    directory = target.directory
    if not disk.is_directory(target.building):
        return None
    if _is_complete(disk, directory, target.old_base):
        made = data_path(directory, target.new_base, 0)
        if not target.stays:
            made = posixpath.join(directory, target.kept_base + INFO_SUFFIX)
        is_moved = target.kept == directory and disk.is_file(made)
        return _finish(disk, target) if is_moved else None
    if disk.is_file(posixpath.join(directory, target.old_base + INFO_SUFFIX)):
        _put_back(disk, target)
        return None
    return _finish(disk, target)


def _put_back(disk: WritableDisk, target: Target) -> None:
    """Move the old files back from their kept place, if that makes the old journal complete. Raises OSError."""
    info = _info(disk, target.directory, target.old_base)
    if info is None:
        return
    pairs = [
        (data_path(target.kept, target.kept_base, number), data_path(target.directory, target.old_base, number))
        for number in range(info.geometry.files)
    ]
    if not all(disk.is_file(kept) or disk.is_file(here) for kept, here in pairs):
        return
    for kept, here in pairs:
        if not disk.is_file(here):
            disk.rename(kept, here)
        elif disk.is_file(kept):  # the same file: a power failure can leave both names
            disk.remove(kept)
    disk.sync_directory(target.directory)
    kept_info = posixpath.join(target.kept, target.kept_base + INFO_SUFFIX)
    if disk.is_file(kept_info):
        disk.remove(kept_info)
    disk.sync_directory(target.kept)


def _finish(disk: WritableDisk, target: Target) -> Geometry | None:
    """Move the new files that are still where they were built, if that completes the new journal. Raises OSError.

    Returns:
        The new journal's geometry; None if it cannot be completed.
    """
    info = _info(disk, target.building, target.new_base) or _info(disk, target.directory, target.new_base)
    if info is None:
        return None
    places = [
        [data_path(where, target.new_base, number) for where in (target.building, target.directory)]
        for number in range(info.geometry.files)
    ]
    if not all(disk.is_file(new) or disk.is_file(here) for new, here in places):
        return None
    _bring(disk, info.geometry, target)
    return info.geometry


def check_place(disk: WritableDisk, target: Target) -> None:
    """Remove the incomplete result of an earlier run.

    Raises:
        StoreError: the earlier run was interrupted while it moved files; or files with the new names exist.
    """
    building = target.building
    if disk.is_directory(building):
        if not _is_complete(disk, target.directory, target.old_base):
            raise StoreError(
                f"{building}: an earlier run was interrupted while it moved files; those of the new journal are in "
                f"{building} or already in {target.directory}, and those of the old one there or in {target.kept}: "
                f"move the new ones into {target.directory}, the .jinf file last, and remove {building}"
            )
        remove_tree(disk, building)
    made = {target.new_base} if target.new_base != target.old_base else set()
    if target.kept == target.directory and not target.stays:
        made.add(target.kept_base)
    for base in sorted(made):
        for name in _files_of(disk, target.directory, base):
            raise StoreError(f"{target.directory}: {name} already exists; choose another base name")


def _files_of(disk: WritableDisk, directory: str, base: str) -> list[str]:
    """The names in a directory of the files of one journal."""
    names = disk.names(directory)
    return [name for name in names if name.startswith(base + ".") and name.endswith((INFO_SUFFIX, DATA_SUFFIX))]


def _is_complete(disk: WritableDisk, directory: str, base_name: str) -> bool:
    """Whether the info file of a journal and all of its files exist."""
    info = _info(disk, directory, base_name)
    return info is not None and all(
        disk.is_file(data_path(directory, base_name, number)) for number in range(info.geometry.files)
    )


def _info(disk: WritableDisk, directory: str, base_name: str) -> JournalInfo | None:
    """The info file of a journal; None if it is missing or unreadable."""
    try:
        return decode_jinf(read_whole(disk, posixpath.join(directory, base_name + INFO_SUFFIX), MAX_JINF_SIZE + 1))
    except (OSError, RhmError):
        return None


def move(disk: WritableDisk, old: JournalInfo, geometry: Geometry, target: Target) -> None:
    """Replace the old files, which are kept, by the new ones.

    Args:
        disk: the disk with them.
        old: the info file of the old journal.
        geometry: of the new one.
        target: the paths.

    Raises:
        OSError: the disk fails. Moved files are moved back or on, unless the disk refuses that too.
    """
    try:
        _set_aside(disk, old, target)
        _bring(disk, geometry, target)
    except OSError:
        with suppress(OSError):  # the next run repeats it
            if finish_interrupted(disk, target) is not None:
                return
        with suppress(OSError):  # likewise
            if target.stays or _is_undone(disk, target):
                _give_back(disk, target)
        raise


def _is_undone(disk: WritableDisk, target: Target) -> bool:
    """Whether the old journal is complete in its place, and the new one where it was built."""
    new_info = posixpath.join(target.building, target.new_base + INFO_SUFFIX)
    return disk.is_file(new_info) and _is_complete(disk, target.directory, target.old_base)


def _give_back(disk: WritableDisk, target: Target) -> None:
    """Remove the files of the new journal: the old one is complete in its place. Raises OSError."""
    if target.stays:
        for name in _files_of(disk, target.directory, target.new_base):
            disk.remove(posixpath.join(target.directory, name))
    if disk.is_directory(target.building):
        remove_tree(disk, target.building)
    if target.kept != target.directory and disk.is_directory(target.kept) and not disk.names(target.kept):
        disk.remove_directory(target.kept)


def _set_aside(disk: WritableDisk, old: JournalInfo, target: Target) -> None:
    """Move the old files to their kept place, the info file last."""
    directory = target.directory
    old_info = posixpath.join(directory, target.old_base + INFO_SUFFIX)
    if target.kept != directory:
        _empty_directory(disk, directory, target.kept)
    if not target.stays:
        for number in range(old.geometry.files):
            disk.rename(data_path(directory, target.old_base, number), data_path(target.kept, target.kept_base, number))
        info = old._replace(directory=target.kept, base_name=target.kept_base)
        write_new(disk, posixpath.join(target.kept, target.kept_base + INFO_SUFFIX), encode_jinf(info))
        disk.sync_directory(target.kept)
        disk.remove(old_info)
        disk.sync_directory(directory)


def _bring(disk: WritableDisk, geometry: Geometry, target: Target) -> None:
    """Move the new files from where they were built, the info file last; some may be in place already."""
    directory, building = target.directory, target.building
    for number in range(geometry.files):
        new = data_path(building, target.new_base, number)
        if disk.is_file(new):
            disk.rename(new, data_path(directory, target.new_base, number))
    disk.sync_directory(directory)
    name = target.new_base + INFO_SUFFIX
    if disk.is_file(posixpath.join(building, name)):
        disk.rename(posixpath.join(building, name), posixpath.join(directory, name))
        disk.sync_directory(directory)
    with suppress(OSError):  # it has no meaning any more, and the next run removes it
        remove_tree(disk, building)  # a power failure can leave names of moved files in it
        disk.sync_directory(directory)


def _empty_directory(disk: WritableDisk, parent: str, path: str) -> None:
    if not disk.is_directory(path):
        disk.make_directory(path)
        disk.sync_directory(parent)
        return
    for name in disk.names(path):
        below = posixpath.join(path, name)
        if disk.link_target(below) is not None or not disk.is_directory(below):
            disk.remove(below)
    disk.sync_directory(path)


# ---- building the new journal ----


class TooSmallError(StoreError):
    """The content of a journal does not fit into the new files. Nothing was changed."""


class _Commits:
    """A `RecordSink` that notes the last commit of some transactions.

    Args:
        xids: their ids.
    """

    def __init__(self, xids: set[bytes]) -> None:
        self._xids = xids
        self.last: dict[bytes, tuple[int, int]] = {}

    def enqueue(self, rid: int, place: int, blocks: int = 0) -> None:
        """Ignored."""

    def dequeue(self, rid: int, dequeued_rid: int, place: int) -> None:
        """Ignored."""

    def record(self, header: AnyHeader, place: int, xid: bytes) -> None:
        """A record that is not plain."""
        if header.kind is Kind.COMMIT and xid in self._xids:
            self.last[xid] = (header.rid, place)

    def damaged(self, damage: Damage) -> None:
        """Ignored: the first walk has reported it."""


@dataclass(slots=True)
class Version1Content:
    """The content of a journal of version 1 that must be kept.

    Attributes:
        journal: the journal, open for reading.
        info: its info file.
        recovery: the result of a walk over it.
        records: number of records.
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
        """Number of existing messages."""
        return len(self.recovery.messages)

    @property
    def open_transactions(self) -> int:
        """Number of open transactions."""
        return len(self.recovery.transactions)

    def places(self) -> Iterator[int]:
        """Log offsets of the records, in the order of their ids."""
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
        StoreError: there is no journal of version 1.
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
    damage = [*journal.damage, *recovery.damage]  # contradictions are no obstacle, as in the original
    if damage:
        where = damage[0].file if damage[0].offset is None else f"{damage[0].file} at offset 0x{damage[0].offset:x}"
        raise StoreDamagedError(f"{where}: {damage[0].what}; nothing was changed: run qstore-check or qstore-recover")
    if recovery.messages.duplicate_count:
        rid = recovery.messages.duplicates[0].rid
        raise StoreDamagedError(
            f"{directory}: record 0x{rid:x} is enqueued twice; nothing was changed: run qstore-check"
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


# ---- capacity ----


def bytes_needed(content: Version1Content) -> int:
    """Maximum bytes of the records, with the fillers up to the end of a sector after each flush."""
    return -(-padded_blocks(content.blocks) // SECTOR_BLOCKS) * SECTOR_SIZE


def check_fit(content: Version1Content, geometry: Geometry) -> None:
    """Raise TooSmallError, which suggests sizes, unless everything fits.

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
        f"{described(geometry)} have {geometry.capacity:,}; nothing was changed; sizes that suffice: {advice}"
    )


# ---- building ----


class BuiltFile(NamedTuple):
    """The number of records that end in one of the new files, and the number of fillers after them."""

    records: int
    fillers: int


def build(environment: Environment, content: Version1Content, geometry: Geometry, target: Target) -> list[BuiltFile]:
    """Build the new journal, synced, and read it back. Returns the content of each file.

    Raises:
        StoreDamagedError: the data read back differ from those written.
        OSError: it cannot be created.
    """
    disk, limit = environment.disk, content.info.auto_expand_limit
    info = content.info._replace(
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
        with suppress(OSError):  # the next run repeats it
            remove_tree(disk, target.building)
        raise
    return built


def _filled(environment: Environment, content: Version1Content, info: JournalInfo, target: Target) -> list[BuiltFile]:
    """Write all records into the new journal's files, and sync them. Returns the content of each file."""
    geometry = info.geometry
    blocks = geometry.data_size // BLOCK_SIZE
    files = array("Q", bytes(8 * geometry.files))
    limit = geometry.capacity // BLOCK_SIZE  # as in the original; a warning states whether qpidd accepts more
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
    """Check that the new journal has the same messages, and the same open transactions."""
    new = read_content(disk, target.building, target.new_base)
    new.journal.close()
    old, now = content.recovery, new.recovery
    same = len(old.messages) == len(now.messages) and all(
        (one[0], one[2]) == (other[0], other[2])
        for one, other in zip(old.messages.in_rid_order(), now.messages.in_rid_order(), strict=True)
    )
    if not same or _operations(old) != _operations(now):
        raise StoreDamagedError(
            f"{target.building}: the content of the new journal differs from the old one's, which should never happen; "
            "nothing was changed"
        )


def _operations(recovery: JournalRecovery) -> dict[bytes, list[tuple[int, bool]]]:
    return {each.xid: sorted((one.rid, one.is_enqueue) for one in each) for each in recovery.transactions}
