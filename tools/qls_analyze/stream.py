"""The data areas of a journal's files as one stream of bytes.

A *place* is a position in that stream. A record that reaches the end of a file goes on behind the header of the next,
so here it is contiguous. Files are as large as their headers say, each for itself; what a file is too short to hold
reads as zeros, that is, as space that was never written.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from formats.qls.file_header import DATA_OFFSET
from store.disk import Disk, ReadableFile
from tools.qls_analyze.files import JournalFile

_WINDOW_SIZE: Final = 1 << 18  # bytes read at a time: records are met in order, and most are small
_CHUNK: Final = 1 << 20  # bytes asked for at once, at most, of what is larger


class LineStream:
    """Random and sequential reading over the files of one journal; one of them is open at a time.

    Attributes:
        size: bytes in the stream.
    """

    def __init__(self, disk: Disk, files: Sequence[JournalFile]) -> None:
        self._disk = disk
        self._files = files
        self._begins = [0]  # place of each file's data area, and the stream's end
        for file in files:
            self._begins.append(self._begins[-1] + file.header.data_size)
        self.size = self._begins[-1]
        self._window = b""
        self._window_place = 0
        self._open: tuple[int, ReadableFile] | None = None

    # ---- places ----

    def begin(self, index: int) -> int:
        """Where the data area of the file at `index` begins; that of the one behind the last is the stream's end."""
        return self._begins[index]

    def index(self, place: int) -> int:
        """The index of the file in which a place lies."""
        return bisect_right(self._begins, place) - 1

    def offset(self, place: int) -> int:
        """The offset of a place from the start of its file."""
        return place - self._begins[self.index(place)] + DATA_OFFSET

    def holds(self, place: int, length: int) -> bool:
        """Whether the files are there, and long enough, for `length` bytes from `place` on."""
        end = place + length
        index = self.index(place)
        while index < len(self._files):
            begin = self._begins[index]
            if min(end, self._begins[index + 1]) > begin + self._files[index].present:
                return False
            if end <= self._begins[index + 1]:
                return True
            index += 1
        return False

    # ---- bytes ----

    def window(self, place: int, least: int) -> tuple[bytes, int]:
        """A buffer that holds at least `least` bytes from `place` (if the stream does), and where in it `place` is.

        Raises:
            OSError: a file cannot be read.
        """
        at = place - self._window_place
        if at < 0 or at + least > len(self._window):
            self._window = b""
            self._window = self._gather(place, max(least, _WINDOW_SIZE))
            self._window_place, at = place, 0
        return self._window, at

    def read(self, place: int, length: int) -> bytes:
        """`length` bytes from `place`; fewer only at the stream's end. Raises OSError."""
        at = place - self._window_place
        if at >= 0 and at + length <= len(self._window):
            return self._window[at : at + length]
        return self._gather(place, length)

    def close(self) -> None:
        """Let the descriptor go; reading opens it again."""
        if self._open is not None:
            self._open[1].close()
            self._open = None
        self._window = b""

    def _gather(self, place: int, length: int) -> bytes:
        end = min(place + length, self.size)
        parts = []
        while place < end:
            index = self.index(place)
            count = min(end, self._begins[index + 1], place + _CHUNK) - place
            offset = place - self._begins[index] + DATA_OFFSET
            parts.append(self._opened(index).read(offset, count).ljust(count, b"\0"))
            place += count
        return b"".join(parts)

    def _opened(self, index: int) -> ReadableFile:
        if self._open is not None and self._open[0] == index:
            return self._open[1]
        if self._open is not None:
            self._open[1].close()
            self._open = None
        self._open = (index, self._disk.open(self._files[index].path))
        return self._open[1]
