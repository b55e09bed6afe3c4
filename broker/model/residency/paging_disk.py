"""What paging requires of the operating system, so that a test can pass a simulated disk."""

from __future__ import annotations

from typing import Protocol


class PagingFile(Protocol):
    """An open paging file. Every method may raise OSError."""

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`; fewer only at the end of the file."""

    def read_cached(self, offset: int, length: int) -> bytes | None:
        """As `read`, if the system has all of it in memory; None if it would have to wait for the disk."""

    def read_ahead(self, offset: int, length: int) -> None:
        """Have the system read a part of the file into memory; it need not."""

    def write(self, offset: int, content: bytes) -> None:
        """Write all of `content` at `offset`; a part may have been written if that fails."""

    def truncate(self, size: int) -> None:
        """Cut the file off."""

    def close(self) -> None:
        """Close the descriptor. May be called twice."""


class PagingDisk(Protocol):
    """A disk with paging files. Every method may raise OSError."""

    def create(self, path: str, size: int) -> PagingFile:
        """Create a file of `size` zero bytes, mode 0600. Raises FileExistsError."""

    def open_writable(self, path: str) -> PagingFile:
        """Open a file for reading and writing."""

    def names(self, directory: str) -> list[str]:
        """The names in a directory."""

    def is_directory(self, path: str) -> bool:
        """Whether `path` is a directory."""

    def make_directory(self, path: str) -> None:
        """Create a directory, mode 0700."""

    def size_of(self, path: str) -> int:
        """The size of a file, in bytes."""

    def remove(self, path: str) -> None:
        """Remove a file."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""

    def space(self, path: str) -> tuple[int, int]:
        """Bytes that are free on the disk of the directory `path`, and in all."""
