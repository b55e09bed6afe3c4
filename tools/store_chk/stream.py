"""The bytes of a journal's files in the order in which the walk meets them.

A *place* is the index of a file in that order times the size of a file, plus the offset in the file. A record that
reaches the end of a file goes on behind the header of the next, so going on from a place leaves headers out. Bytes that
a file is too short to hold are zeros, that is, space that was never written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from formats.rhm.geometry import DATA_OFFSET, Geometry
from store.disk import Disk, ReadableFile

_WINDOW_SIZE: Final = 1 << 16  # bytes read at a time: records are met in order, and most are small


class RingStream:
    """Random and sequential reading over the files of one journal.

    Args:
        disk: where to read.
        paths: the files in the order of the walk; each is opened when it is first needed.
        geometry: their size.

    Attributes:
        file_size: bytes of a file, header included.
    """

    def __init__(self, disk: Disk, paths: Sequence[str], geometry: Geometry) -> None:
        self._disk = disk
        self._paths = paths
        self._data_size = geometry.data_size
        self.file_size = geometry.file_size
        self._open: dict[int, ReadableFile] = {}
        self._window = b""
        self._window_place = 0

    def place(self, index: int, offset: int) -> int:
        """The place at `offset` of the file at `index`."""
        return index * self.file_size + offset

    def locate(self, place: int) -> tuple[int, int]:
        """The index of the file in which a place lies, and the offset in that file."""
        return divmod(place, self.file_size)

    def advance(self, place: int, count: int) -> int:
        """The place `count` bytes of a record after `place`, which is in a data area: headers do not count."""
        index, offset = divmod(place, self.file_size)
        assert offset >= DATA_OFFSET
        if offset + count < self.file_size:
            return place + count
        files, rest = divmod(offset - DATA_OFFSET + count, self._data_size)
        return (index + files) * self.file_size + DATA_OFFSET + rest

    def span(self, place: int, size: int) -> tuple[int, int]:
        """The index of the file in which a record of `size` bytes at `place` ends, and the place that follows it."""
        index, offset = divmod(place, self.file_size)
        if offset + size < self.file_size:
            return index, place + size
        return self.locate(self.advance(place, size - 1))[0], self.advance(place, size)

    def read(self, place: int, length: int) -> bytes:
        """`length` bytes of a record from `place` on; they may go on in other files. Raises OSError."""
        start = place - self._window_place
        if start >= 0 and start + length <= len(self._window):
            return self._window[start : start + length]
        parts = []
        while length:
            index, offset = divmod(place, self.file_size)
            count = min(length, self.file_size - offset)
            parts.append(self._read_file(index, offset, count))
            length -= count
            place = self.place(index + 1, DATA_OFFSET)
        return b"".join(parts)

    def holds(self, place: int, length: int, files: int) -> bool:
        """Whether the files are long enough for `length` bytes of a record from `place` on; looks at the first `files`.

        Raises:
            OSError: a file cannot be opened.
        """
        index, offset = self.locate(place)
        while length and index < files:
            count = min(length, self.file_size - offset)
            if self._opened(index).size < offset + count:
                return False
            length -= count
            index, offset = index + 1, DATA_OFFSET
        return True

    def is_short(self, index: int) -> bool:
        """Whether the file at `index` is shorter than it should be. Raises OSError."""
        return self._opened(index).size < self.file_size

    def close(self) -> None:
        """Let all descriptors go."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def _read_file(self, index: int, offset: int, count: int) -> bytes:
        file = self._opened(index)
        if count > _WINDOW_SIZE:
            return file.read(offset, count).ljust(count, b"\0")
        length = min(_WINDOW_SIZE, self.file_size - offset)
        self._window = file.read(offset, length).ljust(length, b"\0")
        self._window_place = self.place(index, offset)
        return self._window[:count]

    def _opened(self, index: int) -> ReadableFile:
        file = self._open.get(index)
        if file is None:
            file = self._open[index] = self._disk.open(self._paths[index])
        return file
