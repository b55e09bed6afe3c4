"""The files of a journal in a copy of a snapshot: what each of them begins with, and what follows from which file.

A journal's files in the copy, with the same sizes as in the store:

    file                                     in the copy
    ---------------------------------------  ------------------------------------------------------------------
    has live records, or is after one        its header, its bytes up to the cut, zeros
    dead: older than those                   a header that states that no record begins in it, zeros
    never entered                            its creation header, if the journal has such headers, and zeros

The dead ones are not read, since they may be overwritten at any time; but if they were blank, the ring would appear
never to have wrapped, or to have lost a file. If one is dead, files that were never entered count as dead too, as files
of a lap before the first: then the ring is full, like every ring with dead files.

The bytes are not verified: damage is copied unchanged, and reported when the copy is opened or checked.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from qstore.formats.errors import RhmError
from qstore.formats.rhm.file_header import (
    CREATION_SLOT,
    SLOT_SIZE,
    FileHeader,
    decode_file_header,
    encode_file_header,
    encode_header_slot,
)
from qstore.formats.rhm.geometry import DATA_OFFSET, FILE_HEADER_SIZE
from qstore.formats.rhm.jinf import MAX_JINF_SIZE, JournalInfo, decode_jinf, encode_jinf, is_plain_ring
from qstore.store.disk import Disk, ReadableFile, read_whole
from qstore.store.errors import StoreError
from qstore.store.journal.directory import INFO_SUFFIX, data_path
from qstore.store.journal.write.storage import creation_header
from qstore.store.live.snapshot import JournalSnapshot


class ImageFile(NamedTuple):
    """A file of the copy.

    Attributes:
        name: its name in the journal's directory.
        size: its bytes.
        head: what it begins with.
        source: the file with its data area; empty for none.
        copied: bytes of that which belong to the snapshot; everything else is zeros.
        is_complete: whether it was full at the cut, so that it is the same as long as its header is.
    """

    name: str
    size: int
    head: bytes
    source: str
    copied: int
    is_complete: bool

    @contextlib.contextmanager
    def open(self, disk: Disk) -> Iterator[ReadableFile | None]:
        """The file with its data area, to be passed to `read`. Raises OSError."""
        if not self.source:
            yield None
            return
        with contextlib.closing(disk.open(self.source)) as file:
            yield file

    def read(self, source: ReadableFile | None, offset: int, length: int) -> bytes:
        """A part of the file. Raises OSError."""
        end = min(offset + length, self.size)
        content = self.head[offset:end]
        at, last = offset + len(content), min(end, DATA_OFFSET + self.copied)
        if source is not None and at < last:
            if at < DATA_OFFSET:
                content, at = content.ljust(DATA_OFFSET - offset, b"\0"), DATA_OFFSET
            found = source.read(at, last - at)
            content = content + found if content else found
        return content if len(content) == end - offset else content.ljust(end - offset, b"\0")


class JournalImage:
    """The files of one journal in a copy.

    Args:
        disk: reads the journal.
        journal: the journal at the moment of the cut.
        check: called after everything that is read from its files: raises StoreError if they may have been overwritten.

    Attributes:
        info_name, info: its info file's name and content.
        described: the info file, decoded; None if it is damaged.

    Raises:
        OSError: the info file cannot be read.
    """

    def __init__(self, disk: Disk, journal: JournalSnapshot, check: Callable[[], None] = lambda: None) -> None:
        self._disk, self._journal, self._check = disk, journal, check
        self.info_name = journal.base_name + INFO_SUFFIX
        content = read_whole(disk, posixpath.join(journal.directory, self.info_name), MAX_JINF_SIZE)
        self.described, self.info = _with_ring(content, journal)

    def files(self) -> Iterator[ImageFile]:
        """Its data files, in the order of the ring. Raises StoreError, OSError."""
        journal, created = self._journal, self.described
        first = self._header(journal.cut.first) if journal.cut is not None and journal.size else None
        for place, number in enumerate(journal.ring.numbers):
            index = journal.file_at(place)
            head, source, copied, is_complete = b"", "", 0, False
            if index is not None:
                copied = journal.bytes_in(index)
                head = encode_file_header(replace(self._header(index), slot=0)) if copied else self._dead(first, index)
                source = journal.path_of(index) if copied else ""
                is_complete = copied == journal.geometry.data_size
            elif created is not None and created.creation_headers:
                head = bytes(CREATION_SLOT * SLOT_SIZE) + encode_header_slot(creation_header(created, number))
            name = posixpath.basename(data_path(journal.directory, journal.base_name, number))
            yield ImageFile(name, journal.geometry.file_size, head, source, copied, is_complete)

    def _dead(self, first: FileHeader | None, index: int) -> bytes:
        """The header of a dead file; `first` is that of the oldest file copied."""
        assert first is not None
        number, indicator = self._journal.ring.number(index), self._journal.ring.indicator(index)
        return encode_file_header(
            replace(first, overwrite_indicator=indicator, file_number=number, first_record_offset=0, slot=0)
        )

    def _header(self, index: int) -> FileHeader:
        """The header of a file to be copied, counted over all laps."""
        journal = self._journal
        path = journal.path_of(index)
        sector = read_whole(self._disk, path, FILE_HEADER_SIZE)
        self._check()
        number, indicator = journal.ring.number(index), journal.ring.indicator(index)
        try:
            header = decode_file_header(sector)
        except RhmError as error:
            raise StoreError(f"{path}: {error.what}: the journal is damaged and cannot be copied") from error
        if header is None or (header.file_number, header.overwrite_indicator) != (number, indicator):
            raise StoreError(f"{path}: the header belongs to another file: the journal is damaged and cannot be copied")
        return header


def _with_ring(content: bytes, journal: JournalSnapshot) -> tuple[JournalInfo | None, bytes]:
    """An info file, decoded and as bytes, with the ring of the snapshot; None and unchanged if it is damaged."""
    try:
        info = decode_jinf(content)
    except RhmError:
        return None, content
    numbers = tuple(journal.ring.numbers)
    ring = () if is_plain_ring(numbers) else numbers
    if (info.geometry, info.ring, info.spare) != (journal.geometry, ring, ()):
        info = replace(info, geometry=journal.geometry, ring=ring, spare=())
        content = encode_jinf(info)
    return info, content
