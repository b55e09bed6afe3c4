"""The files of one journal, put in the order in which they were written.

Each lap round the ring inverts the overwrite indicator (version 1), or goes on with higher flush numbers
(version 2). From the file headers alone follows which file is the oldest, which the newest, and that files never
written stand after the newest. qpidd gives up on a header that it cannot read; here the header is reported as
damaged, and its file takes the place that its number and its neighbours give it, so that its records are still
looked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from formats.rhm.errors import RhmError
from formats.rhm.file_header import FileHeader, decode_file_header
from formats.rhm.geometry import BLOCK_SIZE, DATA_OFFSET, FILE_HEADER_SIZE, Geometry
from store.damage import Damage
from store.disk import Disk, ReadableFile

MAX_SECTORS_PROBED: Final = 64


@dataclass(slots=True)
class RingFile:
    """One file of a journal.

    Attributes:
        number: place in the ring.
        path: where it is.
        size: bytes that it has; -1 if it is missing.
        header: its header; None if never written or not readable.
        used: whether it was ever written, as far as can be told.
        overwrite_indicator: that of its records in version 1, given by its header or by its neighbours; None if
            neither tells.
    """

    number: int
    path: str
    size: int
    header: FileHeader | None
    used: bool
    overwrite_indicator: int | None = None

    def first_record(self, data_size: int) -> int | None:
        """Where in the data area the first record header stands; None if the header does not tell or none is here."""
        if self.header is None:
            return None
        offset = self.header.first_record_offset - DATA_OFFSET
        return offset if 0 <= offset < data_size and offset % BLOCK_SIZE == 0 else None

    @property
    def begins_no_record(self) -> bool:
        """Whether the header says that a record which began earlier fills the whole file."""
        return self.header is not None and self.header.first_record_offset in (0, self.size)


@dataclass(slots=True)
class Ring:
    """The files of a journal in order of writing, oldest first, and what is wrong with them.

    Attributes:
        version: 1 or 2; None if no file was ever written.
        geometry: number and size of the files.
        files: the files that were written, oldest first.
        damage: what cannot be explained.
    """

    version: int | None
    geometry: Geometry
    files: list[RingFile]
    damage: list[Damage]


def read_ring(disk: Disk, paths: Sequence[str], geometry: Geometry) -> Ring:
    """Read the headers of a journal's files, `paths` by file number, and put the files in order."""
    damage: list[Damage] = []
    files = [_read_file(disk, number, path, geometry, damage) for number, path in enumerate(paths)]
    versions = [file.header.version for file in files if file.header is not None]
    if not versions:
        return Ring(None, geometry, [file for file in files if file.used], damage)
    version = max(set(versions), key=versions.count)
    _refuse_foreigners(files, version, damage)
    ordered = _order_by_indicator(files) if version == 1 else _order_by_flush(files)
    return Ring(version, geometry, ordered, damage)


def _read_file(disk: Disk, number: int, path: str, geometry: Geometry, damage: list[Damage]) -> RingFile:
    try:
        opened = disk.open(path)
    except OSError as error:
        what = f"file {number} of {geometry.files} cannot be opened: {error.strerror or error}"
        damage.append(Damage(path, None, None, what, "records that stood in it are lost"))
        return RingFile(number, path, -1, None, used=True)
    try:
        return _examine(opened, number, path, geometry, damage)
    finally:
        opened.close()


def _examine(opened: ReadableFile, number: int, path: str, geometry: Geometry, damage: list[Damage]) -> RingFile:
    if opened.size != geometry.file_size:
        what = f"file has {opened.size} bytes, the journal's geometry says {geometry.file_size}"
        lost = "records beyond its end are lost" if opened.size < geometry.file_size else "the excess is not read"
        damage.append(Damage(path, min(opened.size, geometry.file_size), None, what, lost))
    try:
        header = decode_file_header(opened.read(0, FILE_HEADER_SIZE))
    except RhmError as error:
        damage.append(Damage(path, error.offset, None, error.what, "the file's place follows from its number"))
        return RingFile(number, path, opened.size, None, used=True)
    if header is None:
        return RingFile(number, path, opened.size, None, used=_has_data(opened))
    if header.file_number != number:
        what = f"header says that this is file {header.file_number}, its name says {number}"
        damage.append(Damage(path, 0, None, what, "it is read in the place that its name gives it"))
    return RingFile(number, path, opened.size, header, used=True)


def _has_data(opened: ReadableFile) -> bool:
    """Whether a file with an all-zero header holds anything: every 64th part of its first data is looked at."""
    step = max(FILE_HEADER_SIZE, opened.size // MAX_SECTORS_PROBED // FILE_HEADER_SIZE * FILE_HEADER_SIZE)
    offsets = range(0, opened.size, step)
    return any(opened.read(offset, FILE_HEADER_SIZE).strip(b"\0") for offset in offsets)


def _refuse_foreigners(files: list[RingFile], version: int, damage: list[Damage]) -> None:
    """Take away the headers that are of another version, or (version 2) of another queue or incarnation."""
    headers = [file.header for file in files if file.header is not None and file.header.version == version]
    identities = [(header.queue_id, header.incarnation) for header in headers]
    identity = max(set(identities), key=identities.count)
    for file in files:
        if file.header is None:
            continue
        if file.header.version != version:
            what = f"file header of version {file.header.version} in a journal of version {version}"
        elif (file.header.queue_id, file.header.incarnation) != identity:
            what = (
                f"file of queue id {file.header.queue_id}, incarnation {file.header.incarnation} in the journal "
                f"of queue id {identity[0]}, incarnation {identity[1]}"
            )
        else:
            continue
        damage.append(Damage(file.path, 0, None, what, "its records belong elsewhere and are not read"))
        file.header = None


def _written(files: list[RingFile]) -> list[RingFile]:
    """The files up to the last one that was written: an all-zero header between written ones is no unused file."""
    last = max((file.number for file in files if file.used), default=-1)
    return files[: last + 1]


def _order_by_indicator(files: list[RingFile]) -> list[RingFile]:
    """Version 1: the files of the old lap (indicator unlike file 0's), then those of the new one."""
    written = _written(files)
    for file in written:
        if file.header is not None:
            file.overwrite_indicator = file.header.overwrite_indicator
    _infer_indicators(written)
    new = written[0].overwrite_indicator
    # The new lap is the run of files from 0 on; a file beyond it that has the new indicator is out of its place.
    turn = next((i for i, file in enumerate(written) if file.overwrite_indicator != new), len(written))
    return written[turn:] + written[:turn]


def _infer_indicators(written: list[RingFile]) -> None:
    """A file without a header has the indicator of its neighbours: of the one before, or for file 0 the one after."""
    known: int | None = None
    for file in written:
        if file.overwrite_indicator is None:
            file.overwrite_indicator = known
        known = file.overwrite_indicator
    for file in reversed(written):
        if file.overwrite_indicator is None:
            file.overwrite_indicator = known
        known = file.overwrite_indicator


def _order_by_flush(files: list[RingFile]) -> list[RingFile]:
    """Version 2: round the ring from the file with the lowest first flush number.

    Where one flush entered several files, from the last to the first too, the overwrite indicator tells the laps apart.
    """
    written = _written(files)
    headers = [(file.number, file.header) for file in written if file.header is not None]
    first_flush = min(header.first_flush for _, header in headers)
    tied = [(number, header.overwrite_indicator) for number, header in headers if header.first_flush == first_flush]
    oldest = next((number for number, indicator in tied if indicator != tied[0][1]), tied[0][0])
    return written[oldest:] + written[:oldest]
