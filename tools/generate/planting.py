"""Damage to files, byte by byte: what a bad disk, a bad copy or a careless hand does.

A file keeps its size, unless it is said otherwise. Each function raises OSError. Tests plant with these, too.
"""

from __future__ import annotations

from pathlib import Path


def patch(path: Path, offset: int, content: bytes) -> None:
    """Overwrite bytes."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def flip(path: Path, offset: int, mask: int = 1) -> None:
    """Flip the bits `mask` of one byte."""
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ mask]))


def zero(path: Path, offset: int, count: int) -> None:
    """Overwrite bytes with zeros, up to the file's end at most."""
    patch(path, offset, bytes(max(0, min(count, path.stat().st_size - offset))))


def resize(path: Path, size: int) -> None:
    """Cut a file off, or make it longer with zeros."""
    with path.open("r+b") as file:
        file.truncate(size)


def replace_with(path: Path, other: Path) -> None:
    """Give a file the content of another one, and so its size."""
    path.write_bytes(other.read_bytes())
