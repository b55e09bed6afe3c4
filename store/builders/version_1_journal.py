"""Builds a journal of version 1, qpidd's, from content that is known; where it has to be, and how large.

The directory is `jrnl/HHHH/<queue name>`, where HHHH spreads the queues by a hash of their names and the name stands as
it is: one with slashes is a path (formats page, section 1). So a name may be none that a directory can have, or lead
out of the store; such a queue is refused.

A geometry is legal for qpidd if it has 4 to 64 files of 1 to 32,767 pages (section 2.1). What a journal is to hold has
to leave free what enqueues leave free, 20 % of the ring or one file (section 3.6), so that qpidd takes more messages
and has room for the records that remove them. It is counted before; what is written has the last word.

Nobody knows of a journal that is built, so it is written without a sync up to the end, and then synced once.
"""

from __future__ import annotations

import posixpath
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from formats.amqp_0_10.types import encode_name
from formats.rhm.geometry import BLOCK_SIZE, MAX_FILES, PAGE_SIZE, SECTOR_SIZE, Geometry
from formats.rhm.jinf import JournalInfo
from formats.rhm.records import Kind, RecordHeader
from formats.wording import plural, printable
from store.builders.journal_build import JournalTooSmallError
from store.environment import Environment
from store.errors import StoreError
from store.journal.write.storage import JournalStorage, create_journal, remove_journal
from store.journal.write.version_1_ring import Version1Ring
from store.journal.write.version_1_writer import reserve_blocks
from store.recovery.journal_content import JournalContent, described

_HASH_DIRECTORIES: Final = 29
_HASH_FACTOR: Final = 33
_LONGEST_NAME: Final = 255  # bytes: of a queue, and of a directory
_LONGEST_LINE: Final = 1022  # characters of an info file's line that qpidd reads
_READ_FIRST: Final = ("journal_version", "id_string")  # in any line, before the directory

_FEWEST_FILES: Final = 4
_MOST_PAGES: Final = 32767
_FLUSH_BYTES: Final = 4 << 20  # gathered before they are written
_WRITE_BYTES: Final = 1 << 20  # of one write at most
_NANOSECONDS: Final = 1_000_000_000


# ---- where it is ----


def hash_directory(name: str) -> str:
    """The directory below `jrnl` for the queue `name`: a hash of its bytes, which count as signed."""
    value = 0
    for byte in encode_name(name).partition(b"\0")[0]:
        value = value * _HASH_FACTOR + (byte - 256 if byte > 127 else byte)
    return f"{(value & 0xFFFFFFFF) % _HASH_DIRECTORIES:04x}"


def journal_path(name: str) -> str:
    """The directory of a queue's journal, below `jrnl`.

    Raises:
        StoreError: no queue of version 1 can have that name.
    """
    size = len(encode_name(name))
    parts = [part for part in name.split("/") if part]
    if "\0" in name:
        reason = "it has a zero byte"
    elif not parts:
        reason = "no directory can be called so"
    elif size > _LONGEST_NAME:
        reason = f"it has {size} bytes, more than {_LONGEST_NAME}"
    elif "." in parts or ".." in parts:
        reason = "it would lead to a directory that is not the queue's own"
    else:
        return posixpath.join(hash_directory(name), *parts)
    shown = printable(name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME] + "…")
    raise StoreError(f'queue "{shown}": only version 2 can have it: version 1 names its directory so, and {reason}')


class JournalPlaces:
    """The directories of a store's journals, each of which one queue has."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, name: str) -> str:
        """The directory for the queue `name`, below `jrnl`.

        Raises:
            StoreError: there is none for such a name, or another queue has it.
        """
        place = journal_path(name)
        if place in self._taken:
            raise StoreError(
                f'queue "{printable(name)}": only version 2 can have it: version 1 would keep it in the directory of '
                f"another queue, jrnl/{printable(place)}"
            )
        self._taken.add(place)
        return place


def why_misread(name: str, directory: str) -> str | None:
    """Why qpidd would not read the info file of the queue `name` in `directory` as it is meant; None if it does.

    It searches each line for the names of the values, and nothing is escaped (formats page, section 4).
    """
    if any(each in name + directory for each in '"\n'):
        return "its name or directory holds a quote or the end of a line"
    if _READ_FIRST[0] in name or any(each in directory for each in _READ_FIRST):
        return "its name or directory holds the name of another value"
    if len(encode_name(directory)) > _LONGEST_LINE - len('    <directory value="/" />'):
        return "its directory is too long"
    return None


# ---- how large it is ----


def legal_geometry(geometry: Geometry) -> Geometry:
    """The nearest geometry that is legal in version 1 and not smaller, but for the largest files."""
    files = min(max(geometry.files, _FEWEST_FILES), MAX_FILES)
    return Geometry.from_pages(files, min(-(-geometry.data_size // PAGE_SIZE), _MOST_PAGES))


def fits(content: JournalContent, geometry: Geometry) -> bool:
    """Whether a journal takes `content` and leaves free what it has to. No record is longer than in version 2."""
    flushes = content.blocks * BLOCK_SIZE // _FLUSH_BYTES + 2
    padding = flushes * (SECTOR_SIZE // BLOCK_SIZE)
    return content.blocks + padding + reserve_blocks(geometry) <= geometry.capacity // BLOCK_SIZE


def _geometries(content: JournalContent, geometry: Geometry) -> Iterator[Geometry]:
    """The geometries into which `content` fits, beginning with the nearest to `geometry`, which is legal."""
    for files in range(geometry.files, MAX_FILES + 1):
        candidate = replace(geometry, files=files)
        if fits(content, candidate):
            yield candidate
    sizes = range(geometry.data_size // PAGE_SIZE + 1, _MOST_PAGES + 1)
    first = bisect_left(sizes, True, key=lambda pages: fits(content, Geometry.from_pages(MAX_FILES, pages)))
    for pages in sizes[first:]:
        yield Geometry.from_pages(MAX_FILES, pages)


# ---- building ----


def version_1_info(
    environment: Environment, name: str, directory: str, base_name: str, geometry: Geometry, page: int, pages: int
) -> JournalInfo:
    """The info file of a journal that is made now.

    Args:
        environment: has the clock.
        name: the queue's, or that of the prepared list.
        directory: where qpidd will find it.
        base_name: what its files' names begin with.
        geometry: number and size of its files.
        page: bytes of a page of the write cache.
        pages: their number. Both mean nothing at recovery.
    """
    seconds, nanoseconds = divmod(environment.clock(), _NANOSECONDS)
    local = datetime.fromtimestamp(seconds, UTC).astimezone()
    return JournalInfo(
        1,
        name,
        base_name,
        geometry,
        directory=f"{directory}/",
        seconds=seconds,
        nanoseconds=nanoseconds,
        local_time=f"{local:%Y/%m/%d %H:%M:%S}.{nanoseconds:09}",
        write_page_sectors=page // SECTOR_SIZE,
        write_pages=pages,
    )


class Version1JournalBuild:
    """One journal that is built. It never wraps, so nothing of it is remembered but what is gathered.

    Args:
        environment: disk and clock.
        directory: the journal's, which is made.
        info: what the journal is to be.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, environment: Environment, directory: str, info: JournalInfo) -> None:
        create_journal(environment.disk, directory, info)
        self._info = info
        self._storage = JournalStorage(environment.disk, directory, info.base_name, info.geometry)
        self._ring = Version1Ring(info.geometry, page=_WRITE_BYTES, clock=environment.clock)
        self._limit = info.geometry.capacity // BLOCK_SIZE - reserve_blocks(info.geometry)
        self._written: dict[int, None] = {}  # numbers of files

    def enqueue(self, rid: int, data: bytes, _crc: int) -> None:
        """A message outside of any transaction; version 1 has no use for its checksum. Raises as `message`."""
        self._ring.enqueue(rid, data)
        self._write_much()

    def message(self, rid: int, parts: Sequence[bytes], xid: bytes = b"") -> None:
        """A message, enqueued by the open transaction `xid` if there is one.

        Raises:
            JournalTooSmallError: it does not fit.
            OSError: it cannot be written.
        """
        self._append(RecordHeader(Kind.ENQUEUE, 1, 0, rid, len(xid), sum(map(len, parts))), xid, parts)

    def removal(self, xid: bytes, rid: int, target: int) -> None:
        """The dequeue of the message `target`, which is there, by the open transaction `xid`. Raises as `message`."""
        self._append(RecordHeader(Kind.DEQUEUE, 1, 0, rid, len(xid), dequeued_rid=target), xid)

    def finish(self) -> None:
        """Have all of it on the disk, and let the files go. Raises as `message`."""
        self._write()
        for number in self._written:
            self._storage.file(number).sync()
            self._storage.trim()
        self.close()

    def close(self) -> None:
        """Let the files go, whatever is in them. Twice is allowed."""
        self._storage.close()

    def _append(self, header: RecordHeader, xid: bytes, data: Sequence[bytes] = ()) -> None:
        self._ring.append(header, xid, data)
        self._write_much()

    def _write_much(self) -> None:
        if self._ring.unsynced >= _FLUSH_BYTES:
            self._write()

    def _write(self) -> None:
        """Write what is gathered; it is synced at the end.

        Raises:
            JournalTooSmallError: it does not fit; nothing of it is written then.
            OSError: it cannot be written.
        """
        if self._ring.position > self._limit:
            name, geometry = printable(self._info.queue_name), described(self._info.geometry)
            raise JournalTooSmallError(f'queue "{name}": its messages do not fit into {geometry}')
        while (step := self._ring.next_flush()) is not None:
            self._storage.write(step)
            self._storage.trim()
            self._written.update(dict.fromkeys(step.files))
            self._ring.flushed()


def build_version_1_journal(
    environment: Environment,
    directory: str,
    info: JournalInfo,
    content: JournalContent,
    fill: Callable[[Version1JournalBuild], None],
) -> Geometry:
    """Build a journal in which everything fits, all of it synced but the directory's own name.

    Args:
        environment: disk and clock.
        directory: the journal's, which is made.
        info: what the journal is to be; its geometry is made legal, and enlarged if the content needs it.
        content: what it is to hold.
        fill: writes it; called again, for another geometry, if that turns out to be too small.

    Returns:
        Number and size of its files.

    Raises:
        StoreError: it does not fit into the largest journal.
        OSError: it cannot be made.
    """
    for geometry in _geometries(content, legal_geometry(info.geometry)):
        build = Version1JournalBuild(environment, directory, replace(info, geometry=geometry))
        try:
            fill(build)
            build.finish()
        except JournalTooSmallError:
            build.close()
            remove_journal(environment.disk, directory)
        else:
            return geometry
        finally:
            build.close()
    largest = described(Geometry.from_pages(MAX_FILES, _MOST_PAGES))
    raise StoreError(
        f'queue "{printable(info.queue_name)}": {plural(content.messages, "message")} of '
        f"{content.blocks * BLOCK_SIZE:,} bytes do not fit into the largest journal of version 1, {largest}"
    )
