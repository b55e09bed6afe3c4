"""Damage to files, byte by byte: the effects of a bad disk, a bad copy or operator error.

A file keeps its size, unless stated otherwise. Each function raises OSError. Tests use these functions, too.
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
    """Overwrite bytes with zeros, at most up to the file's end."""
    patch(path, offset, bytes(max(0, min(count, path.stat().st_size - offset))))


def resize(path: Path, size: int) -> None:
    """Truncate a file, or extend it with zeros."""
    with path.open("r+b") as file:
        file.truncate(size)


def replace_with(path: Path, other: Path) -> None:
    """Give a file the content, and so the size, of another one."""
    path.write_bytes(other.read_bytes())
