"""The data areas of a journal's files as one stream of bytes, in order of writing.

A *log offset* (`place`) is a position in that stream: it gives both the location of a record and its order among the
others. A record that continues in the next file is contiguous here. Reads use one window, since records are read in
order, and at most two files are open at a time.

Missing files and missing parts of short files read as zeros, that is, as space never written. So do unreadable sectors,
which are noted as runs, since a failing disk fails over whole stretches, up to the whole file. The drop-ins for qpidd's
own readers require less: they stop where reading fails, and take the size of a linearstore's file from its header, even
if it differs from that of the others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Final

from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.geometry import BLOCK_SIZE, SECTOR_SIZE, Geometry
from qstore.store.damage import Damage, DamageKind
from qstore.store.disk import Disk, ReadableFile
from qstore.store.journal.files import JournalFile


class BadRegion(NamedTuple):
    """A run of unreadable sectors.

    Attributes:
        file: index of the file.
        begin, end: offsets in it.
        why: the system's error text.
    """

    file: int
    begin: int
    end: int
    why: str


class BadRegions:
    """The unreadable regions found so far."""

    __slots__ = ("_new", "_runs", "_why")

    def __init__(self) -> None:
        self._runs: dict[int, list[tuple[int, int]]] = {}  # index of the file -> runs of sectors, in order
        self._new: dict[int, list[tuple[int, int]]] = {}  # those not yet returned by `take_new`
        self._why: dict[int, str] = {}

    def __bool__(self) -> bool:
        return bool(self._runs)

    def add(self, file: int, begin: int, end: int, why: str) -> None:
        """Add the sectors that hold the bytes from `begin` to `end` of a file."""
        first, last = begin // SECTOR_SIZE, -(-end // SECTOR_SIZE)
        runs = self._runs.setdefault(file, [])
        known = _overlapping(runs, first, last)
        if known and known[0][0] <= first and known[-1][1] >= last and len(known) == 1:
            return
        _insert(runs, first, last)
        _insert(self._new.setdefault(file, []), first, last)
        self._why.setdefault(file, why)

    def touches(self, file: int, begin: int, end: int) -> bool:
        """Whether any of the bytes from `begin` to `end` of a file is known to be unreadable."""
        runs = self._runs.get(file)
        return bool(runs) and bool(_overlapping(runs or [], begin // SECTOR_SIZE, -(-end // SECTOR_SIZE)))

    def take_new(self) -> Iterator[BadRegion]:
        """The runs added since the last call."""
        new, self._new = self._new, {}
        for file in sorted(new):
            for first, last in new[file]:
                yield BadRegion(file, first * SECTOR_SIZE, last * SECTOR_SIZE, self._why[file])


def _overlapping(runs: list[tuple[int, int]], first: int, last: int) -> list[tuple[int, int]]:
    """The runs that overlap the one from `first` to `last`."""
    found = []
    index = max(bisect_right(runs, (first, first)) - 1, 0)
    while index < len(runs) and runs[index][0] < last:
        if runs[index][1] > first:
            found.append(runs[index])
        index += 1
    return found


def _insert(runs: list[tuple[int, int]], first: int, last: int) -> None:
    """Insert a run, and merge it with those that it overlaps or touches."""
    at = bisect_right(runs, (first, first))
    begin = at - 1 if at and runs[at - 1][1] >= first else at
    end = begin
    while end < len(runs) and runs[end][0] <= last:
        first, last = min(first, runs[end][0]), max(last, runs[end][1])
        end += 1
    runs[begin:end] = [(first, last)]


WINDOW_SIZE: Final = 1 << 20  # bytes read at a time
MAX_OPEN_FILES: Final = 2
_PATIENCE: Final = 64  # consecutive failing sectors before longer pieces are tried
_COARSE: Final = 1 << 16  # bytes of these


class JournalStream:
    """Random and sequential reading over the files of one journal.

    Args:
        disk: reads the files.
        files: the files, oldest first.
        geometry: the sizes of the files.
        sizes: bytes that each file contributes, if they differ. `data_size` is then not defined.
        is_strict: an unreadable sector raises OSError.
        window_size: bytes read at a time; `WINDOW_SIZE` by default.
        max_open: maximum number of open files.

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
        max_open: int = MAX_OPEN_FILES,
    ) -> None:
        self.files = files
        self.geometry = geometry
        self._data_offset = geometry.header_size
        self.data_size = geometry.data_size
        each = [geometry.data_size] * len(files) if sizes is None else sizes
        self._begins = list(accumulate(each, initial=0))  # begins of the files' data areas, and the stream's end
        self.size = self._begins[-1]
        self._disk = disk
        self._is_strict = is_strict
        self._window_size = WINDOW_SIZE if window_size is None else window_size
        self._max_open = max_open
        self._open: OrderedDict[int, ReadableFile] = OrderedDict()
        self._window = b""
        self._window_place = 0
        self._bad = BadRegions()

    def locate(self, place: int) -> tuple[JournalFile[Any], int]:
        """The file that holds a log offset, and the offset from that file's start."""
        index = self.index(place)
        return self.files[index], place - self._begins[index] + self._data_offset

    def index(self, place: int) -> int:
        """The index of the file that holds a log offset; for the stream's end, the number of files."""
        return bisect_right(self._begins, place) - 1

    def begin(self, index: int) -> int:
        """Log offset where the file at `index` begins; the stream's end for the index after the last."""
        return self._begins[index]

    def is_backed(self, place: int, length: int) -> bool:
        """Whether the files really contain the `length` bytes from `place` on, whatever their headers state."""
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
        """`length` bytes from `place`; fewer only at the stream's end. Read from the window if possible."""
        start = place - self._window_place
        if start >= 0 and start + length <= len(self._window):
            return self._window[start : start + length]
        if length > self._window_size:
            return self._gather(place, length)
        start = self._fill(place, length)
        return self._window[start : start + length]

    def window(self, place: int, least: int) -> tuple[bytes, int]:
        """A buffer with `least` or more bytes from `place` (if the stream has them), and the index of `place` in it."""
        window = self._window
        start = place - self._window_place
        if 0 <= start <= len(window) - least:
            return window, start
        if start >= 0 and start + min(least, self.size - place) <= len(window):
            return window, start
        start = self._fill(place, least)
        return self._window, start

    def read_aside(self, place: int, length: int) -> bytes:
        """As `read`, for a few bytes that may be far away: the window does not change."""
        start = place - self._window_place
        if start >= 0 and start + length <= len(self._window):
            return self._window[start : start + length]
        return self._gather(place, length)

    def unreadable(self) -> list[Damage]:
        """The unreadable runs found since the last call."""
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
        """Whether anything was unreadable."""
        return bool(self._bad)

    def is_readable(self, place: int, length: int) -> bool:
        """Whether all of the `length` bytes from `place`, which have been read, were readable."""
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
        """Close all descriptors; reading opens them again."""
        for file in self._open.values():
            file.close()
        self._open.clear()
        self._window = b""

    def _fill(self, place: int, least: int) -> int:
        """Start the window at the block of `place`, for callers that step through it by blocks. Returns its index."""
        self._window_place, self._window = place & -BLOCK_SIZE, b""
        start = place - self._window_place
        try:
            self._window = self._gather(self._window_place, self._window_size + BLOCK_SIZE)
        except OSError:  # perhaps in a part that the caller does not need
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
            if len(self._open) >= self._max_open:
                self._open.popitem(last=False)[1].close()
            file = self._open[index] = self._disk.open(ring_file.path)
        try:
            return file.read(offset, count).ljust(count, b"\0")
        except OSError as error:
            if self._is_strict:
                raise
            return self._read_around(index, file, offset, count, error.strerror or str(error))

    def _read_around(self, index: int, file: ReadableFile, offset: int, count: int, why: str) -> bytes:
        """Read sector by sector; unreadable ones become zeros and are noted.

        A disk may take seconds to fail a sector. So after several consecutive failures, longer pieces are read; one
        that fails is given up as a whole, and after one that succeeds, single sectors are read again.
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
