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
from store.damage_kinds import DamageKind
from store.disk import Disk, ReadableFile
from store.journal.bad_regions import BadRegions
from store.journal.files import JournalFile

WINDOW_SIZE: Final = 1 << 20  # bytes read at a time
MAX_OPEN_FILES: Final = 2
_PATIENCE: Final = 64  # sectors in a row that fail before longer pieces are tried
_COARSE: Final = 1 << 16  # bytes of these


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
        self._bad = BadRegions()

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
        return [
            Damage(
                self.files[region.file].path,
                region.begin,
                None,
                DamageKind.SECTORS_UNREADABLE,
                size=region.end - region.begin,
                reason=region.why,
            )
            for region in self._bad.take_new()
        ]

    @property
    def has_unreadable(self) -> bool:
        """Whether there is anything that the system could not read."""
        return bool(self._bad)

    def is_readable(self, place: int, length: int) -> bool:
        """Whether the system could read all of the `length` bytes from `place`, which have been read."""
        end = place + length
        while place < end:
            index, offset = divmod(place, self.data_size)
            count = min(end - place, self.data_size - offset)
            begin = offset + self._data_offset
            if self._bad.touches(index, begin, begin + count):
                return False
            place += count
        return True

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
        """Read sector by sector; those that the system cannot read are zeros, and noted.

        A sector may take a disk seconds to fail. So after some that fail one after another, longer pieces are tried,
        and one that fails is given up whole; after one that does not, sectors again.
        """
        parts = []
        end = offset + count
        failed = 0
        while offset < end:
            step = SECTOR_SIZE if failed < _PATIENCE else _COARSE
            length = min(step - offset % step, end - offset)
            try:
                parts.append(file.read(offset, length).ljust(length, b"\0"))
                failed = 0
            except OSError:
                parts.append(bytes(length))
                self._bad.add(index, offset, offset + length, why)
                failed += 1
            offset += length
        return b"".join(parts)
