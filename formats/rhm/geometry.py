"""The sizes of a journal: blocks, sectors, pages, files (formats/rhm/README.md, 1.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BLOCK_SIZE: Final = 128  # bytes: every record begins on one
SECTOR_SIZE: Final = 512  # bytes: the file header's area
PAGE_SIZE: Final = 65536  # bytes: the unit of jfile-size-pgs
FILE_HEADER_SIZE: Final = SECTOR_SIZE
DATA_OFFSET: Final = FILE_HEADER_SIZE
MAX_FILES: Final = 64  # of num-jfiles
DEFAULT_FILES: Final = 8  # of num-jfiles (MRG 2 Messaging User Guide, table 6.2)
MAX_PAGES: Final = 32768  # of jfile-size-pgs, by the documents; qpidd 1.40 takes one less (formats/rhm/README.md, 9)
MAX_RING_FILES: Final = 1 << 16  # of version 2: a file's number has 16 bits
MAX_FILE_SIZE: Final = FILE_HEADER_SIZE + MAX_PAGES * PAGE_SIZE  # bytes


def padded(size: int) -> int:
    """`size` bytes rounded up to whole blocks."""
    return (size + BLOCK_SIZE - 1) & -BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class Geometry:
    """The number of a journal's files, and the size of the data area of each.

    Any positive size is allowed here: the store enforces the legal range, and tests use tiny files.

    Attributes:
        files: number of files in the ring.
        data_size: bytes of data area in each file: a multiple of the sector size.
        header_size: bytes of each file before its data area; linearstore has larger headers.
    """

    files: int
    data_size: int
    header_size: int = FILE_HEADER_SIZE

    def __post_init__(self) -> None:
        if self.files < 1:
            raise ValueError(f"a journal needs at least one file, not {self.files}")
        if self.data_size < SECTOR_SIZE or self.data_size % SECTOR_SIZE:
            raise ValueError(f"the size of a data area must be a multiple of {SECTOR_SIZE} bytes, not {self.data_size}")

    @classmethod
    def from_pages(cls, files: int, pages: int) -> Geometry:
        """Geometry of `files` files of `pages` × 64 KiB, as in num-jfiles and jfile-size-pgs."""
        return cls(files, pages * PAGE_SIZE)

    @property
    def file_size(self) -> int:
        """Size of one whole file in bytes, with header sector."""
        return self.data_size + self.header_size

    @property
    def capacity(self) -> int:
        """Size of all data areas together in bytes."""
        return self.files * self.data_size
