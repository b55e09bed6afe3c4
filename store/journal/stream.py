"""The data areas of a journal's files as one stream of bytes, in order of writing.

A *place* is a position in that stream: the place of a record tells both where its bytes are and its order among the
others. A record that goes on in the next file is a contiguous run here. Reads go through one window, since records
are met in order, and at most two files are open at a time.

What a missing or short file should hold reads as zeros, that is, as space never written; so do sectors that the
system cannot read, which are noted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

from formats.rhm.geometry import BLOCK_SIZE, SECTOR_SIZE, Geometry
from store.damage import Damage
from store.disk import Disk, ReadableFile
from store.journal.files import JournalFile

WINDOW_SIZE: Final = 1 << 20  # bytes read at a time
MAX_OPEN_FILES: Final = 2


class JournalStream:
    """Random and sequential reading over the files of one journal.

    Attributes:
        files: the files, oldest first.
        geometry: the sizes of the files.
        data_size: bytes that each file contributes.
        size: bytes in the stream.
    """

    def __init__(self, disk: Disk, files: Sequence[JournalFile[Any]], geometry: Geometry) -> None:
        self.files = files
        self.geometry = geometry
        self._data_offset = geometry.header_size
        self.data_size = geometry.data_size
        self.size = len(files) * geometry.data_size
        self._disk = disk
        self._open: OrderedDict[int, ReadableFile] = OrderedDict()
        self._window = b""
        self._window_place = 0
        self._bad_sectors: dict[tuple[int, int], str] = {}  # index of the file, sector: why
        self._told: set[tuple[int, int]] = set()  # those that `unreadable` has given

    def locate(self, place: int) -> tuple[JournalFile[Any], int]:
        """The file in which a place lies, and the offset from that file's start."""
        index, offset = divmod(place, self.data_size)
        return self.files[index], offset + self._data_offset

    def read(self, place: int, length: int) -> bytes:
        """`length` bytes from `place`; fewer only at the stream's end. Served from the window where it can be."""
        start = place - self._window_place
        if start >= 0 and start + length <= len(self._window):
            return self._window[start : start + length]
        if length > WINDOW_SIZE:
            return self._gather(place, length)
        start = self._fill(place)
        return self._window[start : start + length]

    def window(self, place: int, least: int) -> tuple[bytes, int]:
        """A buffer that holds at least `least` bytes from `place` (if the stream does), and where in it `place` is."""
        window = self._window
        start = place - self._window_place
        if 0 <= start <= len(window) - least:
            return window, start
        if start >= 0 and start + min(least, self.size - place) <= len(window):
            return window, start
        start = self._fill(place)
        return self._window, start

    def read_aside(self, place: int, length: int) -> bytes:
        """As `read`, for a few bytes that may be far away: what is in the window stays there."""
        start = place - self._window_place
        if start >= 0 and start + length <= len(self._window):
            return self._window[start : start + length]
        return self._gather(place, length)

    def unreadable(self) -> list[Damage]:
        """What the system could not read since this was last asked, run by run."""
        runs: list[tuple[int, int, int]] = []  # index of the file, first sector, number of sectors
        for index, sector in sorted(self._bad_sectors.keys() - self._told):
            if runs and (runs[-1][0], runs[-1][1] + runs[-1][2]) == (index, sector):
                runs[-1] = (index, runs[-1][1], runs[-1][2] + 1)
            else:
                runs.append((index, sector, 1))
        self._told.update(self._bad_sectors)
        return [
            Damage(
                self.files[index].path,
                sector * SECTOR_SIZE,
                None,
                f"{count * SECTOR_SIZE} bytes cannot be read: {self._bad_sectors[index, sector]}",
                "they are taken for zeros",
            )
            for index, sector, count in runs
        ]

    def close(self) -> None:
        """Let all descriptors go; reading opens them again."""
        for file in self._open.values():
            file.close()
        self._open.clear()
        self._window = b""

    def _fill(self, place: int) -> int:
        """Let the window begin with the block of `place`, for whoever steps through it by blocks; where `place` is."""
        self._window_place = place & -BLOCK_SIZE
        self._window = self._gather(self._window_place, WINDOW_SIZE + BLOCK_SIZE)
        return place - self._window_place

    def _gather(self, place: int, length: int) -> bytes:
        parts = []
        end = min(place + length, self.size)
        while place < end:
            index, offset = divmod(place, self.data_size)
            count = min(end - place, self.data_size - offset)
            parts.append(self._read_file(index, offset + self._data_offset, count))
            place += count
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_file(self, index: int, offset: int, count: int) -> bytes:
        file = self._open.get(index)
        if file is None:
            ring_file = self.files[index]
            if ring_file.size < 0:
                return bytes(count)
            if len(self._open) >= MAX_OPEN_FILES:
                self._open.popitem(last=False)[1].close()
            file = self._open[index] = self._disk.open(ring_file.path)
        try:
            return file.read(offset, count).ljust(count, b"\0")
        except OSError as error:
            return self._read_around(index, file, offset, count, error.strerror or str(error))

    def _read_around(self, index: int, file: ReadableFile, offset: int, count: int, why: str) -> bytes:
        """Read sector by sector; those that the system cannot read are zeros, and noted."""
        parts = []
        end = offset + count
        while offset < end:
            length = min(SECTOR_SIZE - offset % SECTOR_SIZE, end - offset)
            try:
                parts.append(file.read(offset, length).ljust(length, b"\0"))
            except OSError:
                parts.append(bytes(length))
                self._bad_sectors[index, offset // SECTOR_SIZE] = why
            offset += length
        return b"".join(parts)
