"""The files of one journal, in the order in which they were written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from formats.rhm.geometry import BLOCK_SIZE, Geometry
from store.damage import Damage
from store.journal.format import JournalFormat


class _Header(Protocol):
    """What the file headers of all formats tell."""

    @property
    def first_record_offset(self) -> int:
        """Bytes from the file's start to the first record header; 0 if none begins here."""


HeaderT = TypeVar("HeaderT", bound=_Header)


@dataclass(slots=True)
class JournalFile(Generic[HeaderT]):
    """One file of a journal.

    Attributes:
        number: its place in the journal: in a ring that of its name, in a line that of its header.
        path: where it is.
        size: bytes that it has; -1 if it is missing.
        header: its header; None if never written or not to be used.
    """

    number: int
    path: str
    size: int
    header: HeaderT | None

    @property
    def first_record_offset(self) -> int | None:
        """Where the header says that the first record is; None without a header."""
        return None if self.header is None else self.header.first_record_offset

    def first_record(self, geometry: Geometry) -> int | None:
        """Where in the data area the first record header stands; None if the header does not tell or none is here."""
        if self.header is None:
            return None
        offset = self.header.first_record_offset - geometry.header_size
        return offset if 0 <= offset < geometry.data_size and offset % BLOCK_SIZE == 0 else None

    def gap_before(self) -> Damage | None:
        """The damage that it is if files between the one before and this one were lost; None where none can be."""
        return None

    def begins_no_record(self, geometry: Geometry) -> bool:
        """Whether the header says that a record which began earlier fills the whole file."""
        return self.header is not None and self.header.first_record_offset in (0, geometry.file_size)


FileT = TypeVar("FileT", bound=JournalFile)  # type: ignore[type-arg]  # of any header


@dataclass(slots=True)
class OrderedFiles(Generic[FileT]):
    """The files of a journal, oldest first, and what is wrong with them.

    Attributes:
        format: the journal's format; None if no file was ever written, or none can be told from garbage.
        geometry: number and size of the files.
        files: the files that were written, oldest first.
        damage: what cannot be explained.
    """

    format: JournalFormat | None
    geometry: Geometry
    files: list[FileT]
    damage: list[Damage]
