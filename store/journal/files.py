"""The three journal formats that can be read, and the files of one journal, in order of writing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, Protocol, TypeVar

from qstore.formats.rhm.geometry import BLOCK_SIZE, Geometry
from qstore.store.damage import Damage


class JournalFormat(IntEnum):
    """The format of a journal. The values of the first two are the version numbers in their files."""

    VERSION_1 = 1  # qpidd's legacystore: a ring of files (formats.rhm)
    VERSION_2 = 2  # qstore's own: the same ring, with checksums
    LINEAR = 3  # qpidd's linearstore: a line of files (formats.qls); its own version number is 2

    @property
    def label(self) -> str:
        """The format's name, as tools print it."""
        return _LABELS[self]

    @property
    def keeps_rid_order(self) -> bool:
        """Whether recovery orders a queue's messages by record id, and not by log offset."""
        return self is not JournalFormat.VERSION_1


_LABELS = {
    JournalFormat.VERSION_1: "legacystore",
    JournalFormat.VERSION_2: "qstore",
    JournalFormat.LINEAR: "linearstore",
}


class _Header(Protocol):
    """The part of a file header that all formats share."""

    @property
    def first_record_offset(self) -> int:
        """Bytes from the file's start to the first record header; 0 if none begins in this file."""


HeaderT = TypeVar("HeaderT", bound=_Header)


@dataclass(slots=True)
class JournalFile(Generic[HeaderT]):
    """One file of a journal.

    Attributes:
        number: its position in the journal: in a ring from its name, in a line from its header.
        path: where it is.
        size: its size in bytes; -1 if it is missing.
        header: its header; None if never written or not usable.
    """

    number: int
    path: str
    size: int
    header: HeaderT | None

    @property
    def first_record_offset(self) -> int | None:
        """The first record's offset as the header states it; None without a header."""
        return None if self.header is None else self.header.first_record_offset

    def first_record(self, geometry: Geometry) -> int | None:
        """Offset of the first record header in the data area; None if the header states none or none begins here."""
        if self.header is None:
            return None
        offset = self.header.first_record_offset - geometry.header_size
        return offset if 0 <= offset < geometry.data_size and offset % BLOCK_SIZE == 0 else None

    def gap_before(self) -> Damage | None:
        """The damage to report if files before this one were lost; None if none can be missing."""
        return None

    def begins_no_record(self, geometry: Geometry) -> bool:
        """Whether the header states that a record which began earlier fills the whole file."""
        return self.header is not None and self.header.first_record_offset in (0, geometry.file_size)


FileT = TypeVar("FileT", bound=JournalFile)  # type: ignore[type-arg]  # of any header


@dataclass(slots=True)
class OrderedFiles(Generic[FileT]):
    """The files of a journal, oldest first, and the damage found in them.

    Attributes:
        format: the journal's format; None if no file was ever written, or none is recognizable.
        geometry: number and size of the files.
        files: the files that were written, oldest first.
        damage: the damage found.
    """

    format: JournalFormat | None
    geometry: Geometry
    files: list[FileT]
    damage: list[Damage]
