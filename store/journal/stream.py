"""The data areas of a journal's files as one stream of bytes, in order of writing.

A *place* is a position in that stream: the place of a record tells both where its bytes are and its order among the
others. A record that goes on in the next file is a contiguous run here. Reads go through one window, since records
are met in order, and at most two files are open at a time.

What a missing or short file should hold reads as zeros, that is, as space never written; so do sectors that the
system cannot read, which are noted. The drop-ins for qpidd's own readers ask for less: they end where reading fails,
and take a linearstore's file for as large as its header says, be it another size than that of the others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate
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

    Args:
        disk: where to read.
        files: the files, oldest first.
        geometry: the sizes of the files.
        sizes: bytes that each file contributes, where that is not the same for all. `data_size` then means nothing.
        is_strict: what is asked for and the system cannot read raises OSError.
        window_size: bytes read at a time; `WINDOW_SIZE` by default.
        most_open: files that are open at a time.

    Attributes:
        files: the files, oldest first.
        geometry: the sizes of the files.
        data_size: bytes that each file contributes.
        size: bytes in the stream.
    """

    def __init__(
        self,
        disk: Disk,
        files: Sequence[JournalFile[Any]],
        geometry: Geometry,
        *,
        sizes: Sequence[int] | None = None,
        is_strict: bool = False,
        window_size: int | None = None,
        most_open: int = MAX_OPEN_FILES,
    ) -> None:
        self.files = files
        self.geometry = geometry
        self._data_offset = geometry.header_size
        self.data_size = geometry.data_size
        each = [geometry.data_size] * len(files) if sizes is None else sizes
        self._begins = list(accumulate(each, initial=0))  # of the files' data areas, and the stream's end
        self.size = self._begins[-1]
        self._disk = disk
        self._is_strict = is_strict
        self._window_size = WINDOW_SIZE if window_size is None else window_size
        self._most_open = most_open
        self._open: OrderedDict[int, ReadableFile] = OrderedDict()
        self._window = b""
        self._window_place = 0
        self._bad = BadRegions()

    def locate(self, place: int) -> tuple[JournalFile[Any], int]:
        """The file in which a place lies, and the offset from that file's start."""
        index = self.index(place)
        return self.files[index], place - self._begins[index] + self._data_offset

    def index(self, place: int) -> int:
        """The index of the file in which a place lies; that of a file behind the last for the stream's end."""
        return bisect_right(self._begins, place) - 1

    def begin(self, index: int) -> int:
        """Where the file at `index` begins; the stream's end for the file behind the last."""
        return self._begins[index]

    def is_backed(self, place: int, length: int) -> bool:
        """Whether the files really have the `length` bytes from `place` on, whatever their headers claim."""
        index, end = self.index(place), place + length
        while place < end:
            if index == len(self.files):
                return False
            stop = min(end, self._begins[index + 1])
            if stop - self._begins[index] + self._data_offset > self.files[index].size:
                return False
            place, index = stop, index + 1
        return True

    def read(self, place: int, length: int) -> bytes:
        """`length` bytes from `place`; fewer only at the stream's end. Served from the window where it can be."""
        start = place - self._window_place
        if start >= 0 and start + length <= len(self._window):
            return self._window[start : start + length]
        if length > self._window_size:
            return self._gather(place, length)
        start = self._fill(place, length)
        return self._window[start : start + length]

    def window(self, place: int, least: int) -> tuple[bytes, int]:
        """A buffer that holds at least `least` bytes from `place` (if the stream does), and where in it `place` is."""
        window = self._window
        start = place - self._window_place
        if 0 <= start <= len(window) - least:
            return window, start
        if start >= 0 and start + min(least, self.size - place) <= len(window):
            return window, start
        start = self._fill(place, least)
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
            index = self.index(place)
            begin = place - self._begins[index] + self._data_offset
            count = min(end, self._begins[index + 1]) - place
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

    def _fill(self, place: int, least: int) -> int:
        """Let the window begin with the block of `place`, for whoever steps through it by blocks; where `place` is."""
        self._window_place, self._window = place & -BLOCK_SIZE, b""
        start = place - self._window_place
        try:
            self._window = self._gather(self._window_place, self._window_size + BLOCK_SIZE)
        except OSError:  # perhaps of what nobody asks for
            self._window = self._gather(self._window_place, start + least)
        return start

    def _gather(self, place: int, length: int) -> bytes:
        parts = []
        end = min(place + length, self.size)
        while place < end:
            index = self.index(place)
            count = min(end, self._begins[index + 1]) - place
            parts.append(self._read_file(index, place - self._begins[index] + self._data_offset, count))
            place += count
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_file(self, index: int, offset: int, count: int) -> bytes:
        file = self._open.get(index)
        if file is None:
            ring_file = self.files[index]
            if ring_file.size < 0:
                return bytes(count)
            if len(self._open) >= self._most_open:
                self._open.popitem(last=False)[1].close()
            file = self._open[index] = self._disk.open(ring_file.path)
        try:
            return file.read(offset, count).ljust(count, b"\0")
        except OSError as error:
            if self._is_strict:
                raise
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
