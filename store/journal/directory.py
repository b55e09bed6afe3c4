"""One journal directory, opened for reading: its info file, its files, its records.

The info file of a ring has its name and geometry. If it is lost or unreadable, both are derived from the number and
size of the files. A line (linearstore) has no info file: its directory has links, and the headers of the files that
they point to have all the data.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from qstore.formats.errors import RhmError
from qstore.formats.rhm.geometry import (
    FILE_HEADER_SIZE,
    MAX_FILE_SIZE,
    MAX_FILES,
    MAX_RING_FILES,
    SECTOR_SIZE,
    Geometry,
)
from qstore.formats.rhm.jinf import DEFAULT_BASE_NAME, MAX_JINF_SIZE, TPL_BASE_NAME, JournalInfo, decode_jinf
from qstore.store.damage import Damage, DamageKind, Effect
from qstore.store.disk import Disk, read_whole
from qstore.store.journal.journal import Journal
from qstore.store.journal.line.files import PooledFile, linear_file_names, read_line
from qstore.store.journal.ring.files import Ring, owner_of, read_ring

INFO_SUFFIX: Final = ".jinf"
COPY_SUFFIX: Final = ".copy"  # of a grown ring's info file, which alone has the order of its files; or with a name
DATA_SUFFIX: Final = ".jdat"
RESIZING: Final = "_resize.new"  # where qpid-store-resize builds the new journal of version 1
PUSHED_DOWN: Final = "bak"  # where it moves the old journal
DELETED: Final = "deleted"  # a file with this name marks a journal of version 2 whose queue is being deleted
_DATA_NAME = re.compile(r"(?P<base>.+)\.(?P<number>[0-9a-f]{4})\.jdat", re.DOTALL)


class NotAJournalError(Exception):
    """There is no journal at a path; the text describes the content found instead."""


class UnmadeJournalError(NotAJournalError):
    """File names exist, but all files are empty: left by a crash during the creation of a journal."""


def journal_base_names(names: Sequence[str]) -> list[str]:
    """The base names of the journals whose files are among `names`, sorted."""
    bases = {name.removesuffix(INFO_SUFFIX) for name in names if name.endswith(INFO_SUFFIX)}
    bases |= {found["base"] for name in names if (found := _DATA_NAME.fullmatch(name))}
    return sorted(bases)


def open_journal(disk: Disk, directory: str, name: str | None = None, names: Sequence[str] | None = None) -> Journal:
    """Open the journal in a directory.

    Args:
        disk: reads it.
        directory: its path.
        name: the journal's id if no info file states it; the directory's name by default.
        names: the names in the directory, if they are known.

    Raises:
        NotAJournalError: the directory holds no journal, or several, or one whose file size is unknown; if all of its
            files are empty, UnmadeJournalError.
        OSError: the directory cannot be read.
    """
    if names is None:
        names = disk.names(directory)
    if RESIZING in names:
        resized = _resized(disk, directory, names)
        if resized is not None:
            return resized
    bases = journal_base_names(names)
    base = _chosen_base(bases, directory)
    damage: list[Damage] = []
    info_path = posixpath.join(directory, base + INFO_SUFFIX)
    info = _read_info(disk, info_path, damage)
    if info is None and disk.is_file(info_path + COPY_SUFFIX):
        info = _read_info(disk, info_path + COPY_SUFFIX, damage)
    unnamed = info
    if base + INFO_SUFFIX + COPY_SUFFIX in names:
        info = _named(disk, info_path, info)
    ring = None if info is None else _recorded_ring(disk, directory, base, names, info)
    if ring is None:
        ring = _found_ring(disk, directory, base, names, info, damage)
    damage.extend(ring.damage)
    damage.extend(_stranger(info, info_path, base, ring))
    title = (info is not None and info.queue_name) or name or posixpath.basename(directory.rstrip("/"))
    journal = Journal(disk, title, directory, base, info, ring, damage)
    journal.is_being_deleted, journal.is_named_apart = DELETED in names, info is not unnamed
    others = [other for other in bases if other != base]
    if others:
        journal.notices.append(
            f"{directory}: files of another journal ({', '.join(others)}) next to {base} are ignored"
        )
    return journal


def _recorded_ring(disk: Disk, directory: str, base: str, names: Sequence[str], info: JournalInfo) -> Ring | None:
    """The files of a journal that are exactly those that its info file names; None if one has another size.

    What `_found_ring` finds then, but each file is opened once: that halves the time of a start for an idle queue
    (tests.bench.bench_start).
    """
    geometry = info.geometry
    numbers = info.numbers_of(geometry.files)
    if geometry.file_size > MAX_FILE_SIZE:
        return None
    paths = [data_path(directory, base, number) for number in numbers]
    if {name for name in names if name.endswith(DATA_SUFFIX)} != {posixpath.basename(path) for path in paths}:
        return None
    ring = read_ring(disk, paths, geometry, info, numbers)
    return ring if ring.is_whole else None


def _found_ring(
    disk: Disk, directory: str, base: str, names: Sequence[str], info: JournalInfo | None, damage: list[Damage]
) -> Ring:
    """The files of any journal. Raises NotAJournalError."""
    info_path = posixpath.join(directory, base + INFO_SUFFIX)
    files = _look_at_files(disk, directory, base, names)
    geometry = _trusted_geometry(info, files, info_path, damage)
    if geometry is None:
        if info is None and not any(files.values()):
            raise UnmadeJournalError(f"{directory}: all files of the journal are empty")
        what = "neither an info file nor a journal file has a valid journal file size"
        raise NotAJournalError(f"{directory}: {what}")
    numbers = range(geometry.files) if info is None else info.numbers_of(geometry.files)
    for number in sorted(set(files).difference(numbers, () if info is None else info.spare)):
        path = data_path(directory, base, number)
        damage.append(Damage(path, None, None, DamageKind.FILE_BEYOND_LAST, files=geometry.files))
    paths = [data_path(directory, base, number) for number in numbers]
    return read_ring(disk, paths, geometry, info, numbers)


def _resized(disk: Disk, directory: str, names: Sequence[str]) -> Journal | None:
    """The new journal of a qpid-store-resize that was interrupted while moving files; None if it had moved none.

    The old files are moved first, into `bak`, and then the old info file is removed; then the new files are moved in.
    So while the old journal is incomplete, each new file is in one of the two directories.
    """
    building = posixpath.join(directory, RESIZING)
    bases = journal_base_names(disk.names(building)) if disk.is_directory(building) else []
    if len(bases) != 1:
        return None
    (base,) = bases
    info_path = posixpath.join(building, base + INFO_SUFFIX)
    info = _read_info(disk, info_path, [])
    if info is None or any(_is_whole(disk, directory, old) for old in journal_base_names(names)):
        return None
    kept = posixpath.join(directory, PUSHED_DOWN)
    here, there = (_numbers(disk.names(path)) if disk.is_directory(path) else set() for path in (directory, kept))
    has_info = any(name.endswith(INFO_SUFFIX) for name in names)
    if not (there - here if has_info else there):
        return None  # the old journal is damaged, and the new one may be incomplete
    places = [
        [data_path(where, base, number) for where in (building, directory)] for number in range(info.geometry.files)
    ]
    paths = [new if disk.is_file(new) else here for new, here in places]
    if not all(map(disk.is_file, paths)):
        return None
    ring = read_ring(disk, paths, info.geometry, info)
    journal = Journal(disk, info.queue_name, directory, base, info, ring, list(ring.damage))
    journal.notices.append(
        f"{directory}: qpid-store-resize was interrupted while moving files; the new journal, which is complete, is "
        f"read from here and from {building}"
    )
    return journal


def _numbers(names: Sequence[str]) -> set[int]:
    """The numbers of the data files among `names`."""
    return {int(found["number"], 16) for name in names if (found := _DATA_NAME.fullmatch(name))}


def _is_whole(disk: Disk, directory: str, base: str) -> bool:
    """Whether a journal's info file and all of its files exist."""
    info = _read_info(disk, posixpath.join(directory, base + INFO_SUFFIX), [])
    return info is not None and all(
        disk.is_file(data_path(directory, base, number)) for number in range(info.geometry.files)
    )


def _stranger(info: JournalInfo | None, info_path: str, base: str, ring: Ring) -> Iterator[Damage]:
    """Damage, if an info file belongs to another journal than the files in its directory."""
    if info is None:
        return
    if info.base_name != base:
        yield Damage(info_path, None, None, DamageKind.INFO_FILE_BASE_NAME, recorded=info.base_name)
    headers = [file.header for file in ring.files if file.header is not None]
    if info.version == 2 and headers and owner_of(headers[0]) != (info.queue_id, info.incarnation):
        queue_id, incarnation = owner_of(headers[0])
        yield Damage(
            info_path,
            None,
            None,
            DamageKind.INFO_FILE_OF_OTHER_QUEUE,
            recorded_queue=info.queue_id,
            recorded_incarnation=info.incarnation,
            queue=queue_id,
            incarnation=incarnation,
        )


def data_path(directory: str, base: str, number: int) -> str:
    """The path of a ring's file."""
    return posixpath.join(directory, f"{base}.{number:04x}{DATA_SUFFIX}")


def _trusted_geometry(
    info: JournalInfo | None, files: dict[int, int], info_path: str, damage: list[Damage]
) -> Geometry | None:
    """The info file's geometry, unless the files themselves contradict it (missing ones do not).

    None: it is unknown, or no journal can have it.

    Args:
        info: the content of the info file.
        files: number of each existing file -> its size.
        info_path: path of the info file.
        damage: receives the contradiction.
    """
    size, agreeing = _commonest_size(files)
    if info is None:
        # A stray file with a high number does not make a large ring: at least half of the files must exist.
        dense = [n for at, n in enumerate(sorted(files)) if n < MAX_FILES or n < min(2 * at + 2, MAX_RING_FILES)]
        count = max(dense, default=-1) + 1
        return Geometry(count, size - FILE_HEADER_SIZE) if count and size else None
    recorded = info.geometry
    count = recorded.files
    while not info.ring and not info.spare and count in files and count < MAX_FILES:
        count += 1
    if recorded.file_size <= MAX_FILE_SIZE and (recorded.file_size in files.values() or agreeing < 2):
        size = recorded.file_size
    if not size:
        return None
    trusted = Geometry(count, size - FILE_HEADER_SIZE)
    if trusted != recorded:
        damage.append(
            Damage(
                info_path,
                None,
                None,
                DamageKind.INFO_FILE_GEOMETRY,
                recorded_files=recorded.files,
                recorded_size=recorded.file_size,
                files=count,
                size=size,
            )
        )
    return trusted


def _commonest_size(files: dict[int, int]) -> tuple[int, int]:
    """The most frequent file size, in whole sectors, and how many files have it; 0 if none can be a journal file's.

    A sparse file of terabytes does not count: reading it would take too long.
    """
    whole = [size // SECTOR_SIZE * SECTOR_SIZE for size in files.values()]
    usable = [size for size in whole if FILE_HEADER_SIZE + SECTOR_SIZE <= size <= MAX_FILE_SIZE]
    size = max(set(usable), key=usable.count, default=0)
    return size, usable.count(size)


def open_file(disk: Disk, path: str) -> Journal:
    """Open one journal file on its own, as a journal of that file alone.

    Raises:
        NotAJournalError: it is not a journal file.
        OSError: it cannot be read.
    """
    opened = disk.open(path)
    try:
        size = min(opened.size, MAX_FILE_SIZE) - FILE_HEADER_SIZE
    finally:
        opened.close()
    if size < SECTOR_SIZE:
        raise NotAJournalError(f"{path}: {size + FILE_HEADER_SIZE} bytes are too few for a journal file")
    geometry = Geometry(1, size // SECTOR_SIZE * SECTOR_SIZE)
    ring = read_ring(disk, [path], geometry)
    # A single file has no position in a ring that its number could contradict.
    damage = [entry for entry in ring.damage if ring.format is None]
    if ring.format is None and ring.files:
        raise NotAJournalError(f"{path}: {damage[-1].what if damage else 'not a journal file'}")
    name = posixpath.basename(path)
    found = _DATA_NAME.fullmatch(name)
    return Journal(disk, name, path, found["base"] if found else "", None, ring, damage)


def _chosen_base(bases: list[str], directory: str) -> str:
    """The only base name, or of several (qpid-store-resize may leave old files) the one that brokers use."""
    if not bases:
        raise NotAJournalError(f"{directory}: contains no journal (no *.jinf, no *.NNNN.jdat)")
    if len(bases) == 1:
        return bases[0]
    for usual in (DEFAULT_BASE_NAME, TPL_BASE_NAME):
        if usual in bases:
            return usual
    raise NotAJournalError(
        f"{directory}: holds several journals ({', '.join(bases)}); move all but one elsewhere, or pass a single file"
    )


def _read_info(disk: Disk, path: str, damage: list[Damage]) -> JournalInfo | None:
    try:
        return decode_jinf(read_whole(disk, path, MAX_JINF_SIZE + 1))
    except RhmError as error:
        kind = DamageKind.INFO_FILE_CHECKSUM if error.fails_checksum else DamageKind.INFO_FILE_BROKEN
        damage.append(Damage(path, error.offset, None, kind, problem=error.what))
    except OSError as error:
        reason = error.strerror or str(error)
        damage.append(Damage(path, None, None, DamageKind.INFO_FILE_UNREADABLE, reason=reason))
    return None


def read_info(disk: Disk, directory: str) -> JournalInfo | None:
    """The info of a queue's journal of version 2, with its name; None if the file is missing or unreadable."""
    path = posixpath.join(directory, DEFAULT_BASE_NAME + INFO_SUFFIX)
    try:
        info = read_named_info(disk, path)
    except (OSError, RhmError):
        return None
    return info if info.version == 2 else None


def read_named_info(disk: Disk, path: str) -> JournalInfo:
    """The info file at `path`, with the name that its copy may have instead. Raises OSError, RhmError."""
    info = decode_jinf(read_whole(disk, path, MAX_JINF_SIZE + 1))
    return _named(disk, path, info) or info


def _named(disk: Disk, path: str, info: JournalInfo | None) -> JournalInfo | None:
    """An info file with the name of the journal's queue, if only its copy has that (`live.journal_stock`).

    A copy that is torn is that of a queue whose declaration, or deletion, was not acknowledged.
    """
    if info is None or not info.is_unnamed:
        return info
    try:
        copy = decode_jinf(read_whole(disk, path + COPY_SUFFIX, MAX_JINF_SIZE + 1))
    except (OSError, RhmError):
        return info
    named = info._replace(queue_name=copy.queue_name, queue_record=copy.queue_record)
    return named if copy == named and not copy.is_unnamed else info


def _look_at_files(disk: Disk, directory: str, base: str, names: Sequence[str]) -> dict[int, int]:
    """Number and size of each existing journal file that can be opened."""
    files = {}
    for name in names:
        match = _DATA_NAME.fullmatch(name)
        path = posixpath.join(directory, name)
        if match is None or match["base"] != base or not disk.is_file(path):
            continue
        try:
            opened = disk.open(path)
        except OSError:
            continue  # reported when the ring is read
        files[int(match["number"], 16)] = opened.size
        opened.close()
    return files


def open_line(
    disk: Disk,
    directory: str,
    name: str | None,
    taken: Mapping[str, PooledFile],
    unlinked: Sequence[PooledFile] = (),
    queues: Collection[str] = (),
    *,
    follow_links: bool = True,
    waiting: Sequence[PooledFile] = (),
) -> Journal:
    """Open a linearstore journal.

    Args:
        disk: reads it.
        directory: the journal's directory; it may be missing, and then only `unlinked` is read.
        name: the queue's name; None for the name in most files.
        taken: the store's taken files by name.
        unlinked: taken files that name this queue and that no journal links.
        queues: the names of the store's queues.
        follow_links: whether links may point to files that are not among `taken`. If the whole store is available they
            may not: they would point into the store that this one was copied from.
        waiting: files in the pools that name this queue.

    Raises:
        OSError: the directory cannot be read, and `unlinked` is empty.
    """
    damage: list[Damage] = []
    paths = []
    for file_name in _linked_names(disk, directory, unlinked, damage):
        link = posixpath.join(directory, file_name)
        target = disk.link_target(link)
        if file_name in taken:
            paths.append(taken[file_name].path)
        elif disk.is_file(link) and (follow_links or target is None):
            paths.append(link)
        else:
            damage.append(_broken_link(link, target))
    line = read_line(
        disk, paths, directory, name, [file.path for file in unlinked], queues, [file.path for file in waiting]
    )
    damage.extend(line.damage)
    title = name or line.queue_name or posixpath.basename(directory)
    journal = Journal(disk, title, directory, "", None, line, damage)
    journal.notices.extend(line.notices)
    return journal


def _broken_link(link: str, target: str | None) -> Damage:
    if not target:
        return Damage(link, None, None, DamageKind.LINK_IS_NONE)
    return Damage(link, None, None, DamageKind.LINK_LEADS_OUT, target=target)


def _linked_names(disk: Disk, directory: str, unlinked: Sequence[PooledFile], damage: list[Damage]) -> list[str]:
    try:
        return linear_file_names(disk.names(directory)) if disk.is_directory(directory) else []
    except OSError as error:
        if not unlinked:
            raise
        kind, effect = DamageKind.DIRECTORY_UNREADABLE, Effect.FOUND_BY_HEADERS
        damage.append(Damage(directory, None, None, kind, effect, reason=error.strerror))
        return []


def open_linear_file(disk: Disk, path: str) -> Journal:
    """Open one linearstore file on its own, as a journal of that file alone.

    Raises:
        NotAJournalError: it was never written to, or is not a journal file.
    """
    line = read_line(disk, [path], posixpath.dirname(path), None)
    if not line.files:
        what = line.damage[0].what if line.damage else "an empty file of the pool: no journal has written to it"
        raise NotAJournalError(f"{path}: {what}")
    # A single file can only be compared with its own size.
    return Journal(disk, line.queue_name or posixpath.basename(path), path, "", None, line, line.damage)
